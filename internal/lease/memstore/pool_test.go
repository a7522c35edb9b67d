package memstore_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// onPool runs a test in a bubble, on a pool of one connection and a manager on it.
func onPool(t *testing.T, test func(t *testing.T, s *memstore.Store, pool *sql.DB, m *lease.Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New().Store()
		pool := s.Pool()
		pool.SetMaxOpenConns(1)
		m, err := lease.NewManager(pool)
		must(t, err)
		test(t, s, pool, m)
		must(t, m.Close(ctx))
		must(t, pool.Close())
	})
}

// TestPool proves that a pool leads to its store, is the same each time, and takes no SQL.
func TestPool(t *testing.T) {
	onPool(t, func(t *testing.T, s *memstore.Store, pool *sql.DB, _ *lease.Manager) {
		if store.Of(pool) != store.Store(s) || s.Pool() != pool {
			t.Error("the pool has another store, or the store another pool")
		}
		must(t, pool.PingContext(ctx))
		s.Down(nil)
		wantErr(t, pool.PingContext(ctx), mysql.ErrInvalidConn)
		s.Up()
		_, err := pool.ExecContext(ctx, "DO 1")
		if err == nil || !strings.Contains(err.Error(), "no SQL") {
			t.Errorf("a statement: %v", err)
		}
		tx, err := pool.BeginTx(ctx, nil)
		must(t, err)
		if err := tx.QueryRowContext(ctx, "SELECT 1").Scan(new(int)); err == nil || !strings.Contains(err.Error(), "no SQL") {
			t.Errorf("a statement in a transaction: %v", err)
		}
		must(t, tx.Rollback())
		for _, o := range []sql.TxOptions{{ReadOnly: true}, {Isolation: sql.LevelSerializable}} {
			if _, err := pool.BeginTx(ctx, &o); err == nil {
				t.Errorf("there is a transaction with %+v", o)
			}
		}
		readCommitted, err := pool.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		must(t, err)
		must(t, readCommitted.Commit())
	})
}

// TestPoolGuards proves that a lease that is guarded in a transaction of the pool is kept
// until the end of that, and freed then, however it ends.
func TestPoolGuards(t *testing.T) {
	down := func(s *memstore.Store, tx *sql.Tx) error {
		s.Down(nil)
		defer s.Up()
		return tx.Commit()
	}
	for _, c := range []struct {
		name string
		end  func(s *memstore.Store, tx *sql.Tx) error
		want error
	}{
		{"commit", func(_ *memstore.Store, tx *sql.Tx) error { return tx.Commit() }, nil},
		{"roll back", func(_ *memstore.Store, tx *sql.Tx) error { return tx.Rollback() }, nil},
		{"lose the connection", down, mysql.ErrInvalidConn},
	} {
		t.Run(c.name, func(t *testing.T) {
			onPool(t, func(t *testing.T, s *memstore.Store, pool *sql.DB, m *lease.Manager) {
				l, err := m.Acquire(ctx, txlock.Named(key))
				must(t, err)
				tx, err := pool.BeginTx(ctx, nil)
				must(t, err)
				must(t, l.Guard(ctx, tx))
				wantErr(t, s.Make(ctx, leaseRow), store.ErrLocked)
				wantErr(t, c.end(s, tx), c.want)
				must(t, s.Make(ctx, leaseRow))
				wantErr(t, l.Guard(ctx, tx), txlock.ErrNoTransaction)
				must(t, l.Err())
				must(t, l.Release(ctx))
			})
		})
	}
}

// TestPoolAcquireTx proves that a lease that is acquired in a transaction of the pool comes
// with its commit, and that the end of the transaction's context is its end.
func TestPoolAcquireTx(t *testing.T) {
	onPool(t, func(t *testing.T, s *memstore.Store, pool *sql.DB, m *lease.Manager) {
		must(t, s.Make(ctx, leaseRow))
		working, cancel := context.WithCancel(ctx)
		defer cancel()
		for _, keep := range []bool{false, true} {
			tx, err := pool.BeginTx(working, nil)
			must(t, err)
			l, err := m.AcquireTx(ctx, tx, txlock.Named(key))
			must(t, err)
			glance, err := s.Look(ctx, leaseRow)
			if must(t, err); glance.Held() {
				t.Error("it is seen before the commit")
			}
			if keep {
				must(t, tx.Commit())
			} else {
				cancel()
				synctest.Wait()
				working = ctx
			}
			glance, err = s.Look(ctx, leaseRow)
			if must(t, err); glance.Held() != keep {
				t.Errorf("after the end held is %t", glance.Held())
			}
			time.Sleep(time.Minute)
			if l.Valid() != keep {
				t.Errorf("after a minute: %v", l.Err())
			}
			_ = l.Release(ctx) // it may be lost
		}
	})
}

// TestTransactionsOfOthers proves that nothing is sent in a transaction of another pool,
// where a guard acts at once.
func TestTransactionsOfOthers(t *testing.T) {
	onPool(t, func(t *testing.T, s *memstore.Store, _ *sql.DB, m *lease.Manager) {
		mocked, mock, err := sqlmock.New()
		must(t, err)
		mock.ExpectBegin()
		mock.ExpectRollback()
		mock.ExpectClose()
		tx, err := mocked.BeginTx(ctx, nil)
		must(t, err)
		l, err := m.Acquire(ctx, txlock.Named(key))
		must(t, err)
		must(t, l.Guard(ctx, tx))
		must(t, s.Make(ctx, leaseRow))
		must(t, tx.Rollback())
		must(t, mocked.Close())
		must(t, mock.ExpectationsWereMet())
	})
}
