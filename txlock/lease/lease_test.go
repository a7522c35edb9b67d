package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestAcquireExcludes(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		one, other := newManager(t, pool), newManager(t, pool)
		key := named()
		l := acquire(t, one, key)
		for _, m := range []*lease.Manager{one, other} {
			_, err := m.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire of a held lease", err, txlock.ErrBusy)
		}
		if err := l.Err(); err != nil {
			t.Errorf("Err: %v", err)
		}
		release(t, l)
		wants(t, "Err after the release", l.Err(), txlock.ErrNotHeld)
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("second Release: %v", err)
		}
		next, err := other.TryAcquire(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
		release(t, next)
	})
}

func TestAcquireWaits(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		for name, m := range map[string]*lease.Manager{"same manager": nil, "another": newManager(t, pool)} {
			t.Run(name, func(t *testing.T) {
				first := newManager(t, pool)
				if m == nil {
					m = first
				}
				key := named()
				l := acquire(t, first, key)
				_, err := m.Acquire(t.Context(), key, lease.WaitAtMost(30*time.Millisecond))
				wants(t, "WaitAtMost", err, txlock.ErrWaitTimeout)
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
				defer cancel()
				_, err = m.Acquire(ctx, key)
				wants(t, "deadline", err, context.DeadlineExceeded)
				got := make(chan *lease.Lease)
				go func() {
					next, err := m.Acquire(t.Context(), key)
					if err != nil {
						t.Errorf("Acquire: %v", err)
					}
					got <- next
				}()
				time.Sleep(20 * time.Millisecond)
				release(t, l)
				next := <-got
				if next.Token() <= l.Token() {
					t.Errorf("token %d after %d", next.Token(), l.Token())
				}
				release(t, next)
			})
		}
	})
}

// oftenRenewed is a lease that no busy machine lets expire, and whose renewals come soon.
var oftenRenewed = []lease.ManagerOption{lease.TTL(time.Minute), lease.RenewEvery(50 * time.Millisecond)}

// renewed returns when the rows say that a lease of a key was renewed.
func renewed(t *testing.T, db *testdb.DB, l *lease.Lease) {
	t.Helper()
	last := func() int64 {
		return number(t, db, "SELECT MAX(expires_us) FROM lockstep_leases WHERE name = ?", l.Key().String())
	}
	before := last()
	if !testdb.Await(soon, func() bool { return last() > before }) {
		t.Errorf("the lease of %v is not renewed", l.Key())
	}
}

func TestRenewalKeepsIt(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool, oftenRenewed...), newManager(t, pool)
		key := named()
		l := acquire(t, m, key)
		for range 3 {
			renewed(t, db, l)
			if _, err := other.TryAcquire(t.Context(), key); !errors.Is(err, txlock.ErrBusy) {
				t.Fatalf("TryAcquire: %v", err)
			}
			if err := l.Err(); err != nil {
				t.Fatalf("Err: %v", err)
			}
		}
		exec(t, db, "UPDATE lockstep_leases SET token = token + 1 WHERE name = ?", key.String())
		<-l.Done()
		wants(t, "Err of a lease taken away", l.Err(), txlock.ErrLost)
		wants(t, "its Release", l.Release(t.Context()), txlock.ErrNotHeld, txlock.ErrLost)
	})
}

func TestReentry(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		key := named()
		err := m.Do(t.Context(), key, func(ctx context.Context, l *lease.Lease) error {
			return m.Do(ctx, key, func(ctx context.Context, again *lease.Lease) error {
				if again.Token() != l.Token() {
					t.Errorf("token %d inside of %d", again.Token(), l.Token())
				}
				elsewhere, err := other.TryAcquire(ctx, key)
				if err != nil {
					return err
				}
				if elsewhere.Token() != l.Token() {
					t.Errorf("token %d in another manager, %d in the first", elsewhere.Token(), l.Token())
				}
				_, err = other.TryAcquire(t.Context(), key)
				wants(t, "another owner", err, txlock.ErrBusy)
				return elsewhere.Release(ctx)
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		release(t, acquire(t, other, key))
	})
}

func TestGuard(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool)
		key := named()
		l := acquire(t, m, key)
		tx, err := pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Guard(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if err := l.Guard(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		_, err = m.TryAcquire(t.Context(), key)
		wants(t, "TryAcquire of a guarded lease", err, txlock.ErrBusy)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		exec(t, db, "UPDATE lockstep_leases SET token = token + 1 WHERE name = ?", key.String())
		tx, err = pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		wants(t, "Guard of a lease taken away", l.Guard(t.Context(), tx), txlock.ErrLost)
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
	})
}

func TestAcquireTx(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool, oftenRenewed...), newManager(t, pool)
		for _, commit := range []bool{true, false} {
			key := named()
			tx, err := pool.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			l, err := m.AcquireTx(t.Context(), tx, key)
			if err != nil {
				t.Fatal(err)
			}
			_, err = other.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire before the commit", err, txlock.ErrBusy)
			if !commit {
				if err := tx.Rollback(); err != nil {
					t.Fatal(err)
				}
				<-l.Done()
				wants(t, "Err after the rollback", l.Err(), txlock.ErrLost)
				release(t, acquire(t, other, key))
				wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
				continue
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			renewed(t, db, l)
			if err := l.Err(); err != nil {
				t.Error(err)
			}
			_, err = other.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire after the commit", err, txlock.ErrBusy)
			release(t, l)
		}
	})
}

func TestInspect(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, _ *sql.DB) {
		db = testdb.Shared(t, db.Engine()).OpenLeases(t) // with no cleanup but this
		m := newManager(t, newPool(t, db, strings.HasSuffix(t.Name(), "guarded")))
		key := named()
		info, err := m.Inspect(t.Context(), key)
		if err != nil || info.Held {
			t.Errorf("Inspect before: %+v, %v", info, err)
		}
		l := acquire(t, m, key, lease.TTL(time.Minute))
		info, err = m.Inspect(t.Context(), key)
		if err != nil || !info.Held || info.Owner != l.Owner() || info.Token != l.Token() || info.TTL != time.Minute || info.Holders != 1 || info.Remaining < 50*time.Second {
			t.Errorf("Inspect: %+v, %v", info, err)
		}
		all, err := m.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, i := range all {
			found = found || i.Key == key && i.Held
		}
		if !found {
			t.Errorf("List of %d has not %v", len(all), key)
		}
		if err := m.ForceRelease(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		wants(t, "ForceRelease again", m.ForceRelease(t.Context(), key), txlock.ErrNotHeld)
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost)
		next := acquire(t, m, key)
		if next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
		release(t, next)
		exec(t, db, "UPDATE lockstep_leases SET expires_us = 0, token = token - 5000000 WHERE name = ?", key.String())
		n, err := m.Purge(t.Context())
		if err != nil || n == 0 {
			t.Errorf("Purge: %d, %v", n, err)
		}
		if n := number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ?", key.String()); n != 0 {
			t.Error("the row was not removed")
		}
	})
}
