package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dca00107/lockstep/txlock/lease"
)

// A herd is hundreds of readers and holders of permits of one client, beside those of others
// and writers.
const (
	ofHerd    = "herd:"
	ofSeats   = "seats:"
	herdKeys  = 60
	herders   = 5  // goroutines
	eachHerds = 50 // leases
)

// herd takes leases by the hundred, keeps them for some times to live and releases them.
func (w *worker) herd() outcome {
	var working sync.WaitGroup
	for i := range herders {
		inner := &worker{client: w.client, Rand: rand.New(rand.NewPCG(w.Uint64(), uint64(i))), name: fmt.Sprintf("%s-%d-h%d", w.name, w.seq, i)}
		working.Go(inner.graze)
	}
	working.Wait()
	w.seq++ // another herd has other names
	return succeeded
}

// graze takes a part of a herd.
func (w *worker) graze() {
	var herd []*holding
	for range eachHerds {
		if h := w.joinHerd(); h != nil {
			herd = append(herd, h)
		}
	}
	end := time.Now().Add(w.TTL + time.Duration(w.Int64N(int64(2*w.TTL))))
	for time.Now().Before(end) && !w.stopped() {
		asked := w.now()
		for _, h := range herd {
			if h.Err() == nil {
				h.valid.Store(asked)
			}
		}
		w.think(10 * time.Millisecond)
	}
	for _, h := range herd {
		w.journal.write(op{ID: h.id, Valid: h.valid.Load()})
		release := w.begin("release of a herd", h.key)
		ctx, cancel := context.WithTimeout(context.Background(), opLimit)
		err := h.l.Release(ctx)
		cancel()
		w.journal.write(told(op{ID: release.ID, Return: w.now(), Of: h.id}, err))
	}
}

// joinHerd takes a lease if there is room, and nil where there isn't.
func (w *worker) joinHerd() *holding {
	key, kind := fmt.Sprint(ofHerd, w.IntN(herdKeys)), "share of a herd"
	acquire := func(ctx context.Context) (*lease.Lease, error) { return w.leases.TryAcquireShared(ctx, keyOf(key)) }
	if w.IntN(4) == 0 {
		key, kind = fmt.Sprint(ofSeats, w.IntN(herdKeys)), "permit of a herd"
		acquire = func(ctx context.Context) (*lease.Lease, error) {
			semaphore, err := w.leases.Semaphore(keyOf(key), permits)
			if err != nil {
				return nil, err
			}
			return semaphore.TryAcquire(ctx)
		}
	}
	o := w.begin(kind, key)
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	l, err := acquire(ctx)
	if err != nil {
		came := op{ID: o.ID, Return: w.now(), Outcome: unknown, Err: err.Error()}
		if refused(err) {
			came.Outcome = failed
		}
		w.journal.write(came)
		return nil
	}
	w.journal.write(op{ID: o.ID, Return: w.now(), Outcome: succeeded, Token: l.Token()})
	return &holding{w: w, fenced: l, l: l, id: o.ID, key: key}
}

// amongHerds takes a key for writing that herds read.
func (w *worker) amongHerds() outcome {
	key := fmt.Sprint(ofHerd, w.IntN(herdKeys))
	return w.hold(context.Background(), "acquire among herds", key, func(ctx context.Context) (*lease.Lease, error) {
		return w.leases.Acquire(ctx, keyOf(key), lease.WaitAtMost(2*w.TTL))
	}, func(h *holding) { h.use(false, false) })
}
