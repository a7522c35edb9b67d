//go:build proxies

package proxies

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// cutAfter is for how long HAProxy lets a connection be silent: less than the pauses of these
// tests, and more than a statement takes on a busy machine.
const cutAfter = 3 * time.Second

// onIdle runs a test on each server behind an HAProxy that cuts silent connections. direct
// goes to the server itself.
func onIdle(t *testing.T, test func(t *testing.T, db *testdb.DB, cut, direct *load.Client)) {
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		h := startHAProxy(t, db.Server(), cutAfter)
		cfg := db.Config()
		cfg.Addr = h.addr
		test(t, db, load.NewClient(t, 0, cfg), load.NewClient(t, 1, db.Config()))
	})
}

// joined begins a transaction, and joins it.
func joined(t *testing.T, c *load.Client) (*sql.Tx, *txlock.Scope) {
	t.Helper()
	tx, err := c.DB.BeginTx(t.Context(), nil)
	check(t, err)
	scope, err := locksqlc.Join(t.Context(), tx)
	check(t, err)
	return tx, scope
}

// begun begins a transaction that holds a lock.
func begun(t *testing.T, c *load.Client, key txlock.Key) *sql.Tx {
	t.Helper()
	tx, scope := joined(t, c)
	check(t, second(scope.Lock(t.Context(), key)))
	return tx
}

// TestIdleTransaction proves that a transaction whose connection is cut while it thinks says
// so at its next statement and at COMMIT, and that the server has freed its lock.
func TestIdleTransaction(t *testing.T) {
	onIdle(t, func(t *testing.T, db *testdb.DB, cut, direct *load.Client) {
		table := db.CreateTable(t, "idle", "id INT PRIMARY KEY")
		for _, speaks := range []bool{true, false} {
			key := txlock.Named(fmt.Sprint(t.Name(), speaks))
			tx := begun(t, cut, key)
			check(t, second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)")))
			// Granted when the server has rolled the other back.
			check(t, begun(t, direct, key).Rollback())
			if speaks {
				if _, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (2)"); err == nil {
					t.Error("a statement on a connection that was cut: no error")
				}
				if _, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (3)"); !errors.Is(err, txlock.ErrTxDoomed) {
					t.Errorf("the next statement: %v, want ErrTxDoomed", err)
				}
			}
			if err := tx.Commit(); err == nil || speaks && !errors.Is(err, txlock.ErrTxDoomed) {
				t.Errorf("Commit after the connection was cut: %v", err)
			}
		}
		var n int
		if err := db.Admin().QueryRow("SELECT COUNT(*) FROM " + table).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows are there, %v", n, err)
		}
	})
}

// TestIdleWait proves that a wait for a lock whose connection is cut ends with ErrTxDoomed,
// and leaves nobody behind in the server's queue, and that Run goes on to ask.
func TestIdleWait(t *testing.T) {
	onIdle(t, func(t *testing.T, _ *testdb.DB, cut, direct *load.Client) {
		key := txlock.Named(t.Name())
		holds := begun(t, direct, key)
		tx, scope := joined(t, cut)
		if _, err := scope.Lock(t.Context(), key); !errors.Is(err, txlock.ErrTxDoomed) {
			t.Errorf("a wait that was cut: %v, want ErrTxDoomed", err)
		}
		if err := tx.Commit(); !errors.Is(err, txlock.ErrTxDoomed) {
			t.Errorf("Commit: %v, want ErrTxDoomed", err)
		}
		time.AfterFunc(3*cutAfter/2, func() {
			if err := holds.Rollback(); err != nil {
				t.Error(err)
			}
		})
		runs := 0
		err := locksqlc.Run(t.Context(), cut.DB, []txlock.Key{key}, func(*sql.Tx) error {
			runs++
			return nil
		})
		if err != nil || runs != 1 {
			t.Errorf("Run: %v, %d runs of its function", err, runs)
		}
		last, scope := joined(t, direct)
		defer func() { _ = last.Rollback() }()
		if _, err := scope.WaitAtMost(time.Minute).Lock(t.Context(), key); err != nil {
			t.Errorf("nobody has the lock, and nobody waits: %v", err)
		}
	})
}

// TestIdleLease proves that a lease is kept whose renewals are rarer than the cuts, that a
// fair wait that is cut goes on, and that Do, which asks its server every second, is not cut.
func TestIdleLease(t *testing.T) {
	onIdle(t, func(t *testing.T, _ *testdb.DB, cut, direct *load.Client) {
		const ttl = 15 * time.Second
		leases, err := lease.NewManager(cut.DB, lease.TTL(ttl)) // renewed every 5 s
		check(t, err)
		t.Cleanup(func() { check(t, leases.Close(context.Background())) })
		key := txlock.Named(t.Name())
		held, err := leases.Acquire(t.Context(), key)
		check(t, err)
		taken := make(chan *lease.Lease, 1)
		go func() {
			defer close(taken)
			l, err := cut.Leases.Acquire(t.Context(), key, lease.Fair())
			if err != nil {
				t.Errorf("a fair wait that is cut: %v", err)
				return
			}
			taken <- l
		}()
		doing := txlock.Named(t.Name() + " Do")
		err = locksqlc.Do(t.Context(), cut.DB, doing, func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(3 * cutAfter):
			}
			err := locksqlc.TryDo(ctx, direct.DB, doing, func(context.Context) error { return nil })
			if !errors.Is(err, txlock.ErrBusy) {
				return fmt.Errorf("somebody else does it, too: %w", err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("Do for longer than a connection may be silent: %v", err)
		}
		for begun := time.Now(); time.Since(begun) < ttl; time.Sleep(100 * time.Millisecond) {
			if err := held.Err(); err != nil {
				t.Fatalf("the lease is lost after %v: %v", time.Since(begun), err)
			}
		}
		if l, err := direct.Leases.TryAcquire(t.Context(), key); !errors.Is(err, txlock.ErrBusy) {
			t.Errorf("somebody else asks for it: %v, %v", l, err)
		}
		check(t, held.Release(t.Context()))
		l := <-taken
		if l == nil {
			return
		}
		if l.Token() <= held.Token() {
			t.Errorf("token %d after %d", l.Token(), held.Token())
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
