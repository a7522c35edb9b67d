package main

import (
	"context"
	"time"

	"github.com/dca00107/lockstep/txlock/lease"
)

// tooSoon is a sort of violation: a key was granted that was to be held for longer.
const tooSoon = "too soon"

// ofKept begins the keys that are held at least for a while.
const ofKept = "kept:"

var keptKeys = []string{ofKept + "1", ofKept + "2"}

// keep holds a key at least for a while, for work that is mostly shorter.
func (w *worker) keep() outcome {
	key, atLeast := w.one(keptKeys), time.Duration(1+w.IntN(3))*w.TTL/2
	kind, acquire := "try to keep", w.leases.TryAcquire
	if w.IntN(3) == 0 {
		kind, acquire = "keep", w.leases.Acquire
	}
	return w.hold(context.Background(), kind, key, func(ctx context.Context) (*lease.Lease, error) {
		return acquire(ctx, keyOf(key), lease.HoldAtLeast(atLeast), lease.WaitAtMost(2*w.TTL))
	}, func(h *holding) {
		w.journal.write(op{ID: h.id, Owner: h.l.Owner(), AtLeast: int64(atLeast)})
		h.use(false, false)
	})
}

// tryKept looks whether a key is free that others keep held.
func (w *worker) tryKept() outcome {
	key := w.one(keptKeys)
	return w.hold(context.Background(), "try what is kept", key, func(ctx context.Context) (*lease.Lease, error) {
		return w.leases.TryAcquire(ctx, keyOf(key))
	}, func(h *holding) { w.journal.write(op{ID: h.id, Owner: h.l.Owner()}) })
}

// checkKept checks that nobody was granted a key before the time was over for which one
// who has released it was to hold it: by the clock of the clients, from the call of the one
// to the answer of the other, and by that of the server, which a token is of its grant, and
// which decides: where it was set meanwhile there is nothing to check.
func (v *verdict) checkKept(history []*op, released map[string]*op) {
	for _, o := range history {
		end := released[o.ID]
		if o.AtLeast == 0 || end == nil || end.Outcome != succeeded {
			continue
		}
		for _, next := range history {
			if next.Token <= o.Token || next.Outcome != succeeded || next.Keys[0] != o.Keys[0] || leapt(v.leaps, o.Call, next.Return) {
				continue
			}
			passed := next.Return - o.Call
			if behind(v.leaps, 0, next.Return) == 0 { // else tokens may be ahead of the clock
				passed = min(passed, int64(next.Token-o.Token)*1000)
			}
			if passed < o.AtLeast-o.AtLeast/100 {
				v.add(tooSoon, "%s: %s was granted %v after %s, which was to hold it for %v", o.Keys[0],
					next.ID, time.Duration(passed), o.ID, time.Duration(o.AtLeast))
			}
		}
	}
}
