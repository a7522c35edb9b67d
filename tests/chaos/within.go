package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// within takes a lease, and under its context lets goroutines take leases of other keys,
// which must exclude each other as everybody else.
func (w *worker) within() outcome {
	const goroutines = 3
	key := w.one(outerKeys)
	acquire := func(ctx context.Context) (*lease.Lease, error) { return w.leases.Acquire(ctx, keyOf(key)) }
	return w.hold(context.Background(), "acquire outside", key, acquire, func(outer *holding) {
		ctx, end := outer.l.Context(context.Background())
		defer end()
		if w.Without == "owner" {
			ctx = lease.WithOwner(ctx, outer.id)
		}
		var working sync.WaitGroup
		for i := range goroutines {
			inner := &worker{client: w.client, Rand: rand.New(rand.NewPCG(w.Uint64(), uint64(i))), name: fmt.Sprintf("%s-%d-g%d", w.name, w.seq, i)}
			working.Go(func() { inner.inside(ctx) })
		}
		working.Wait()
	})
}

// inside takes a lease under the context of another.
func (w *worker) inside(ctx context.Context) {
	key := w.one(innerKeys)
	acquire := func(ctx context.Context) (*lease.Lease, error) { return w.leases.Acquire(ctx, keyOf(key)) }
	w.hold(ctx, "acquire inside", key, acquire, func(h *holding) { h.use(true, true) })
}

// session looks whether a connection comes from the pool as the server makes them.
func (w *worker) session() outcome {
	o := w.begin("session")
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	var seen int64
	err := w.pool.QueryRowContext(ctx, "SELECT @@innodb_lock_wait_timeout").Scan(&seen)
	looked := told(op{ID: o.ID, Return: w.now(), Value: seen}, err)
	w.journal.write(looked)
	return looked.Outcome
}

// cancelled gives up while it waits for the second of two locks. Nothing is written.
func (w *worker) cancelled() outcome {
	names := w.some(lockKeys, 2)[:2]
	limit := time.Duration(1 + w.Int64N(int64(w.TTL/5)))
	run := func(ctx context.Context, fn func(tx *sql.Tx) error) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return w.begun(w.pool)(ctx, fn)
	}
	return w.transact(w.begin("cancelled", names...), run, func(_ context.Context, t *transaction) error {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		scope, err := locksqlc.Join(ctx, t.Tx)
		for i := 0; err == nil && i < len(names); i++ {
			_, err = scope.Lock(ctx, keyOf(names[i]))
		}
		return err
	})
}

// fresh locks a key that nobody has ever committed, and rolls back, as everybody does who
// locks it, several times.
func (w *worker) fresh() (last outcome) {
	const each, times = int64(5 * time.Second), 4
	key := fmt.Sprintf("fresh:%d", w.now()/each)
	for range times {
		last = w.freshOnce(key)
	}
	return last
}

func (w *worker) freshOnce(key string) outcome {
	limited, limit := w.IntN(2) == 0, time.Duration(1+w.Int64N(int64(3*w.TTL/2)))
	o := w.begin("fresh lock", key)
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	locked := op{ID: o.ID}
	err := locksqlc.Run(ctx, w.pool, nil, func(tx *sql.Tx) error {
		locked.Value, locked.Tries = 0, locked.Tries+1
		t := &transaction{Tx: tx, w: w}
		if err := t.touch(ctx, w.one(spots)); err != nil {
			return err
		}
		scope, err := locksqlc.Join(ctx, tx)
		if err != nil {
			return err
		}
		if limited {
			scope = scope.WaitAtMost(limit)
		}
		// It is noted as begun again: an earlier try has nothing to say of the order.
		locked.Call = w.now()
		grant, err := scope.Lock(ctx, txlock.Named(key))
		if err != nil {
			return err
		}
		locked.Value, locked.Return = int64(grant.Token()), w.now()
		return errors.Join(t.touch(ctx, w.one(spots)), errOnPurpose)
	}, w.isolation())
	if locked.Return == 0 {
		locked.Return = w.now()
	}
	locked.Outcome = failed
	if locked.Value > 0 {
		locked.Outcome = succeeded
	} else if err != nil {
		locked.Err = err.Error()
	}
	w.journal.write(locked)
	return locked.Outcome
}

// crowdTTL is the time to live of the leases of a crowd. It doesn't follow that of the
// clients: nothing is done to the crowd.
const crowdTTL = 6 * time.Second

// crowd holds one lease exclusively beside readers of as many keys as there are to be, and
// permits, for twice their time to live, on a server that has nothing else to do.
// None of them may be lost.
func (s *site) crowd(ctx context.Context) (err error) {
	if s.readers == 0 {
		return nil
	}
	base, err := mysql.NewConnector(s.config())
	if err != nil {
		return err
	}
	pool := sql.OpenDB(locksqlc.Connector(base))
	pool.SetMaxOpenConns(poolSize)
	defer func() { _ = pool.Close() }()
	leases, err := lease.NewManager(pool, lease.TTL(crowdTTL))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leases.Close(ctx)) }()
	kept := longestPause()
	held := make(chan *lease.Lease, s.readers+1)
	exclusive, err := leases.Acquire(ctx, txlock.Named("crowd"))
	if err != nil {
		return err
	}
	held <- exclusive
	numbers := make(chan int)
	var joining sync.WaitGroup
	for range poolSize {
		joining.Go(func() {
			for i := range numbers {
				l, err := s.joinCrowd(ctx, leases, i)
				if err != nil {
					s.add(stuck, "number %d of the crowd can't join: %v", i, err)
					continue
				}
				held <- l
			}
		})
	}
	for i := range s.readers {
		numbers <- i
	}
	close(numbers)
	joining.Wait()
	close(held)
	if err := sleep(ctx, 2*crowdTTL); err != nil {
		return err
	}
	gone, first := 0, error(nil)
	for l := range held {
		if err := l.Err(); err != nil {
			gone, first = gone+1, cmp.Or(first, err)
		}
	}
	if gone > 0 {
		s.add(lost, "%d leases of %d, to which nothing was done while this process was not kept from running for longer than %v, the first of them: %v", gone, s.readers+1, kept(), first)
	}
	return nil
}

// longestPause measures for how long at a time this process was not run, until it is asked.
func longestPause() func() time.Duration {
	const every = 10 * time.Millisecond
	stop, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for most, last := time.Duration(0), time.Now(); ; {
			select {
			case <-tick.C:
				now := time.Now()
				most, last = max(most, now.Sub(last)), now
			case <-stop:
				longest <- most
				return
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-longest
	}
}

// joinCrowd takes the lease of a reader, or every fourth time a permit.
func (s *site) joinCrowd(ctx context.Context, leases *lease.Manager, i int) (*lease.Lease, error) {
	key := txlock.Named(fmt.Sprintf("crowd:%d", i))
	if i%4 > 0 {
		return leases.AcquireShared(ctx, key)
	}
	semaphore, err := leases.Semaphore(key, permits)
	if err != nil {
		return nil, err
	}
	return semaphore.Acquire(ctx)
}
