package tests

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// plays are the steps of each kind of history.
var plays = map[string]func(*play) map[string]func(*rapid.T){
	"exclusive": func(p *play) map[string]func(*rapid.T) {
		return map[string]func(*rapid.T){
			"acquire": p.acquire, "acquire again": p.acquire, "acquire waiting": p.acquireWaiting, "acquireTx": p.acquireTx,
			"give up": p.giveUp, "force": p.force, "revoke": p.revoke, "fill": p.fill, "clean": p.clean,
		}
	},
	"shared": func(p *play) map[string]func(*rapid.T) {
		return map[string]func(*rapid.T){
			"acquire": p.acquire, "acquire waiting": p.acquireWaiting, "share": p.share, "share again": p.share, "share waiting": p.shareWaiting,
			"acquireTx": p.acquireTx, "downgrade": p.downgrade, "downgrade again": p.downgrade, "give up": p.giveUp, "force": p.force, "revoke": p.revoke,
			"misuse": p.misuseShared, "clean": p.clean,
		}
	},
	"permits": func(p *play) map[string]func(*rapid.T) {
		return map[string]func(*rapid.T){
			"permit": p.permit, "permit again": p.permit, "permit waiting": p.permitWaiting, "force": p.force, "revoke": p.revoke, "clean": p.clean,
			"resize": p.resize, "give up": p.giveUp, "misuse": p.misusePermits,
		}
	},
}

// run plays a random history, of the steps of these names where there are any, and returns
// the first difference.
func (p *play) run(rt *rapid.T, cast string, only []string, failed func(error)) {
	steps := map[string]func(*rapid.T){
		"guard": p.guard, "read": p.read,
		"commit":   func(*rapid.T) { p.finish(true) },
		"rollback": func(*rapid.T) { p.finish(false) },
		"release":  p.release, "renew": p.renew, "tick": p.tick, "leave": p.leave,
		"": func(*rapid.T) {
			if p.compare(); p.wrong != nil {
				failed(p.wrong)
			}
		},
	}
	maps.Copy(steps, plays[cast](p))
	if only != nil {
		maps.DeleteFunc(steps, func(name string, _ func(*rapid.T)) bool { return name != "" && !slices.Contains(only, name) })
	}
	rt.Repeat(steps)
}

// inBubble calls in a bubble of testing/synctest what may end by a panic, as rapid ends a
// history.
func inBubble(t *testing.T, call func(t *testing.T)) {
	var ended any
	synctest.Test(t, func(t *testing.T) {
		defer func() { ended = recover() }()
		call(t)
	})
	// rapid tells failures apart by where they come from.
	if fmt.Sprintf("%T", ended) == "rapid.invalidData" {
		panic(ended)
	}
	if ended != nil {
		panic(ended)
	}
}

// bug is one that is planted, with the steps of the histories that look for it.
type bug struct {
	cast, name string
	steps      []string // nil for all
}

// onStores plays random histories on both servers over both kinds of pools; with a bug
// planted, until it is found, over one of them and for one key.
func onStores(t *testing.T, cast string, only []string, rewrite func(string) string, failed func(t *testing.T, rt *rapid.T, err error)) {
	for _, engine := range testdb.Engines() {
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			if rewrite != nil && !guarded {
				continue
			}
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, engine).OpenLeases(t)
				over := false
				check := func(rt *rapid.T) {
					if over {
						return
					}
					inBubble(t, func(*testing.T) {
						p, err := newPlay(db, rewrite, guarded)
						if rewrite != nil {
							p.keys = 1
						}
						defer func() {
							if err := p.end(); err != nil && p.wrong == nil && rewrite == nil {
								rt.Errorf("end: %v\nafter:\n%s", err, strings.Join(p.steps, "\n"))
							}
						}()
						if err != nil {
							rt.Fatal(err)
						}
						p.run(rt, cast, only, func(err error) {
							over = rewrite != nil // what was looked for is found
							failed(t, rt, err)
						})
					})
				}
				rapid.Check(t, check)
				for n := 0; rewrite != nil && !over && n < 40; n++ { // it takes a few histories
					rapid.Check(t, check)
				}
			})
		}
	}
}

// TestStoresAgree proves of random histories of all operations that leases, shared leases
// and semaphores do the same on a server and on the store in memory: errors, tokens, rows,
// who waits and for how long, and what each handle is told.
func TestStoresAgree(t *testing.T) {
	t.Parallel()
	for cast := range plays {
		t.Run(cast, func(t *testing.T) {
			t.Parallel()
			onStores(t, cast, nil, nil, func(_ *testing.T, rt *rapid.T, err error) { rt.Fatal(err) })
		})
	}
}

// TestStoresFindBugs proves that random histories find what they are for: bugs that are
// planted in the statements on their way to the server. Bugs that need several steps in one
// order are looked for in histories of few kinds of steps, and in those of all with
// LOCKSTEP_LONG=1.
func TestStoresFindBugs(t *testing.T) {
	t.Parallel()
	testdb.NeedsServer(t)
	for _, bug := range []bug{
		{"exclusive", "two owners", nil}, {"exclusive", "lost release", nil},
		{"exclusive", "freed too early", []string{"acquire", "release", "tick"}},
		{"exclusive", "guard past the time to live", []string{"acquire", "guard", "rollback", "tick"}},
		{"shared", "reader beside a writer", nil}, {"shared", "writer beside readers", nil},
		{"shared", "intent forgotten", []string{"acquire waiting", "share", "share again", "release"}},
		{"shared", "intent without end", []string{"acquire waiting", "share", "share again", "tick", "leave"}},
		{"shared", "downgrade with a gap", nil},
		{"permits", "one permit more", []string{"permit", "permit again", "resize", "release"}},
		{"permits", "any number", nil}, {"permits", "dead permit", []string{"permit", "permit again", "tick"}},
	} {
		t.Run(bug.cast+"/"+bug.name, func(t *testing.T) {
			t.Parallel()
			found := make(map[string]bool)
			var mu sync.Mutex
			t.Run("histories", func(t *testing.T) {
				onStores(t, bug.cast, testdb.Long(bug.steps, nil), plant(t, bug.name), func(t *testing.T, _ *rapid.T, _ error) {
					mu.Lock()
					defer mu.Unlock()
					found[t.Name()] = true
				})
			})
			if want := len(testdb.Engines()); len(found) != want {
				t.Errorf("found on %v, want %d", found, want)
			}
		})
	}
}
