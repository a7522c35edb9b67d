package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// outers are the ways to get a context that carries a lease.
var outers = map[string]func(ctx context.Context, m *lease.Manager, wire *wire, key txlock.Key, fn func(ctx context.Context)) error{
	"Do": func(ctx context.Context, m *lease.Manager, _ *wire, key txlock.Key, fn func(ctx context.Context)) error {
		return m.Do(ctx, key, plain(fn))
	},
	"DoShared": func(ctx context.Context, m *lease.Manager, _ *wire, key txlock.Key, fn func(ctx context.Context)) error {
		return m.DoShared(ctx, key, plain(fn))
	},
	"Semaphore": func(ctx context.Context, m *lease.Manager, _ *wire, key txlock.Key, fn func(ctx context.Context)) error {
		s, err := m.Semaphore(key, 2)
		if err != nil {
			return err
		}
		return s.Do(ctx, plain(fn))
	},
	"Context": func(ctx context.Context, m *lease.Manager, _ *wire, key txlock.Key, fn func(ctx context.Context)) error {
		l, err := m.Acquire(ctx, key)
		if err != nil {
			return err
		}
		working, cancel := l.Context(ctx)
		defer cancel()
		fn(working)
		return l.Release(ctx)
	},
	"AcquireTx": func(ctx context.Context, m *lease.Manager, wire *wire, key txlock.Key, fn func(ctx context.Context)) error {
		l, err := commitTx(ctx, m, wire, key)
		if err != nil {
			return err
		}
		working, cancel := l.Context(ctx)
		defer cancel()
		fn(working)
		return l.Release(ctx)
	},
	"WithOwner inside of another Do": func(ctx context.Context, m *lease.Manager, _ *wire, key txlock.Key, fn func(ctx context.Context)) error {
		return m.Do(lease.WithOwner(ctx, "owner of "+key.String()), key, func(_ context.Context, l *lease.Lease) error {
			working, cancel := l.Context(ctx) // which has no such name
			defer cancel()
			fn(working)
			return nil
		})
	},
}

func plain(fn func(ctx context.Context)) func(context.Context, *lease.Lease) error {
	return func(ctx context.Context, _ *lease.Lease) error {
		fn(ctx)
		return nil
	}
}

// commitTx acquires in a transaction that commits.
func commitTx(ctx context.Context, m *lease.Manager, wire *wire, key txlock.Key) (*lease.Lease, error) {
	tx := wire.Begin()
	l, err := m.AcquireTx(ctx, tx, key)
	if err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return l, tx.Commit()
}

// inners are the ways to take a lease exclusively under that context.
var inners = map[string]func(ctx context.Context, m *lease.Manager, wire *wire, key txlock.Key) (*lease.Lease, error){
	"Acquire": func(ctx context.Context, m *lease.Manager, _ *wire, key txlock.Key) (*lease.Lease, error) {
		return m.Acquire(ctx, key)
	},
	"TryAcquire": func(ctx context.Context, m *lease.Manager, _ *wire, key txlock.Key) (*lease.Lease, error) {
		return untilFree(ctx, func() (*lease.Lease, error) { return m.TryAcquire(ctx, key) })
	},
	"AcquireTx": func(ctx context.Context, m *lease.Manager, wire *wire, key txlock.Key) (*lease.Lease, error) {
		return untilFree(ctx, func() (*lease.Lease, error) { return commitTx(ctx, m, wire, key) })
	},
	"one permit": func(ctx context.Context, m *lease.Manager, _ *wire, key txlock.Key) (*lease.Lease, error) {
		return permitOf(ctx, m, key)
	},
}

func untilFree(ctx context.Context, try func() (*lease.Lease, error)) (*lease.Lease, error) {
	for {
		l, err := try()
		if !errors.Is(err, txlock.ErrBusy) && !txlock.Retryable(err) || ctx.Err() != nil {
			return l, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// excludes lets goroutines take a lease one after the other, and returns how many were
// inside at once at most.
func excludes(t *testing.T, goroutines int, acquire func() (*lease.Lease, error)) (most int64) {
	t.Helper()
	var all sync.WaitGroup
	var inside, seen atomic.Int64
	for range goroutines {
		all.Go(func() {
			l, err := acquire()
			if err != nil {
				t.Error(err)
				return
			}
			n := inside.Add(1)
			for before := seen.Load(); n > before && !seen.CompareAndSwap(before, n); before = seen.Load() {
			}
			time.Sleep(time.Millisecond) // for others to come in
			inside.Add(-1)
			// Another one's AcquireTx may have the row for a moment: then it is released behind that.
			if err := l.Release(context.WithoutCancel(t.Context())); err != nil && !errors.Is(err, lease.ErrGuarded) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return seen.Load()
}

// TestOtherKeysExclude proves that under the context of a lease goroutines exclude each
// other by the leases of other keys, however the one and the others are taken.
func TestOtherKeysExclude(t *testing.T) {
	for outer, do := range outers {
		for inner, acquire := range inners {
			runInMemory(t, outer+", "+inner, func(t *testing.T, db *memory) {
				m, wire := db.process()
				must(t, do(t.Context(), m, wire, job, func(ctx context.Context) {
					if most := excludes(t, 6, func() (*lease.Lease, error) { return acquire(ctx, m, wire, txlock.Named("another")) }); most != 1 {
						t.Errorf("%d were inside at once", most)
					}
				}))
			})
		}
	}
}

// TestContextOfATransaction proves that under the context of a lease which was acquired in
// a transaction its key is re-entered once that has committed, and that goroutines
// exclude each other once it was rolled back.
func TestContextOfATransaction(t *testing.T) {
	for inner, get := range inners {
		if inner == "one permit" {
			continue // of a key of its own
		}
		runInMemory(t, inner, func(t *testing.T, db *memory) {
			m, wire := db.process()
			tx := wire.Begin()
			l := acquireTx(t, m, tx, job)
			working := contextOf(t, l)
			must(t, tx.Commit())
			again, err := get(working, m, wire, job)
			must(t, err)
			entered(t, again, l)
			release(t, again, l)

			tx = wire.Begin()
			l = acquireTx(t, m, tx, job)
			ctx := context.WithoutCancel(contextOf(t, l))
			must(t, tx.Rollback())
			time.Sleep(time.Millisecond) // a token is the time of its grant
			equal(t, "inside at once", excludes(t, 6, func() (*lease.Lease, error) { return get(ctx, m, wire, job) }), 1)
			wants(t, "the lease that was rolled back", l.Err(), txlock.ErrLost)
		})
	}
}

// TestRestartUnderTheSameName proves that a program which was started again under the name
// of its owner takes the lease over from its former self, with a higher token, and has
// nothing left of that to release.
func TestRestartUnderTheSameName(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, key := newManager(t, pool), named()
		ctx := lease.WithOwner(t.Context(), "worker-7")
		before := acquireIn(ctx, t, m, key)
		// As another process has written it.
		exec(t, db, "UPDATE lockstep_leases SET holders = CONCAT(';12345678', RIGHT(holders, 14)) WHERE name = ? AND slot = 0", key.String())
		started := newManager(t, pool)
		l := mustLease(t)(started.TryAcquire(ctx, key))
		higher(t, l, before)
		again, err := newManager(t, pool).TryAcquire(ctx, key)
		if err != nil || again.Token() != l.Token() {
			t.Fatalf("in another manager of the process: %v", err)
		}
		wants(t, "Renew of the former", before.Renew(t.Context()), txlock.ErrLost)
		release(t, again, l)
		release(t, acquire(t, newManager(t, pool), key, lease.WaitAtMost(1)))
	})
}

// TestNameOfADeadReader proves that a program that was started again under its owner's name
// waits for the reader that it was, whose time will be over: that is no upgrade.
func TestNameOfADeadReader(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, key := newManager(t, pool), named()
		ctx := lease.WithOwner(t.Context(), "reader of "+key.String())
		release(t, share(t, m, key))
		readers(t, db, key, 1, ";of a process that is dead", "UNIX_TIMESTAMP() * 1000000 + 3600000000")
		exec(t, db, "UPDATE lockstep_leases SET owner = ? WHERE name = ? AND slot > 0", "reader of "+key.String(), key.String())
		wants(t, "TryAcquire", second(m.TryAcquire(ctx, key)), txlock.ErrBusy)
		exec(t, db, "UPDATE lockstep_leases SET expires_us = UNIX_TIMESTAMP() * 1000000 + 1000000 WHERE name = ? AND slot > 0", key.String())
		l, err := m.Acquire(ctx, key)
		wantsNone(t, "Acquire", err)
		release(t, l)
	})
}

// TestWriterWhoReadsReEnters proves that the holder of the lease re-enters it under its
// context by a third manager also where it reads by a second, whose reader can't become a writer.
func TestWriterWhoReadsReEnters(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		key := named()
		reading := newManager(t, newPool(t, db, true))
		before := share(t, reading, key) // it is of readers, too
		working := contextOf(t, before)
		wants(t, "Acquire of a reader by another pool", second(newManager(t, pool).Acquire(working, key, lease.WaitAtMost(time.Minute))), txlock.ErrUpgrade)
		release(t, before)
		wantsNone(t, "Do", newManager(t, pool).Do(t.Context(), key, func(ctx context.Context, l *lease.Lease) error {
			reader, err := reading.TryAcquireShared(ctx, key)
			if err != nil {
				return err
			}
			again, err := newManager(t, pool).TryAcquire(ctx, key)
			if err == nil && again.Token() != l.Token() {
				t.Errorf("token %d, want %d", again.Token(), l.Token())
			}
			if err == nil {
				err = again.Release(ctx)
			}
			return errors.Join(err, reader.Release(ctx))
		}))
	})
}
