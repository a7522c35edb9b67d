package tests

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/faults"
	"github.com/dca00107/lockstep/tests/linear"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// linearizable tells whether the calls on a key could have come one after the other,
// each at a moment between its begin and its end (Herlihy and Wing, "Linearizability",
// 1990).
func linearizable(t *testing.T, history []porcupine.Operation, most int) bool {
	t.Helper()
	for i, op := range history {
		c := op.Input.(linear.Call)
		c.Excused = slices.ContainsFunc(history, func(other porcupine.Operation) bool {
			return other.ClientId != op.ClientId && other.Input.(linear.Call).Verb != linear.Inspect && other.Call <= op.Return && op.Call <= other.Return
		})
		history[i].Input = c
	}
	result := linear.Check(history, most, 20*time.Second)
	if result == porcupine.Unknown {
		t.Fatalf("a history of %d calls took too long to check", len(history))
	}
	return result == porcupine.Ok
}

// cast is who plays: the calls that each client chooses from.
type cast struct {
	most   int // so many share
	verbs  []linear.Verb
	permit bool
}

var casts = map[string]cast{
	"exclusive": {verbs: []linear.Verb{linear.Acquire, linear.Acquire, linear.Acquire, linear.Force, linear.Inspect}},
	"shared":    {most: linear.Unlimited, verbs: []linear.Verb{linear.Acquire, linear.Acquire, linear.Share, linear.Share}},
	"permits":   {most: 2, verbs: []linear.Verb{linear.Share}, permit: true},
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
				if in.Verb == "" {
					break
				}
				op.Call = time.Since(begun).Nanoseconds()
				out, err := p.play(in)
				op.Return = time.Since(begun).Nanoseconds()
				if err != nil {
					t.Errorf("%s: %v", in.Verb, err)
					return
				}
				if out.Unknown {
					op.Return = linear.Forever
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

// choose chooses the next call. The last releases what is held.
func (p *client) choose(last bool) linear.Call {
	switch {
	case p.held != nil && !last && p.most > 2 && !p.held.Shared() && mathrand.IntN(2) == 0:
		return linear.Call{Verb: linear.Downgrade, Owner: p.held.Owner()}
	case p.held != nil && (last || mathrand.IntN(3) > 0):
		return linear.Call{Verb: linear.Release, Owner: p.held.Owner()}
	case last:
		return linear.Call{}
	case p.held != nil && !p.permit:
		return linear.Call{Verb: linear.Inspect}
	case p.held != nil:
		return linear.Call{Verb: linear.Release, Owner: p.held.Owner()}
	}
	return linear.Call{Verb: p.verbs[mathrand.IntN(len(p.verbs))]}
}

// play calls it.
func (p *client) play(c linear.Call) (r linear.Reply, err error) {
	ctx := context.Background()
	l := p.held
	switch c.Verb {
	case linear.Acquire:
		l, err = p.m.TryAcquire(ctx, p.key)
	case linear.Share:
		if !p.permit {
			l, err = p.m.TryAcquireShared(ctx, p.key)
			break
		}
		var s *lease.Semaphore
		if s, err = p.m.Semaphore(p.key, p.most); err == nil {
			l, err = s.TryAcquire(ctx)
		}
	case linear.Downgrade:
		l, err = l.Downgrade(ctx)
		if err != nil {
			l = p.held
		}
	case linear.Release:
		err, l = l.Release(ctx), nil
		r.Unknown = errors.Is(err, lease.ErrGuarded)
	case linear.Force:
		err = p.m.ForceRelease(ctx, p.key)
	case linear.Inspect:
		info, err := p.m.Inspect(ctx, p.key)
		return linear.Reply{OK: info.Held, Owner: info.Owner, Token: info.Token}, err
	}
	p.held = l
	if r.OK = err == nil; r.OK && l != nil {
		r.Owner, r.Token = l.Owner(), l.Token()
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
	rounds := testdb.Long(10, 300)
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

// plant returns what rewrites the statements.
func plant(t *testing.T, bug string) func(string) string {
	t.Helper()
	rewrite, err := faults.Plant(bug)
	fatal(t, err)
	return rewrite
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
				for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
					if !linearizable(t, c.record(t, managers, 12), c.most) {
						return
					}
				}
				t.Error("the bug was not found")
			})
		}
	}
}
