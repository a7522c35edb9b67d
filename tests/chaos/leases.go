package main

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/tests/linear"
	"github.com/dca00107/lockstep/txlock/lease"
)

// The leases, each of which one operation takes, uses and releases.

func (w *worker) acquire() outcome {
	key := w.one(leaseKeys)
	return w.alone("acquire", key, func(ctx context.Context) (*lease.Lease, error) { return w.leases.Acquire(ctx, keyOf(key)) })
}

func (w *worker) tryAcquire() outcome {
	key := w.one(leaseKeys)
	return w.alone("try acquire", key, func(ctx context.Context) (*lease.Lease, error) { return w.leases.TryAcquire(ctx, keyOf(key)) })
}

func (w *worker) acquireFair() outcome {
	key := w.one(leaseKeys)
	return w.alone("acquire fair", key, func(ctx context.Context) (*lease.Lease, error) {
		return w.leases.Acquire(ctx, keyOf(key), lease.Fair(), lease.WaitAtMost(opLimit/2))
	})
}

func (w *worker) acquireShared() outcome {
	key := w.one(sharedKeys)
	return w.alone("share", key, func(ctx context.Context) (*lease.Lease, error) { return w.leases.AcquireShared(ctx, keyOf(key)) })
}

func (w *worker) acquireWriter() outcome {
	key := w.one(sharedKeys)
	return w.alone("acquire among readers", key, func(ctx context.Context) (*lease.Lease, error) { return w.leases.Acquire(ctx, keyOf(key)) })
}

func (w *worker) acquirePermit() outcome {
	key := w.one(permitKeys)
	return w.alone("permit", key, func(ctx context.Context) (*lease.Lease, error) {
		semaphore, err := w.leases.Semaphore(keyOf(key), permits)
		if err != nil {
			return nil, err
		}
		return semaphore.Acquire(ctx)
	})
}

// acquireTx takes the lease in a transaction, which may have read before, and holds it when that
// is committed. Its key may have readers.
func (w *worker) acquireTx() outcome {
	key, reads := w.one(slices.Concat(leaseKeys, sharedKeys)), w.IntN(2) == 0
	return w.alone("acquire in a transaction", key, func(ctx context.Context) (l *lease.Lease, err error) {
		giveBack := func() {
			if l != nil {
				_ = l.Release(ctx) // of a transaction that was rolled back
			}
		}
		err = w.begun(w.pool)(ctx, func(tx *sql.Tx) (err error) {
			giveBack()
			if l = nil; reads {
				if _, err := (&transaction{Tx: tx}).value(ctx, key); err != nil && !errors.Is(err, sql.ErrNoRows) {
					return err
				}
			}
			l, err = w.leases.AcquireTx(ctx, tx, keyOf(key))
			return err
		})
		if err != nil {
			giveBack()
		}
		return l, err
	})
}

// shares tells whether a hold of that kind lets others in.
func shares(kind string) bool {
	return strings.Contains(kind, "share") || strings.Contains(kind, "permit")
}

// mostOf is how many may share a key.
func mostOf(key string) int {
	use, _, _ := strings.Cut(key, ":")
	switch {
	case use == "shared" || use == "herd" || key == askedReaders:
		return linear.Unlimited
	case use == "permit" || use == "seats" || key == askedPermits:
		return permits
	}
	return 0
}

// holding is a lease that is held, or a term.
type holding struct {
	w *worker
	fenced
	l     *lease.Lease // nil under a term
	id    string
	key   string
	valid atomic.Int64 // the last moment that Err said nil of
}

// alone takes a lease under no other, uses it for a while and releases it.
func (w *worker) alone(kind, key string, acquire func(ctx context.Context) (*lease.Lease, error)) outcome {
	return w.hold(context.Background(), kind, key, acquire, func(h *holding) { h.use(!shares(kind), kind != "permit") })
}

// hold takes a lease under a context, uses it and releases it.
func (w *worker) hold(ctx context.Context, kind, key string, acquire func(ctx context.Context) (*lease.Lease, error), use func(h *holding)) outcome {
	o := w.begin(kind, key)
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	l, err := acquire(ctx)
	granted := op{ID: o.ID, Return: w.now(), Outcome: succeeded}
	if err != nil {
		granted.Outcome, granted.Err = unknown, err.Error()
		if refused(err) {
			granted.Outcome = failed
		}
		w.journal.write(granted)
		return granted.Outcome
	}
	granted.Token = l.Token()
	w.journal.write(granted)
	h := &holding{w: w, fenced: l, l: l, id: o.ID, key: key}
	h.watched(func() { use(h) })
	w.journal.write(op{ID: o.ID, Valid: h.valid.Load()})
	release := w.begin("release", key)
	err = l.Release(ctx)
	w.journal.write(told(op{ID: release.ID, Return: w.now(), Of: o.ID}, err))
	return succeeded
}

// told notes what became of a call that has no effect beside its lease.
func told(o op, err error) op {
	o.Outcome = succeeded
	if err != nil {
		o.Outcome, o.Err = failed, err.Error()
	}
	return o
}

// watched watches the lease while it is used.
func (h *holding) watched(use func()) {
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { h.watch(done) })
	defer watching.Wait()
	defer close(done)
	use()
}

// use works under the lease, until it is lost or for a few rounds.
func (h *holding) use(writes, enters bool) {
	for range 1 + h.w.IntN(4) {
		h.pause()
		if h.w.stopped() || h.Err() != nil && h.w.Without != "guard" {
			return
		}
		switch h.w.IntN(6) {
		case 0:
			o := h.w.begin("renew", h.key)
			err := h.l.Renew(context.Background())
			h.w.journal.write(told(op{ID: o.ID, Return: h.w.now(), Of: h.id}, err))
		case 1:
			if enters {
				h.enter()
			}
		default:
			if writes && h.write() == unknown {
				return // the server may be about to commit it
			}
		}
	}
}

// pause waits for a part of the time to live, and rarely for longer than that.
func (h *holding) pause() {
	most := h.w.TTL / 8
	if h.w.IntN(20) == 0 {
		most = 2 * h.w.TTL
	}
	h.w.think(most)
}

// watch asks all the time whether the lease is valid, and notes it now and then, for the
// case that the process is killed.
func (h *holding) watch(done <-chan struct{}) {
	const every = int64(50 * time.Millisecond)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for noted := int64(0); ; {
		asked := h.w.now()
		if h.Err() != nil {
			return
		}
		h.valid.Store(asked)
		if asked-noted > every {
			noted = asked
			h.w.journal.write(op{ID: h.id, Valid: asked})
		}
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

// enter enters the lease again, and leaves it.
func (h *holding) enter() {
	o := h.w.begin("re-enter", h.key)
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	inside, end := h.l.Context(ctx)
	defer end()
	var again *lease.Lease
	var err error
	if h.l.Shared() {
		again, err = h.w.leases.AcquireShared(inside, keyOf(h.key))
	} else {
		again, err = h.w.leases.Acquire(inside, keyOf(h.key))
	}
	entered := told(op{ID: o.ID, Return: h.w.now(), Of: h.id}, err)
	if err == nil {
		entered.Token = again.Token()
		if err := again.Release(ctx); err != nil {
			entered.Err = err.Error()
		}
	}
	h.w.journal.write(entered)
}

// write raises the counter of the lease in a transaction that it guards.
func (h *holding) write() outcome {
	w := h.w
	return w.transact(w.begin("guarded write", h.key), w.begun(w.pool), func(ctx context.Context, t *transaction) error {
		value, err := t.value(ctx, h.key)
		if err != nil {
			return err
		}
		h.w.think(h.w.TTL / 20)
		if err := t.set(ctx, h.key, value+1, h.Token()); err != nil {
			return err
		}
		if w.Without == "guard" {
			return nil
		}
		return h.Guard(ctx, t.Tx)
	})
}
