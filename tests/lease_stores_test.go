//go:build onecpu

package tests

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

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

// bug is one that is planted, with the steps of the histories that look for it.
type bug struct {
	cast, name string
	steps      []string // nil for all
}

// board is what random histories are played on: a server over one kind of pool, with a
// bug planted for one key, or none.
type board struct {
	db      *testdb.DB
	guarded bool
	bug
	plant func(string) string // nil for no bug
}

// onStores calls with what to play on, on both servers over both kinds of pools; with a bug
// over one of them.
func onStores(t *testing.T, b bug, call func(t *testing.T, h board)) {
	for _, engine := range testdb.Engines() {
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			h := board{guarded: guarded, bug: b}
			if b.name != "" {
				h.plant = plant(t, b.name)
			}
			if h.plant != nil && !guarded {
				continue
			}
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				h.db = testdb.Shared(t, engine).OpenLeases(t)
				call(t, h)
			})
		}
	}
}

// play plays the history that rapid draws.
func (h board) play(t *testing.T, rt *rapid.T, failed func(error)) {
	inBubble(t, func(*testing.T) {
		p, err := newPlay(h.db, h.plant, h.guarded)
		if h.plant != nil {
			p.keys = 1
		}
		defer func() {
			if err := p.end(); err != nil && p.wrong == nil && h.plant == nil {
				failed(fmt.Errorf("end: %w\nafter:\n%s", err, strings.Join(p.steps, "\n")))
			}
		}()
		if err != nil {
			failed(err)
			return
		}
		p.run(rt, h.cast, testdb.Long(h.steps, nil), failed)
	})
}

// playSeed plays the history that rapid draws first from a seed, and returns what it finds.
func (h board) playSeed(t *testing.T, seed uint64) (found error) {
	rapid.Custom(func(rt *rapid.T) bool {
		h.play(t, rt, func(err error) { found = err })
		return true
	}).Example(int(seed)) //nolint:gosec // rapid makes it unsigned again
	return found
}

// knownSeeds are those of histories that have found something: where a test fails that
// draws new ones by night, the number behind the -rapid.seed that it prints is added here.
var knownSeeds = map[string][]uint64{
	"shared": {4308940837229211474, 9621963229036915770}, // AcquireTx waited for the neighbour of a key with readers
}

// TestStoresAgree proves of random histories of all operations that leases, shared leases and semaphores do the same on a
// server and in memory: errors, tokens, rows, who waits and for how long, and what each handle is told. By night they are new.
func TestStoresAgree(t *testing.T) {
	t.Parallel()
	for cast := range plays {
		t.Run(cast, func(t *testing.T) {
			t.Parallel()
			onStores(t, bug{cast: cast}, func(t *testing.T, h board) {
				for _, seed := range knownSeeds[cast] {
					wants(t, fmt.Sprintf("seed %d", seed), h.playSeed(t, seed), nil)
				}
				if t.Failed() { // rapid wants a test that has not
					return
				}
				rapid.Check(t, func(rt *rapid.T) { h.play(t, rt, func(err error) { rt.Fatal(err) }) })
			})
		})
	}
}

// TestStoresFindBugs proves that random histories find bugs that are planted in the statements on their way to the server;
// those that need several steps in one order by histories of few kinds of steps, and of all with LOCKSTEP_LONG=1.
func TestStoresFindBugs(t *testing.T) {
	t.Parallel()
	testdb.NeedsServer(t)
	for _, b := range []bug{
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
		t.Run(b.cast+"/"+b.name, func(t *testing.T) {
			t.Parallel()
			onStores(t, b, func(t *testing.T, h board) {
				for n := range testdb.Long[uint64](300, 40_000) {
					if h.playSeed(t, testdb.Seed()+n) != nil {
						t.Logf("found by history %d", n+1)
						return
					}
				}
				t.Errorf("not found from the seed %d on", testdb.Seed())
			})
		})
	}
}
