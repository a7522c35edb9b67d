package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestOptimisticWithoutItsEnd drops the procedure that would compare the version and
// commit, after the one that has read the version: the transaction ends by statements, once.
func TestOptimisticWithoutItsEnd(t *testing.T) {
	t.Parallel()
	if testdb.WithoutProcedures() {
		t.Skip("without procedures")
	}
	for _, engine := range testdb.Engines() {
		if engine == testdb.MariaDB {
			continue
		}
		for _, name := range []string{"lockstep_compare_1", "lockstep_raise_1"} {
			db := testdb.Shared(t, engine).Open(t)
			table := db.CreateTable(t, "ends", "id INT PRIMARY KEY, n INT NOT NULL")
			db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0)")
			pool, err := locksqlc.Open(db.DSN())
			check(t, err)
			defer func() { check(t, pool.Close()) }()
			key := uniqueKey(t, name)
			runs := 0
			check(t, locksqlc.Optimistic(t.Context(), pool, key, func(tx *sql.Tx) error {
				runs++
				if runs == 1 {
					db.DropProcedures(t, name)
				}
				_, err := tx.ExecContext(t.Context(), "UPDATE "+table+" SET n = n + 1 WHERE id = 1")
				return err
			}))
			var n int
			check(t, db.Admin().QueryRowContext(t.Context(), "SELECT n FROM "+table).Scan(&n))
			version, err := txlock.ReadVersion(t.Context(), pool, key)
			check(t, err)
			if runs != 1 || n != 1 || version == 0 {
				t.Errorf("without %s: %d runs, %d updates, version %d", name, runs, n, version)
			}
		}
	}
}

// TestTripsOfABusyKey counts the round trips of a try that finds the key locked, which are
// one, and of a bounded wait for it, which are three: in a transaction that begins with it.
func TestTripsOfABusyKey(t *testing.T) {
	t.Parallel()
	if testdb.WithoutProcedures() {
		t.Skip("without procedures")
	}
	for _, engine := range testdb.Engines() {
		if engine == testdb.MariaDB {
			continue
		}
		db := testdb.Open(t, engine)
		trips, count := testdb.CountTrips(t)
		connector, err := mysql.NewConnector(db.Config(count))
		check(t, err)
		pool := sql.OpenDB(locksqlc.Connector(connector))
		defer func() { check(t, pool.Close()) }()
		others, err := locksqlc.Open(db.DSN())
		check(t, err)
		defer func() { check(t, others.Close()) }()
		key := uniqueKey(t, "busy")
		check(t, txlock.Ensure(t.Context(), others, key))
		holding, err := others.BeginTx(t.Context(), nil)
		check(t, err)
		defer func() { _ = holding.Rollback() }()
		holder, err := locksqlc.Join(t.Context(), holding)
		check(t, err)
		held, err := holder.Lock(t.Context(), key)
		check(t, err)

		conn, err := pool.Conn(t.Context())
		check(t, err)
		defer func() { check(t, conn.Close()) }()
		id := testdb.ConnID(t, conn)
		tx, err := conn.BeginTx(t.Context(), nil)
		check(t, err)
		defer func() { _ = tx.Rollback() }()
		scope, err := locksqlc.Join(t.Context(), tx)
		check(t, err)
		before := trips.Count()
		if _, err := scope.TryLock(t.Context(), key); !errors.Is(err, txlock.ErrBusy) {
			t.Errorf("TryLock of a key that is held: %v", err)
		}
		if n := trips.Count() - before; n != 1 {
			t.Errorf("a try took %d round trips, want 1", n)
		}
		check(t, scope.Verify(t.Context()))
		check(t, tx.Rollback())

		tx, err = conn.BeginTx(t.Context(), nil)
		check(t, err)
		defer func() { _ = tx.Rollback() }()
		scope, err = locksqlc.Join(t.Context(), tx)
		check(t, err)
		before = trips.Count()
		granted := make(chan error, 1)
		var grant txlock.Grant
		go func() {
			var err error
			grant, err = scope.WaitAtMost(time.Minute).Lock(context.WithoutCancel(t.Context()), key)
			granted <- err
		}()
		db.WaitForLockWait(t, id)
		check(t, holding.Commit())
		check(t, <-granted)
		if n := trips.Count() - before; n != 3 || grant.Token() <= held.Token() {
			t.Errorf("a wait took %d round trips, want 3, and its token is %d after %d", n, grant.Token(), held.Token())
		}
		check(t, tx.Commit())
	}
}
