//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// pair is a primary and its asynchronous replica, and one database on both.
type pair struct {
	primary, replica           *testdb.Server
	primaryAdmin, replicaAdmin *sql.DB
	db, copied                 *testdb.DB
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{}
	for i, server := range []**testdb.Server{&p.primary, &p.replica} {
		*server = testdb.Dedicated(t, testdb.MariaDB, testdb.Args(
			"--log-bin=bin", fmt.Sprintf("--server-id=%d", i+1), "--log-slave-updates", "--binlog-format=ROW", "--gtid-strict-mode=ON",
			"--innodb-buffer-pool-size=32M", "--performance-schema=OFF", "--rpl-semi-sync-slave-enabled=ON",
		))
	}
	p.primaryAdmin, p.replicaAdmin = admin(t, p.primary), admin(t, p.replica)
	cfg := p.primary.Config()
	var port int
	execute(t, p.primaryAdmin, "RESET MASTER")
	if err := p.primaryAdmin.QueryRow("SELECT @@port").Scan(&port); err != nil {
		t.Fatal(err)
	}
	execute(t, p.replicaAdmin, "RESET MASTER", "SET GLOBAL gtid_slave_pos = ''",
		fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %d, MASTER_USER = '%s', MASTER_PASSWORD = '%s', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1", port, cfg.User, cfg.Passwd),
		"START SLAVE")
	p.db = p.primary.Open(t)
	p.db.Exec(t, "CREATE TABLE work (who VARCHAR(20) PRIMARY KEY, n BIGINT NOT NULL)")
	p.db.Grant(t, "work")
	p.replicated(t)
	p.copied = p.db.At(t, p.replica)
	return p
}

func admin(t *testing.T, server *testdb.Server) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(connector)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

func execute(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// replicated returns when the replica has executed what the primary has committed.
func (p *pair) replicated(t *testing.T) {
	t.Helper()
	var position string
	if err := p.primaryAdmin.QueryRow("SELECT @@gtid_binlog_pos").Scan(&position); err != nil {
		t.Fatal(err)
	}
	var failed int
	if err := p.replicaAdmin.QueryRow("SELECT MASTER_GTID_WAIT(?, 120)", position).Scan(&failed); err != nil || failed != 0 {
		t.Fatalf("the replica doesn't follow: %d, %v", failed, err)
	}
}

// promote makes the replica a primary, with all that it has received.
func (p *pair) promote(t *testing.T) {
	t.Helper()
	// In this order: a replica that is started with both threads stopped deletes what
	// it has received, to ask for it again by GTID.
	execute(t, p.replicaAdmin, "START SLAVE SQL_THREAD", "STOP SLAVE IO_THREAD")
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		status := slaveStatus(t, p.replicaAdmin)
		if status["Relay_Master_Log_File"] == status["Master_Log_File"] && status["Exec_Master_Log_Pos"] == status["Read_Master_Log_Pos"] {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the replica doesn't execute what it has received: %v", status)
		}
	}
	execute(t, p.replicaAdmin, "STOP SLAVE", "RESET SLAVE ALL")
}

// semiSynchronous returns when the primary has a replica that acknowledges.
func semiSynchronous(t *testing.T, primary *sql.DB) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		var name, clients string
		if err := primary.QueryRow("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_clients'").Scan(&name, &clients); err != nil {
			t.Fatal(err)
		}
		if clients == "1" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the primary has %s replicas that acknowledge, want 1", clients)
		}
	}
}

func slaveStatus(t *testing.T, db *sql.DB) map[string]string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SHOW SLAVE STATUS")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil || !rows.Next() {
		t.Fatalf("no replication: %v, %v", err, rows.Err())
	}
	values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	if err := rows.Scan(into...); err != nil {
		t.Fatal(err)
	}
	status := make(map[string]string)
	for i, column := range columns {
		status[column] = values[i].String
	}
	return status
}

// holder is a program that goes to one server.
func holder(t *testing.T, db *testdb.DB, ttl time.Duration) (*sql.DB, *lease.Manager) {
	t.Helper()
	connector, err := mysql.NewConnector(db.Config(func(c *mysql.Config) { c.Logger = &mysql.NopLogger{} }))
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(locksqlc.Connector(connector))
	m, err := lease.NewManager(pool, lease.TTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
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
	if err := db.Admin().QueryRow("SELECT COALESCE(GROUP_CONCAT(who ORDER BY who), '') FROM work").Scan(&who); err != nil {
		t.Fatal(err)
	}
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
	oldPool, old := holder(t, p.db, time.Minute)
	if err := acquire(t, old, key).Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A token ahead of the clock, as after a clock was set back: it rises by one.
	p.db.Exec(t, "UPDATE lockstep_leases SET token = token + 3600000000")
	p.replicated(t)

	execute(t, p.replicaAdmin, "STOP SLAVE IO_THREAD") // the lag
	oldLease := acquire(t, old, key)
	oldTx, err := oldPool.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = oldTx.Rollback() }()
	oldGrant := lockAndWork(t, oldTx, key, "old")
	p.promote(t)

	newPool, fresh := holder(t, p.copied, time.Minute)
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
	if err != nil {
		t.Fatal(err)
	}
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
	if there, here := workers(t, p.db), workers(t, p.copied); there != "old" || here != "new" {
		t.Errorf("the old primary has the work of %q, the new one of %q", there, here)
	}
}

// lockAndWork takes the lock of a key and writes under it.
func lockAndWork(t *testing.T, tx *sql.Tx, key txlock.Key, who string) txlock.Grant {
	t.Helper()
	scope, err := locksqlc.Join(t.Context(), tx)
	if err != nil {
		t.Fatal(err)
	}
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
	execute(t, p.primaryAdmin, "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'",
		"SET GLOBAL rpl_semi_sync_master_timeout = 3600000", "SET GLOBAL rpl_semi_sync_master_enabled = ON")
	execute(t, p.replicaAdmin, "STOP SLAVE", "START SLAVE") // it asks the primary when it connects
	semiSynchronous(t, p.primaryAdmin)
	key := txlock.Named("job")
	oldPool, old := holder(t, p.db, ttl)
	t.Cleanup(func() { // its sessions wait for the replica
		if _, err := p.primaryAdmin.Exec("SET GLOBAL rpl_semi_sync_master_enabled = OFF"); err != nil {
			t.Error(err)
		}
	})
	if err := acquire(t, old, key).Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.replicated(t)

	execute(t, p.replicaAdmin, "STOP SLAVE SQL_THREAD") // the lag: received, not executed
	oldLease := acquire(t, old, key)
	err := locksqlc.Run(t.Context(), oldPool, nil, func(tx *sql.Tx) error {
		lockAndWork(t, tx, key, "old")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	before := oldLease.Token()
	p.promote(t)

	_, fresh := holder(t, p.copied, ttl)
	if _, err := fresh.TryAcquire(t.Context(), key); !errors.Is(err, txlock.ErrBusy) {
		t.Fatalf("TryAcquire on the new primary: %v, want ErrBusy", err)
	}
	if who := workers(t, p.copied); who != "old" {
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
