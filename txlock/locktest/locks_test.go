package locktest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// The limits of WaitAtMost: one that ends while nobody else does anything, and one that
// doesn't end in the test.
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

func (a *actor) limit(s step) locks {
	switch s.arg {
	case "short":
		return a.tx.atMost(short)
	case "long":
		return a.tx.atMost(long)
	}
	return a.tx
}

func (a *actor) key(s step) txlock.Key { return a.keys[s.keys[0]] }

func (a *actor) all(s step) (keys []txlock.Key) {
	for _, i := range s.keys {
		keys = append(keys, a.keys[i])
	}
	return keys
}

// locksGame is that of transaction locks.
var locksGame = game{verbs: lockVerbs, begin: "Begin", last: endOfLocks}

// endOfLocks ends all transactions, those that wait after the others, and reads what was
// committed.
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
	"TryLock": {weight: 3, keys: oneKey, call: func(a *actor, s step) answer {
		return granted(a.tx.TryLock(context.Background(), a.key(s)))
	}},
	"TryRLock": {weight: 3, keys: oneKey, call: func(a *actor, s step) answer {
		return granted(a.tx.TryRLock(context.Background(), a.key(s)))
	}},
	"LockAll":   {weight: 4, keys: someKeys, args: limits, call: (*actor).lockAll},
	"LockMixed": {weight: 3, keys: someKeys, args: limits, call: (*actor).lockMixed},
	"LockAny": {weight: 2, keys: someKeys, call: func(a *actor, s step) answer {
		return granted(a.tx.LockAny(context.Background(), a.all(s)...))
	}},
	"CompareAndBump": {weight: 4, keys: oneKey, args: []string{"seen", "seen", "seen", "0", "wrong", "seen short"}, call: (*actor).compareAndBump},
	"Version": {weight: 3, keys: oneKey, call: func(a *actor, s step) answer {
		version, err := a.tx.Version(context.Background(), a.key(s))
		return a.saw(s, version, err)
	}},
	"ReadVersion": {weight: 2, keys: oneKey, call: func(a *actor, s step) answer {
		version, err := a.world.readVersion(context.Background(), a.key(s))
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
		holders, err := a.world.holders(context.Background(), a.key(s))
		found = failed(err)
		for _, h := range holders {
			found.tokens = append(found.tokens, keyToken{h.Key.String(), h.Token})
		}
		return found
	}},
	"Verify":     {weight: 1, call: func(a *actor, _ step) answer { return failed(a.tx.Verify(context.Background())) }},
	"Read":       {weight: 4, call: func(a *actor, _ step) answer { return failed(a.tx.Snapshot()) }},
	"Savepoint":  {weight: 4, args: []string{"s1", "s1", "s2"}, call: func(a *actor, s step) answer { return failed(a.tx.Savepoint(s.arg)) }},
	"RollbackTo": {weight: 3, args: []string{"s1", "s1", "s1", "s2"}, call: (*actor).rollbackTo},
	"Commit":     {weight: 6, ends: true, call: func(a *actor, _ step) answer { return failed(a.tx.Commit()) }},
	"Rollback":   {weight: 3, ends: true, call: func(a *actor, _ step) answer { return failed(a.tx.Rollback()) }},
}

// beginnings are the ways to begin a transaction.
var beginnings = map[string]*sql.TxOptions{
	"REPEATABLE READ":  {Isolation: sql.LevelRepeatableRead},
	"READ COMMITTED":   {Isolation: sql.LevelReadCommitted},
	"READ UNCOMMITTED": {Isolation: sql.LevelReadUncommitted},
	"SERIALIZABLE":     {Isolation: sql.LevelSerializable},
	"READ ONLY":        {ReadOnly: true},
	"default":          nil,
}

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

func (a *actor) rollbackTo(s step) answer {
	return failed(a.tx.RollbackTo(s.arg))
}

func (a *actor) lockAll(s step) answer {
	grants, err := a.limit(s).LockAll(context.Background(), a.all(s)...)
	all := failed(err)
	for _, grant := range grants {
		all.tokens = append(all.tokens, keyToken{grant.Key().String(), grant.Token()})
	}
	return all
}

// lockMixed takes the first of several keys exclusively and the others shared.
func (a *actor) lockMixed(s step) answer {
	keys := a.all(s)
	for i := range keys[1:] {
		keys[i+1] = txlock.Shared(keys[i+1])
	}
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
	l := locks(a.tx)
	switch s.arg {
	case "seen short":
		l = a.tx.atMost(short)
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
