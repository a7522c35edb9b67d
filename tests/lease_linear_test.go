package tests

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dca00107/lockstep/internal/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// verb is an operation of a history.
type verb string

const (
	acquire   verb = "acquire"
	share     verb = "share" // a reader's place, or a permit
	downgrade verb = "downgrade"
	release   verb = "release"
	force     verb = "force"
	inspect   verb = "inspect"
)

// call is one operation on one key, and reply what came of it.
type call struct {
	verb  verb
	owner string // of a release and a downgrade, whose lease it is
	// excused tells that another call changed the key at the same time: a row that
	// is locked for a moment makes a try busy.
	excused bool
}

type reply struct {
	ok      bool // granted, released, downgraded, held
	unknown bool // it is carried out behind the call, some time
	owner   string
	token   uint64
}

// holding is the state of one key: a writer with the token of the last grant, and
// the others.
type holding struct {
	owner   string // of the writer, "" for none
	token   uint64
	sharing string // the owners of readers or permits, sorted, each in brackets
}

func (s holding) shared(owner string) bool { return strings.Contains(s.sharing, "["+owner+"]") }

func (s holding) enter(owner string) holding {
	all := append(strings.SplitAfter(s.sharing, "]"), "["+owner+"]")
	slices.Sort(all)
	s.sharing = strings.Join(all, "")
	return s
}

// step tells what a call may reply in a state, where at most so many share it.
func (s holding) step(c call, r reply, most int) (bool, holding) {
	free := s.owner == "" && s.sharing == ""
	room := s.owner == "" && strings.Count(s.sharing, "[") < most
	switch c.verb {
	case acquire:
		if !r.ok {
			return !free || c.excused, s
		}
		return free && r.token > s.token, holding{owner: r.owner, token: r.token}
	case share:
		if !r.ok {
			return !room || c.excused, s
		}
		return room, s.enter(r.owner)
	case downgrade:
		if !r.ok {
			return s.owner != c.owner || c.excused, s
		}
		return s.owner == c.owner, holding{token: s.token}.enter(c.owner)
	case release:
		held := s.owner == c.owner || s.shared(c.owner)
		if !r.unknown && r.ok != held {
			return false, s
		}
		if s.owner == c.owner {
			s.owner = ""
		}
		s.sharing = strings.Replace(s.sharing, "["+c.owner+"]", "", 1)
		return true, s
	case force:
		if !r.ok {
			return s.owner == "", s
		}
		return s.owner != "", holding{token: s.token + 1, sharing: s.sharing}
	default: // inspect, which among readers may show a writer who only tries
		return most > 0 || r.ok == (s.owner != "") && r.token == s.token && (!r.ok || r.owner == s.owner), s
	}
}

// linearizable tells whether the calls on a key could have come one after the other,
// each at a moment between its begin and its end (Herlihy and Wing, "Linearizability",
// 1990).
func linearizable(t *testing.T, history []porcupine.Operation, most int) bool {
	t.Helper()
	for i, op := range history {
		c := op.Input.(call)
		c.excused = slices.ContainsFunc(history, func(other porcupine.Operation) bool {
			return other.ClientId != op.ClientId && other.Input.(call).verb != inspect && other.Call <= op.Return && op.Call <= other.Return
		})
		history[i].Input = c
	}
	result := porcupine.CheckOperationsTimeout(porcupine.Model{
		Init: func() any { return holding{} },
		Step: func(state, input, output any) (bool, any) {
			return state.(holding).step(input.(call), output.(reply), most)
		},
	}, history, 20*time.Second)
	if result == porcupine.Unknown {
		t.Fatalf("a history of %d calls took too long to check", len(history))
	}
	return result == porcupine.Ok
}

// cast is who plays: the calls that each client chooses from.
type cast struct {
	most   int // so many share
	verbs  []verb
	permit bool
}

var casts = map[string]cast{
	"exclusive": {verbs: []verb{acquire, acquire, acquire, force, inspect}},
	"shared":    {most: 1 << 30, verbs: []verb{acquire, acquire, share, share}},
	"permits":   {most: 2, verbs: []verb{share}, permit: true},
}

// record plays a history of clients on a new key. A client has at most one lease; what
// it does with that is to release it or, for a writer among readers, to downgrade it.
func (c cast) record(t *testing.T, managers []*lease.Manager, calls int) []porcupine.Operation {
	t.Helper()
	const clients = 4
	key := txlock.Named("linear:" + rand.Text())
	begun := time.Now()
	histories := make([][]porcupine.Operation, clients)
	var playing sync.WaitGroup
	for id := range clients {
		playing.Go(func() {
			p := client{cast: c, m: managers[id%len(managers)], key: key}
			for i := range calls + 1 {
				op := porcupine.Operation{ClientId: id}
				in := p.choose(i == calls)
				if in.verb == "" {
					break
				}
				op.Call = time.Since(begun).Nanoseconds()
				out, err := p.play(in)
				op.Return = time.Since(begun).Nanoseconds()
				if err != nil {
					t.Errorf("%s: %v", in.verb, err)
					return
				}
				if out.unknown {
					op.Return = 1<<63 - 1
				}
				op.Input, op.Output = in, out
				histories[id] = append(histories[id], op)
			}
		})
	}
	playing.Wait()
	return slices.Concat(histories...)
}

// client is one of the concurrent clients.
type client struct {
	cast
	m    *lease.Manager
	key  txlock.Key
	held *lease.Lease
}

// choose chooses the next call. The last gives back what is held.
func (p *client) choose(last bool) call {
	switch {
	case p.held != nil && !last && p.most > 2 && !p.held.Shared() && mathrand.IntN(2) == 0:
		return call{verb: downgrade, owner: p.held.Owner()}
	case p.held != nil && (last || mathrand.IntN(3) > 0):
		return call{verb: release, owner: p.held.Owner()}
	case last:
		return call{}
	case p.held != nil && !p.permit:
		return call{verb: inspect}
	case p.held != nil:
		return call{verb: release, owner: p.held.Owner()}
	}
	return call{verb: p.verbs[mathrand.IntN(len(p.verbs))]}
}

// play calls it.
func (p *client) play(c call) (r reply, err error) {
	ctx := context.Background()
	l := p.held
	switch c.verb {
	case acquire:
		l, err = p.m.TryAcquire(ctx, p.key)
	case share:
		if !p.permit {
			l, err = p.m.TryAcquireShared(ctx, p.key)
			break
		}
		var s *lease.Semaphore
		if s, err = p.m.Semaphore(p.key, p.most); err == nil {
			l, err = s.TryAcquire(ctx)
		}
	case downgrade:
		l, err = l.Downgrade(ctx)
		if err != nil {
			l = p.held
		}
	case release:
		err, l = l.Release(ctx), nil
		r.unknown = errors.Is(err, lease.ErrGuarded)
	case force:
		err = p.m.ForceRelease(ctx, p.key)
	case inspect:
		info, err := p.m.Inspect(ctx, p.key)
		return reply{ok: info.Held, owner: info.Owner, token: info.Token}, err
	}
	p.held = l
	if r.ok = err == nil; r.ok && l != nil {
		r.owner, r.token = l.Owner(), l.Token()
	}
	for _, refusal := range []error{txlock.ErrBusy, txlock.ErrNotHeld, lease.ErrGuarded} {
		if errors.Is(err, refusal) {
			err = nil
		}
	}
	return r, err
}

// linearManagers are managers on pools of their own.
func linearManagers(t *testing.T, db *testdb.DB, w wire) (managers []*lease.Manager) {
	t.Helper()
	for i := range 3 {
		managers = append(managers, faultManager(t, w.open(t, db, i%2 == 0), lease.TTL(10*time.Minute)))
	}
	return managers
}

// TestLinearizable proves of random concurrent histories that they are linearizable:
// there is an order of all calls in which one holder, or readers, or so many permits
// follow each other, with rising tokens, and everybody was told the truth.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	rounds := 10
	if os.Getenv("LOCKSTEP_LONG") != "" {
		rounds = 300
	}
	for _, engine := range testdb.Engines() {
		for name, c := range casts {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				managers := linearManagers(t, testdb.Open(t, engine), wire{})
				for range rounds {
					history := c.record(t, managers, 12)
					if !linearizable(t, history, c.most) {
						t.Fatalf("not linearizable:\n%s", told(history))
					}
				}
			})
		}
	}
}

// told is a history in the order of its calls.
func told(history []porcupine.Operation) string {
	var b strings.Builder
	for _, op := range slices.SortedFunc(slices.Values(history), func(a, b porcupine.Operation) int { return int(a.Call - b.Call) }) {
		fmt.Fprintf(&b, "%d: %v-%v %+v %+v\n", op.ClientId, time.Duration(op.Call), time.Duration(op.Return), op.Input, op.Output)
	}
	return b.String()
}

// TestLinearizableFindsBugs proves that the check finds what it is for: bugs that are
// planted in the statements on their way to the server.
func TestLinearizableFindsBugs(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, bug := range []struct{ name, cast string }{
			{"two owners", "exclusive"}, {"same token", "exclusive"}, {"lost release", "exclusive"},
			{"lost release", "shared"}, {"no room", "shared"}, {"no room", "permits"},
		} {
			t.Run(string(engine)+"/"+bug.name+"/"+bug.cast, func(t *testing.T) {
				t.Parallel()
				c := casts[bug.cast]
				managers := linearManagers(t, testdb.Open(t, engine), wire{rewrite: plant(t, bug.name)})
				for range 30 {
					if !linearizable(t, c.record(t, managers, 12), c.most) {
						return
					}
				}
				t.Error("the bug was not found")
			})
		}
	}
}
