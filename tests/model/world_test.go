package model_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/dca00107/lockstep/tests/model"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

const (
	start = int64(1_800_000_000_000_000)
	ttl   = int64(1_000_000)
)

var lease0 = model.At{Key: 0}

// TestModelExcludes proves of the model itself that, while no clock is set forward,
// no two owners have a lease that counts, and that tokens rise with each grant.
func TestModelExcludes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := model.New(start, false)
		last := uint64(0)
		owners := rapid.SampledFrom([]string{"", "ann", "bob"})
		rt.Repeat(map[string]func(*rapid.T){
			"acquire": func(rt *rapid.T) {
				h, err := w.TryAcquire(rapid.IntRange(0, 1).Draw(rt, "manager"), 0, owners.Draw(rt, "owner"), ttl)
				if err != nil {
					return
				}
				if h.Token < last {
					rt.Fatalf("token %d after %d", h.Token, last)
				}
				last = h.Token
			},
			"release": func(rt *rapid.T) {
				if len(w.Handles) > 0 {
					_ = w.Release(rapid.SampledFrom(w.Handles).Draw(rt, "handle"))
				}
			},
			"tick": func(*rapid.T) { w.Now++ },
			"": func(rt *rapid.T) {
				holders := make(map[string]uint64)
				for _, h := range w.Handles {
					if h.Err() == nil {
						holders[h.Owner] = h.Token
					}
				}
				if len(holders) > 1 || len(holders) == 1 && !w.Rows[lease0].Held(w.Now) {
					rt.Fatalf("%v believe that they hold %+v", holders, w.Rows[lease0])
				}
			},
		})
	})
}

// TestModel proves that the model knows the life of a lease.
func TestModel(t *testing.T) {
	t.Parallel()
	w := model.New(start, true)
	wants := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	take := func(manager int, owner string) *model.Handle {
		t.Helper()
		h, err := w.TryAcquire(manager, 0, owner, ttl)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	first := take(0, "ann")
	if first.Token != uint64(start) || !w.Rows[lease0].Held(w.Now) {
		t.Errorf("first grant: %+v, %+v", first, w.Rows[lease0])
	}
	_, err := w.TryAcquire(1, 0, "bob", ttl)
	wants("somebody else's", err, txlock.ErrBusy)
	if again := take(1, "ann"); again.Token != first.Token || len(w.Rows[lease0].Holds) != 2 {
		t.Errorf("entered again: %+v, %+v", again, w.Rows[lease0])
	}
	wants("Renew", w.Renew(first), nil)

	// Expired and taken over: the old holder finds out when it asks.
	w.Now += ttl
	next := take(1, "bob")
	if next.Token <= first.Token || first.Err() != nil {
		t.Errorf("taken over: %+v after %+v", next, first)
	}
	wants("Renew of a lease taken over", w.Renew(first), txlock.ErrLost)
	wants("Release of a lost lease", w.Release(first), txlock.ErrNotHeld)
	wants("second Release", w.Release(first), nil)

	// A transaction that guards it, and one whose snapshot is too old.
	w.Begin(true)
	wants("Guard", w.Guard(next), nil)
	wants("Release under the guard", w.Release(next), lease.ErrGuarded)
	if w.End(true); w.Rows[lease0].Guards != 1 || w.Rows[lease0].Held(w.Now) {
		t.Errorf("after the commit: %+v", w.Rows[lease0])
	}
	w.Begin(true)
	w.Read()
	late := take(0, "ann")
	wants("Guard under an old snapshot", w.Guard(late), txlock.ErrStaleSnapshot)
	w.End(false)

	// A lease of a transaction is there with its commit, or not at all.
	wants("Release", w.Release(late), nil)
	for _, commit := range []bool{false, true} {
		w.Begin(false)
		h, err := w.AcquireTx(0, 0, "ann", ttl)
		wants("AcquireTx", err, nil)
		w.End(commit)
		if held := w.Rows[lease0].Held(w.Now); held != commit {
			t.Errorf("held %v after commit %v", held, commit)
		}
		want := txlock.ErrNotHeld
		if commit {
			want = nil
		}
		wants("Release", w.Release(h), want)
	}

	// By force, and by the janitor.
	forced := take(0, "ann")
	wants("ForceRelease", w.ForceRelease(0), nil)
	wants("ForceRelease again", w.ForceRelease(0), txlock.ErrNotHeld)
	wants("Guarded by nobody", w.Renew(forced), txlock.ErrLost)
	if n := w.Clean(10 * ttl); n != 0 {
		t.Errorf("%d rows were removed too early", n)
	}
	w.Now += 12 * ttl
	if n := w.Clean(10 * ttl); n != 1 || w.Rows[lease0] != nil {
		t.Errorf("%d rows were removed", n)
	}
}

// TestModelShares proves of the model itself that, while the clock stands still, no
// writer has a lease that somebody else reads under, that a writer who waits keeps new
// readers out, and that no more permits are held than there are.
func TestModelShares(t *testing.T) {
	t.Parallel()
	const most = 2
	rapid.Check(t, func(rt *rapid.T) {
		w := model.New(start, false)
		owners := rapid.SampledFrom([]string{"", "ann", "bob"})
		manager := func(rt *rapid.T) int { return rapid.IntRange(0, 1).Draw(rt, "manager") }
		handle := func(rt *rapid.T, use func(h *model.Handle)) {
			if len(w.Handles) > 0 {
				use(rapid.SampledFrom(w.Handles).Draw(rt, "handle"))
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"acquire": func(rt *rapid.T) { _, _ = w.TryAcquire(manager(rt), 0, owners.Draw(rt, "owner"), ttl) },
			"share": func(rt *rapid.T) {
				owner := owners.Draw(rt, "owner")
				again := slices.ContainsFunc(w.Handles, func(h *model.Handle) bool { return h.Key == 0 && h.Owner == owner })
				h, err := w.TryAcquireShared(manager(rt), 0, owner, ttl)
				if gate := w.Rows[lease0]; err == nil && !again && gate.Held(w.Now) && gate.Owner != h.Owner {
					rt.Fatalf("%s has come beside a writer, or one who waits", h)
				}
			},
			"wait": func(rt *rapid.T) {
				if w.Waiting == nil {
					w.Acquire(manager(rt), 0, owners.Draw(rt, "owner"), ttl)
				}
			},
			"permit":    func(rt *rapid.T) { _, _ = w.TryPermit(manager(rt), 1, most, owners.Draw(rt, "owner"), ttl) },
			"downgrade": func(rt *rapid.T) { handle(rt, func(h *model.Handle) { _, _ = w.Downgrade(h) }) },
			"release":   func(rt *rapid.T) { handle(rt, func(h *model.Handle) { _ = w.Release(h) }) },
			"": func(rt *rapid.T) {
				w.Settle()
				permits := 0
				for _, h := range w.Handles {
					for _, other := range w.Handles {
						if h.Key == 0 && !h.Shared() && other.Key == 0 && h.Err() == nil && other.Err() == nil && h.Owner != other.Owner {
							rt.Fatalf("%s beside %s", other, h)
						}
					}
					if h.Key == 1 && h.Err() == nil {
						permits++
					}
				}
				if permits > most {
					rt.Fatalf("%d permits of %d", permits, most)
				}
			},
		})
	})
}
