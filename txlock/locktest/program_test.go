package locktest_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// program is what a few actors do, one step at a time. A step of an actor whose last one still waits is left out.
type program struct {
	keys  []kind // what the keys are like at the beginning
	steps []step
}

// kind is a kind of key.
type kind string

const (
	ensured kind = "ensured" // never locked, but its row was made beforehand
	hashed  kind = "hashed"
)

// step is one call. What a verb doesn't need is zero.
type step struct {
	actor int
	verb  string
	keys  []int
	arg   string
}

func (s step) String() string {
	words := []string{fmt.Sprintf("T%d", s.actor+1), s.verb}
	for _, key := range s.keys {
		words = append(words, fmt.Sprintf("k%d", key))
	}
	if s.arg != "" {
		words = append(words, s.arg)
	}
	return strings.Join(words, " ")
}

func (p program) String() string {
	var b strings.Builder
	for i, kind := range p.keys {
		fmt.Fprintf(&b, "k%d is %s\n", i, kind)
	}
	for _, step := range p.steps {
		fmt.Fprintln(&b, step)
	}
	return b.String()
}

// verb is a call that programs make.
type verb struct {
	weight int  // how often it is made
	ends   bool // the next step of the actor is mostly Begin
	keys   func(r *rand.Rand, n int) []int
	args   []string // one of them
	call   func(a *actor, s step) answer
}

// randomProgram makes a program of lockVerbs.
func randomProgram(r *rand.Rand) program {
	p := program{keys: make([]kind, 3)}
	for i := range p.keys {
		p.keys[i] = []kind{ensured, ensured, ensured, ensured, hashed}[r.IntN(5)]
	}
	var names []string
	for name, v := range lockVerbs {
		names = append(names, slices.Repeat([]string{name}, v.weight)...)
	}
	slices.Sort(names) // the map has no order
	begun := make([]bool, 2+r.IntN(maxActors-1))
	for range 12 + r.IntN(20) {
		s := step{actor: r.IntN(len(begun)), verb: names[r.IntN(len(names))]}
		if !begun[s.actor] && r.IntN(20) > 0 {
			s.verb = "Begin"
		}
		v := lockVerbs[s.verb]
		begun[s.actor] = !v.ends
		if v.keys != nil {
			s.keys = v.keys(r, len(p.keys))
		}
		if len(v.args) > 0 {
			s.arg = v.args[r.IntN(len(v.args))]
		}
		p.steps = append(p.steps, s)
	}
	return p
}

// oneKey prefers the first, so that actors meet.
func oneKey(r *rand.Rand, n int) []int { return []int{max(0, r.IntN(n+2)-2)} }

func someKeys(r *rand.Rand, n int) []int { return r.Perm(n)[:1+r.IntN(n)] }

// shrink leaves out steps as long as the program fails, and returns the smallest one.
func shrink(p program, fails func(program) bool) program {
	for size := len(p.steps) / 2; size > 0; {
		smaller := false
		for from := 0; from < len(p.steps); {
			without := program{p.keys, slices.Delete(slices.Clone(p.steps), from, min(from+size, len(p.steps)))}
			if fails(without) {
				p, smaller = without, true
			} else {
				from += size
			}
		}
		if !smaller || size > 1 {
			size /= 2
		}
	}
	return p
}

// actor begins one transaction after the other. Its versions are those that it has seen.
type actor struct {
	number   int
	world    *sessions
	keys     []txlock.Key
	tx       *openTx
	versions map[int]uint64
}

// answer is what a call has returned: what it is in words, and tokens, whose numbers differ from world to world.
type answer struct {
	text   string
	tokens []keyToken
}

type keyToken struct {
	key   string
	token uint64
}

// names give tokens the same names in both worlds: those of a key are numbered as they come.
type names map[keyToken]int

func (n names) of(a answer) string {
	words := []string{a.text}
	for _, t := range a.tokens {
		if t.token == 0 {
			words = append(words, "no token")
			continue
		}
		if n[t] == 0 {
			last := keyToken{key: t.key}
			n[last]++
			n[t] = n[last]
		}
		words = append(words, fmt.Sprintf("token %d of %s", n[t], t.key))
	}
	return strings.Join(words, ", ")
}

// sentinels are what errors.Is looks for.
var sentinels = []error{
	txlock.ErrBusy, txlock.ErrWaitTimeout, txlock.ErrDeadlock, txlock.ErrStaleSnapshot, txlock.ErrTxDoomed, txlock.ErrConflict, txlock.ErrLost,
	txlock.ErrNotHeld, txlock.ErrUpgrade, txlock.ErrNoTransaction, txlock.ErrInvalidKey, txlock.ErrInvalidOption, sql.ErrTxDone,
}

// failed is the answer of an error.
func failed(err error) answer {
	if err == nil {
		return answer{text: "nil"}
	}
	var words []string
	for _, s := range sentinels {
		if errors.Is(err, s) {
			words = append(words, s.Error())
		}
	}
	if txlock.Retryable(err) {
		words = append(words, "retryable")
	}
	return answer{text: cmp.Or(strings.Join(words, ", "), "another error")}
}

func granted(grant txlock.Grant, err error) answer {
	if err != nil {
		return failed(err)
	}
	a := answer{tokens: []keyToken{{grant.Key().String(), grant.Token()}}}
	a.text = "exclusive"
	if grant.Shared() {
		a.text = "shared"
	}
	return a
}

// The limits of WaitAtMost: one that ends while nobody else does anything, and one that doesn't end in the test.
const (
	short = 200 * time.Millisecond
	long  = time.Hour
)

// limited are the calls that end by themselves.
func (s step) limited() bool {
	return strings.HasSuffix(s.arg, "short") || s.verb == "TryLock" || s.verb == "TryRLock" || s.verb == "LockAny"
}

// limits are those of a call that may wait.
var limits = []string{"", "", "", "short", "long"}

func (a *actor) limit(s step) *txlock.Scope {
	switch s.arg {
	case "short":
		return a.tx.WaitAtMost(short)
	case "long":
		return a.tx.WaitAtMost(long)
	}
	return a.tx.Scope
}

func (a *actor) key(s step) txlock.Key { return a.keys[s.keys[0]] }

func (a *actor) all(s step) (keys []txlock.Key) {
	for _, i := range s.keys {
		keys = append(keys, a.keys[i])
	}
	return keys
}

// endOfLocks ends all transactions, those that wait after the others, and reads what was committed.
func endOfLocks(p program) (steps []step) {
	for range maxActors {
		for i := range maxActors {
			steps = append(steps, step{actor: i, verb: "Rollback"})
		}
	}
	for i := range p.keys {
		for actor := range maxActors {
			steps = append(steps, step{actor: actor, verb: "ReadVersion", keys: []int{i}})
		}
	}
	return steps
}

var lockVerbs = map[string]verb{
	"Begin": {weight: 1, args: []string{"REPEATABLE READ", "REPEATABLE READ", "READ COMMITTED"}, call: (*actor).begin},
	"Lock": {weight: 9, keys: oneKey, args: limits, call: func(a *actor, s step) answer {
		return granted(a.limit(s).Lock(context.Background(), a.key(s)))
	}},
	"RLock": {weight: 6, keys: oneKey, args: limits, call: func(a *actor, s step) answer {
		return granted(a.limit(s).RLock(context.Background(), a.key(s)))
	}},
	"TryLock":        {weight: 3, keys: oneKey, call: func(a *actor, s step) answer { return granted(a.tx.TryLock(context.Background(), a.key(s))) }},
	"TryRLock":       {weight: 3, keys: oneKey, call: func(a *actor, s step) answer { return granted(a.tx.TryRLock(context.Background(), a.key(s))) }},
	"LockAll":        {weight: 4, keys: someKeys, args: limits, call: (*actor).lockAll},
	"LockMixed":      {weight: 3, keys: someKeys, args: limits, call: (*actor).lockMixed},
	"LockAny":        {weight: 2, keys: someKeys, call: func(a *actor, s step) answer { return granted(a.tx.LockAny(context.Background(), a.all(s)...)) }},
	"CompareAndBump": {weight: 4, keys: oneKey, args: []string{"seen", "seen", "seen", "0", "wrong", "seen short"}, call: (*actor).compareAndBump},
	"Version": {weight: 3, keys: oneKey, call: func(a *actor, s step) answer {
		version, err := a.tx.Version(context.Background(), a.key(s))
		return a.saw(s, version, err)
	}},
	"ReadVersion": {weight: 2, keys: oneKey, call: func(a *actor, s step) answer {
		version, err := txlock.ReadVersion(context.Background(), a.world.asked, a.key(s))
		return a.saw(s, version, err)
	}},
	"Held": {weight: 2, keys: oneKey, call: func(a *actor, s step) answer {
		grant, held := a.tx.Held(a.key(s))
		if !held {
			return answer{text: "not held"}
		}
		return granted(grant, nil)
	}},
	"Holders": {weight: 1, keys: oneKey, call: func(a *actor, s step) (found answer) {
		holders, err := txlock.Holders(context.Background(), a.world.asked, a.key(s))
		found = failed(err)
		for _, h := range holders {
			found.tokens = append(found.tokens, keyToken{h.Key.String(), h.Token})
		}
		return found
	}},
	"Verify":     {weight: 1, call: func(a *actor, _ step) answer { return failed(a.tx.Verify(context.Background())) }},
	"Read":       {weight: 4, call: func(a *actor, _ step) answer { return failed(a.tx.Snapshot()) }},
	"Savepoint":  {weight: 4, args: []string{"s1", "s1", "s2"}, call: func(a *actor, s step) answer { return failed(a.tx.Savepoint(s.arg)) }},
	"RollbackTo": {weight: 3, args: []string{"s1", "s1", "s1", "s2"}, call: func(a *actor, s step) answer { return failed(a.tx.RollbackTo(s.arg)) }},
	"Commit":     {weight: 6, ends: true, call: func(a *actor, _ step) answer { return failed(a.tx.Commit()) }},
	"Rollback":   {weight: 3, ends: true, call: func(a *actor, _ step) answer { return failed(a.tx.Rollback()) }},
}

// beginnings are the ways to begin a transaction.
var beginnings = map[string]*sql.TxOptions{"REPEATABLE READ": {Isolation: sql.LevelRepeatableRead}, "READ COMMITTED": {Isolation: sql.LevelReadCommitted}}

// begin ends what there was.
func (a *actor) begin(s step) answer {
	var ended error
	if a.tx != nil {
		if ended = a.tx.Rollback(); ended != nil && !errors.Is(ended, sql.ErrTxDone) {
			return failed(ended)
		}
	}
	var err error
	a.tx, err = a.world.begin(a.number, beginnings[s.arg])
	return failed(err)
}

func (a *actor) lockAll(s step) answer { return a.lockEach(s, a.all(s)) }

// lockMixed takes the first of several keys exclusively and the others shared.
func (a *actor) lockMixed(s step) answer {
	keys := a.all(s)
	for i := range keys[1:] {
		keys[i+1] = txlock.Shared(keys[i+1])
	}
	return a.lockEach(s, keys)
}

func (a *actor) lockEach(s step, keys []txlock.Key) answer {
	grants, err := a.limit(s).LockAll(context.Background(), keys...)
	all := failed(err)
	for _, grant := range grants {
		all.text += fmt.Sprintf(" shared: %t", grant.Shared())
		all.tokens = append(all.tokens, keyToken{grant.Key().String(), grant.Token()})
	}
	return all
}

func (a *actor) compareAndBump(s step) answer {
	var version uint64
	l := a.tx.Scope
	switch s.arg {
	case "seen short":
		l = a.tx.WaitAtMost(short)
		fallthrough
	case "seen":
		version = a.versions[s.keys[0]]
	case "wrong":
		version = 4711
	}
	err := l.CompareAndBump(context.Background(), a.key(s), version)
	bumped := failed(err)
	if grant, held := a.tx.Held(a.key(s)); err == nil && held {
		bumped.tokens = append(bumped.tokens, keyToken{grant.Key().String(), grant.Token()})
	}
	return bumped
}

func (a *actor) saw(s step, version uint64, err error) answer {
	if err != nil {
		return failed(err)
	}
	a.versions[s.keys[0]] = version
	return answer{text: "version", tokens: []keyToken{{a.key(s).String(), version}}}
}
