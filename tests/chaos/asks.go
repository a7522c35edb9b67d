package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// The sorts of violations of questions.
const (
	notTold = "not told" // a holder goes on that was not told of a question
	misled  = "misled"   // somebody was told of a question that was another's
)

// ofAsked begins the keys whose holders are asked to give them up.
const ofAsked = "asked:"

// The keys that are asked for: such as one has, that of readers and writers, and that of
// permits.
const (
	askedReaders = ofAsked + "readers"
	askedPermits = ofAsked + "permits"
)

var (
	askedLeases = []string{ofAsked + "1", ofAsked + "2", askedReaders}
	askedKeys   = append(askedLeases, askedPermits)
)

// anAsked is one of the keys, or that which is of the guard that is off.
func (w *worker) anAsked() string {
	if of := guards[w.Without].of; slices.Contains(askedKeys, of) {
		return of
	}
	return w.one(askedKeys)
}

// wanted is a way to acquire a key that is asked for, with its kind.
type wanted struct {
	kind    string
	acquire func(ctx context.Context, options ...lease.AcquireOption) (*lease.Lease, error)
}

// want chooses how to acquire a key. The second way doesn't wait.
func (w *worker) want(key string) (waits, tries wanted) {
	if key == askedPermits {
		semaphore, err := w.leases.Semaphore(keyOf(key), permits)
		if err != nil {
			panic(err)
		}
		return wanted{"permit until asked", semaphore.Acquire}, wanted{"try permit until asked", semaphore.TryAcquire}
	}
	of := func(acquire func(context.Context, txlock.Key, ...lease.AcquireOption) (*lease.Lease, error)) func(context.Context, ...lease.AcquireOption) (*lease.Lease, error) {
		return func(ctx context.Context, options ...lease.AcquireOption) (*lease.Lease, error) {
			return acquire(ctx, keyOf(key), options...)
		}
	}
	if key == askedReaders && w.IntN(4) > 0 {
		return wanted{"share until asked", of(w.leases.AcquireShared)}, wanted{"try share until asked", of(w.leases.TryAcquireShared)}
	}
	return wanted{"hold until asked", of(w.leases.Acquire)}, wanted{"try to hold until asked", of(w.leases.TryAcquire)}
}

// untilAsked holds a key until somebody asks for it, and mostly gives it up then.
func (w *worker) untilAsked() outcome {
	key := w.anAsked()
	way, tries := w.want(key)
	if w.IntN(2) == 0 {
		way = tries
	}
	return w.hold(context.Background(), way.kind, key, func(ctx context.Context) (*lease.Lease, error) {
		return way.acquire(ctx, lease.WaitAtMost(2*w.TTL))
	}, (*holding).listen)
}

// listen waits for a question, for longer than it may take to be told of it if it is
// patient. Who renews by hand is told with that.
func (h *holding) listen() {
	w := h.w
	w.journal.write(op{ID: h.id, Owner: h.l.Owner()})
	revoked := h.l.ReleaseRequested()
	if h.key != askedPermits && !h.l.Shared() && w.IntN(3) == 0 && h.write() == unknown {
		return // the server may be about to commit it
	}
	patience := w.TTL
	if w.Without != "" || w.IntN(3) == 0 {
		patience = toldWithin(w.TTL) + 2*w.TTL
	}
	end := time.NewTimer(patience)
	defer end.Stop()
	renewing := time.NewTicker(w.TTL / 5)
	defer renewing.Stop()
	if w.IntN(2) == 0 {
		renewing.Stop()
	}
	for {
		select {
		case <-revoked:
			why, _ := h.l.ReleaseReason()
			w.journal.write(op{ID: h.id, Told: w.now(), Question: why})
			if w.IntN(4) == 0 {
				h.pause() // it may go on
			}
			return
		case <-renewing.C:
			ctx, cancel := context.WithTimeout(context.Background(), opLimit)
			_ = h.l.Renew(ctx)
			cancel()
		case <-h.l.Done():
			return
		case <-w.stop:
			return
		case <-end.C:
			return
		}
	}
}

// ask asks for a key, and tries to get what was given up.
func (w *worker) ask() outcome {
	key := w.anAsked()
	o := w.begin("ask", key)
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	err := w.leases.RequestRelease(ctx, keyOf(key), o.ID)
	asked := op{ID: o.ID, Return: w.now(), Outcome: succeeded}
	if err != nil {
		asked.Outcome, asked.Err = unknown, err.Error()
		if errors.Is(err, txlock.ErrNotHeld) {
			asked.Outcome = failed
		}
	}
	w.journal.write(asked)
	if asked.Outcome != succeeded {
		return asked.Outcome
	}
	for range 10 {
		w.think(w.TTL / 5)
		_, way := w.want(key)
		came := w.hold(context.Background(), way.kind, key, func(ctx context.Context) (*lease.Lease, error) {
			return way.acquire(ctx)
		}, func(h *holding) {
			w.journal.write(op{ID: h.id, Owner: h.l.Owner()})
			h.pause()
			if why, asked := h.l.ReleaseReason(); asked {
				w.journal.write(op{ID: h.id, Told: w.now(), Question: why})
			}
		})
		if came != failed {
			break
		}
	}
	return asked.Outcome
}

// toldWithin is how long after Ask has returned a holder may still believe in its lease who
// was told of nothing. Who believes in it for longer than the time to live has renewed it
// after the question; where nothing is told by a renewal, it is by the next.
func toldWithin(ttl time.Duration) time.Duration { return 2*ttl + time.Second }

// checkAsks checks that a holder who goes on is told of a question, and nobody of one that
// was answered before.
func (v *verdict) checkAsks(history []*op, seen []sight, ttl time.Duration) {
	asks, byKey := make(map[string]*op), make(map[string][]*op)
	for _, o := range history {
		if o.Kind == "ask" {
			asks[o.ID] = o
			byKey[o.Keys[0]] = append(byKey[o.Keys[0]], o)
		}
	}
	asked := make(map[place][]uint64) // the tokens of those who were asked
	for _, o := range history {
		if o.Token == 0 || o.Outcome != succeeded {
			continue
		}
		v.checkTold(o, byKey[o.Keys[0]], toldWithin(ttl))
		if o.Told > 0 && v.checkAddressee(o, asks[o.Question]) && !shares(o.Kind) {
			asked[place{o.Question, 0}] = append(asked[place{o.Question, 0}], o.Token)
		}
	}
	for _, s := range seen {
		if at := (place{s.question, s.slot}); s.held && asks[s.question] != nil {
			asked[at] = append(asked[at], s.token)
		}
	}
	for at, tokens := range asked {
		slices.Sort(tokens)
		if tokens = slices.Compact(tokens); len(tokens) > 1 {
			v.add(misled, "%s: what %s has asked has reached, in slot %d, the holders with the tokens %d", asks[at.question].Keys[0], at.question, at.slot, tokens)
		}
	}
}

// place is the slot of a question's key. One holder at a time has it.
type place struct {
	question string
	slot     int64
}

// checkTold checks that a hold which goes on was told of each question, and that nobody
// was told that there is none.
func (v *verdict) checkTold(o *op, asks []*op, limit time.Duration) {
	valid := certain(v.leaps, o.Call, o.Return, o.Valid)
	for _, ask := range asks {
		by := ask.Return + int64(limit)
		switch {
		case ask.Call <= o.Return:
		case ask.Outcome == succeeded && valid > by && (o.Told == 0 || o.Told > by):
			v.add(notTold, "%s: %s has gone on for %v after %s had asked", o.Keys[0], o.ID, time.Duration(valid-ask.Return), ask.ID)
			return
		case ask.Outcome == failed && valid > ask.Return:
			v.add(notTold, "%s: %s has it all the time, and %s was told that nobody has: %s", o.Keys[0], o.ID, ask.ID, ask.Err)
			return
		}
	}
}

// checkAddressee checks that what a hold was told was asked, and not before it was wanted.
func (v *verdict) checkAddressee(o, ask *op) (ok bool) {
	if ask == nil || ask.Keys[0] != o.Keys[0] {
		v.add(misled, "%s: %s was told %q, which nobody has asked", o.Keys[0], o.ID, o.Question)
		return false
	}
	if ask.Return > 0 && o.Call > ask.Return {
		v.add(misled, "%s: %s was told what %s had asked before it wanted the key", o.Keys[0], o.ID, ask.ID)
	}
	return true
}

// tellAsks tells how long after Ask had returned holders were told.
func tellAsks(history []*op) string {
	returned := make(map[string]int64)
	for _, o := range history {
		if o.Kind == "ask" {
			returned[o.ID] = o.Return
		}
	}
	var took []time.Duration
	for _, o := range history {
		if at := returned[o.Question]; at > 0 {
			took = append(took, max(0, time.Duration(o.Told-at)))
		}
	}
	if len(took) == 0 {
		return ""
	}
	slices.Sort(took)
	part := func(n int) time.Duration { return took[(len(took)-1)*n/100].Round(time.Millisecond) }
	return fmt.Sprintf("  %d holders were told of a question: half of them within %v, 9 of 10 within %v, all within %v\n", len(took), part(50), part(90), part(100))
}
