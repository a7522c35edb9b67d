//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// newPair starts a pair whose programs work.
func newPair(t *testing.T) *load.Pair {
	t.Helper()
	p := load.NewPair(t)
	p.DB.Exec(t, "CREATE TABLE work (who VARCHAR(20) PRIMARY KEY, n BIGINT NOT NULL)")
	p.DB.Grant(t, "work")
	p.Replicated(t)
	return p
}

// holder is a program that goes to one server.
func holder(t *testing.T, db *testdb.DB, ttl time.Duration) (*sql.DB, *lease.Manager) {
	t.Helper()
	connector, err := mysql.NewConnector(db.Config(func(c *mysql.Config) { c.Logger = &mysql.NopLogger{} }))
	check(t, err)
	pool := sql.OpenDB(locksqlc.Connector(connector))
	m, err := lease.NewManager(pool, lease.TTL(ttl))
	check(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		// Where the server is gone the leases can't be released.
		if err := m.Close(ctx); err != nil && db.Server().Running() {
			t.Errorf("close the manager: %v", err)
		}
		if err := pool.Close(); err != nil {
			t.Errorf("close the pool: %v", err)
		}
	})
	return pool, m
}

func acquire(t *testing.T, m *lease.Manager, key txlock.Key) *lease.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := m.Acquire(ctx, key)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return l
}

// workers are those whose work a database has.
func workers(t *testing.T, db *testdb.DB) (who string) {
	t.Helper()
	check(t, db.Admin().QueryRow("SELECT COALESCE(GROUP_CONCAT(who ORDER BY who), '') FROM work").Scan(&who))
	return who
}

// TestAsynchronousFailover proves what the promotion of a replica loses that lags
// behind: a lease is held by two, with equal tokens, a transaction lock is, and what
// was committed under them is gone. Guard keeps each database for itself: the old one
// has what the old holder has done, the new one what the new holder has, and neither
// any of the other's.
func TestAsynchronousFailover(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	key := txlock.Named("job")
	oldPool, old := holder(t, p.DB, time.Minute)
	check(t, acquire(t, old, key).Release(t.Context()))
	// A token ahead of the clock, as after a clock was set back: it rises by one.
	p.DB.Exec(t, "UPDATE lockstep_leases SET token = token + 3600000000")
	p.Replicated(t)

	p.Replica.Execute(t, "STOP SLAVE IO_THREAD") // the lag
	oldLease := acquire(t, old, key)
	oldTx, err := oldPool.BeginTx(t.Context(), nil)
	check(t, err)
	defer func() { _ = oldTx.Rollback() }()
	oldGrant := lockAndWork(t, oldTx, key, "old")
	p.Promote(t)

	newPool, fresh := holder(t, p.Copied, time.Minute)
	newLease, err := fresh.TryAcquire(t.Context(), key)
	if err != nil {
		t.Fatalf("TryAcquire on the new primary: %v, want the lease that the old holder has, too", err)
	}
	if err := errors.Join(oldLease.Renew(t.Context()), oldLease.Err(), newLease.Err()); err != nil {
		t.Errorf("one of two leases: %v, want both to be held", err)
	}
	if newLease.Token() != oldLease.Token() {
		t.Errorf("tokens %d and %d, want the same one twice", oldLease.Token(), newLease.Token())
	}
	newTx, err := newPool.BeginTx(t.Context(), nil)
	check(t, err)
	defer func() { _ = newTx.Rollback() }()
	newGrant := lockAndWork(t, newTx, key, "new")
	if oldGrant.Key() != newGrant.Key() {
		t.Errorf("locked %v and %v", oldGrant.Key(), newGrant.Key())
	}
	for tx, l := range map[*sql.Tx]*lease.Lease{oldTx: oldLease, newTx: newLease} {
		if err := errors.Join(l.Guard(t.Context(), tx), tx.Commit()); err != nil {
			t.Errorf("a guarded transaction: %v, want both to be committed", err)
		}
	}
	if there, here := workers(t, p.DB), workers(t, p.Copied); there != "old" || here != "new" {
		t.Errorf("the old primary has the work of %q, the new one of %q", there, here)
	}
}

// lockAndWork takes the lock of a key and writes under it.
func lockAndWork(t *testing.T, tx *sql.Tx, key txlock.Key, who string) txlock.Grant {
	t.Helper()
	scope, err := locksqlc.Join(t.Context(), tx)
	check(t, err)
	grant, err := scope.TryLock(t.Context(), key)
	if err != nil {
		t.Fatalf("TryLock by %s: %v", who, err)
	}
	if _, err := tx.ExecContext(t.Context(), "INSERT INTO work VALUES (?, 1)", who); err != nil {
		t.Fatal(err)
	}
	return grant
}

// TestSemiSynchronousFailover proves that semi-synchronous replication (AFTER_SYNC, with
// a timeout that is never over) keeps what was acknowledged: the promoted replica knows
// of the lease, though it had not executed that yet, and of the work under a lock. The
// old primary is alive, but cut off: it acknowledges nothing more, so its holder loses
// the lease before the new primary grants it again.
func TestSemiSynchronousFailover(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	p := newPair(t)
	p.SemiSynchronous(t)
	key := txlock.Named("job")
	oldPool, old := holder(t, p.DB, ttl)
	t.Cleanup(func() { p.Primary.WaitNoMore(t) }) // its sessions wait for the replica
	check(t, acquire(t, old, key).Release(t.Context()))
	p.Replicated(t)

	p.Replica.Execute(t, "STOP SLAVE SQL_THREAD") // the lag: received, not executed
	oldLease := acquire(t, old, key)
	err := locksqlc.Run(t.Context(), oldPool, nil, func(tx *sql.Tx) error {
		lockAndWork(t, tx, key, "old")
		return nil
	})
	check(t, err)
	before := oldLease.Token()
	p.Promote(t)

	_, fresh := holder(t, p.Copied, ttl)
	if _, err := fresh.TryAcquire(t.Context(), key); !errors.Is(err, txlock.ErrBusy) {
		t.Fatalf("TryAcquire on the new primary: %v, want ErrBusy", err)
	}
	if who := workers(t, p.Copied); who != "old" {
		t.Errorf("the new primary has the work of %q, want that of the old holder", who)
	}
	newLease := acquire(t, fresh, key)
	if err := oldLease.Err(); !errors.Is(err, txlock.ErrLost) {
		t.Errorf("the old holder's lease when the new one is granted: %v, want ErrLost", err)
	}
	if newLease.Token() <= before {
		t.Errorf("token %d after %d", newLease.Token(), before)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if l, err := old.Acquire(ctx, txlock.Named("another")); err == nil {
		t.Errorf("a lease was granted by a primary that is cut off: token %d", l.Token())
	}
}
