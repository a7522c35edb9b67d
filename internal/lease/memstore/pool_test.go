package memstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var must = leasetest.Must

var ctx = context.Background()

const key = "job"

var leaseRow = store.Row{Key: key}

func wantErr(t *testing.T, err, wanted error) {
	t.Helper()
	if !errors.Is(err, wanted) {
		t.Fatalf("got error %v, want %v", err, wanted)
	}
}

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

// TestDeadlock proves that of two transactions that wait for each other one is the victim, and is told
// that it can be started again.
func TestDeadlock(t *testing.T) {
	onPool(t, func(t *testing.T, _ *memstore.Store, pool *sql.DB, m *lease.Manager) {
		pool.SetMaxOpenConns(2)
		var leases [2]*lease.Lease
		var txs [2]*sql.Tx
		for i := range txs {
			var err error
			leases[i], err = m.Acquire(ctx, txlock.Named(fmt.Sprint(key, i)))
			must(t, err)
			txs[i], err = pool.BeginTx(ctx, nil)
			must(t, err)
			must(t, leases[i].Guard(ctx, txs[i]))
		}
		done := make(chan error, 1)
		go func() { done <- leases[1].Guard(ctx, txs[0]) }()
		synctest.Wait()
		err := leases[0].Guard(ctx, txs[1])
		if !errors.Is(err, txlock.ErrDeadlock) || !txlock.Retryable(err) || fault.Unknown(err) {
			t.Errorf("the victim is told %v", err)
		}
		must(t, <-done)
		wantErr(t, txs[1].Commit(), txlock.ErrTxDoomed)
		must(t, txs[0].Commit())
	})
}

// TestReadersAndSnapshots proves what the statements say that a server's wouldn't be asked for so exactly: of
// readers and their times, and to a transaction that has read before others wrote.
func TestReadersAndSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		s, holds := memstore.New().Store(), 0
		must(t, s.Make(ctx, leaseRow))
		take := func(x store.Session, slot int64) store.Claim {
			t.Helper()
			holds++
			c := store.Claim{Row: store.Row{Key: key, Slot: slot}, Owner: "a", Hold: "." + strings.Repeat("a", store.HoldBegins-1) + fmt.Sprintf("%014d", holds)}
			a, err := x.Take(ctx, store.Ask{Row: c.Row, Owner: c.Owner, Hold: c.Hold, TTL: ttl, NotAfter: store.Never})
			if err != nil || a.Reply != store.Done {
				t.Fatalf("Take at %d: %+v, %v", slot, a, err)
			}
			c.Token = a.Token
			return c
		}
		include := func(tx *memstore.Tx, send func(in *store.In) error) error {
			j, err := s.Join(ctx, tx)
			must(t, err)
			return j.Include(ctx, "use", txlock.Named(key), func(_ context.Context, in *store.In) error { return send(in) })
		}
		changes := func(what string, change func(), want error) {
			t.Helper()
			tx := s.Begin()
			tx.Read()
			change()
			if err := include(tx, func(in *store.In) error { return in.UnchangedSinceSnapshot(ctx, key) }); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
			must(t, tx.Rollback())
		}
		var writer store.Claim
		changes("nothing", func() {}, nil)
		changes("a grant", func() { writer = take(s, 0) }, txlock.ErrStaleSnapshot)
		changes("an entry in the same moment", func() { take(s, 0) }, txlock.ErrStaleSnapshot)
		time.Sleep(time.Second)
		changes("a renewal", func() { _, _ = s.Renew(ctx, writer) }, txlock.ErrStaleSnapshot)
		own := s.Begin()
		own.Read()
		for _, fenced := range []bool{false, true} {
			must(t, include(own, func(in *store.In) error {
				c := take(in, 0)
				seen, err := in.Stored(ctx, leaseRow)
				if in.Fenced != fenced || !in.Snapshot || !strings.Contains(seen.Holders, c.Hold) {
					t.Errorf("fenced %t, of a snapshot %t, it sees %+v without %s", in.Fenced, in.Snapshot, seen, c.Hold)
				}
				in.Fence = true
				return err
			}))
		}
		must(t, own.Rollback())

		_, err := s.Force(ctx, leaseRow, 0)
		must(t, err)
		_, err = s.Use(ctx, key, store.Shared)
		must(t, err)
		reads := func(want store.Readers) {
			t.Helper()
			if n, err := s.Readers(ctx, key); err != nil || n != want {
				t.Errorf("%+v, %v, want %+v", n, err, want)
			}
		}
		take(s, 5000)
		time.Sleep(time.Second)
		take(s, 5001)
		reads(store.Readers{Held: 2, Left: ttl})
		time.Sleep(ttl - time.Second)
		reads(store.Readers{Held: 2, Expired: 1, Left: time.Second})
		time.Sleep(ttl + time.Microsecond)
		reads(store.Readers{Held: 2, Expired: 2, Left: time.Second - ttl - time.Microsecond, Idle: 1})
		s.SetFault(func(_ context.Context, _ string, _ store.Row, call func() error) error {
			return errors.Join(call(), mysql.ErrInvalidConn)
		})
		if n, err := s.Readers(ctx, key); err == nil || n != (store.Readers{}) {
			t.Errorf("an answer that is lost is %+v, %v", n, err)
		}
	})
}
