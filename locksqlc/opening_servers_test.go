package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// TestOpeningOnOtherServers begins transactions by locks on a server that writes statements to its
// binary log, and on one that has become a replica.
func TestOpeningOnOtherServers(t *testing.T) {
	onEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine, testdb.Args("--log-bin=log", "--server-id=1", "--binlog-format=STATEMENT")).OpenNamed(t)
		openingByStatements(t, db)
		openingOnReadOnlyServer(t, db)
	})
}

// openingByStatements: under READ COMMITTED the server refuses all writes, and so the locks (1665).
func openingByStatements(t *testing.T, db *testdb.DB) {
	t.Helper()
	table := db.CreateTable(t, "written", "id INT PRIMARY KEY AUTO_INCREMENT")
	pool := newPool(t, db.Config(), true)
	for name, ask := range writing {
		for read, query := range map[string]string{"": "", "after a SELECT": "SELECT COUNT(*) FROM " + table} {
			t.Run(name+" "+read, func(t *testing.T) {
				key := uniqueKey(t, "new")
				tx := begin(t, pool)
				if query != "" {
					count(t, tx, query)
				}
				check(t, ask(t.Context(), join(t, tx), key))
				exec(t, tx, "INSERT INTO "+table+" VALUES ()")
				check(t, tx.Commit())
				wantFree(t, db, key)
			})
		}
		t.Run(name+" at READ COMMITTED", func(t *testing.T) {
			conn := takeConn(t, pool)
			tx := begin(t, conn, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			key := uniqueKey(t, "new")
			if err := ask(t.Context(), join(t, tx), key); number(err) != 1665 || txlock.Retryable(err) {
				t.Errorf("%v, want 1665", err)
			}
			wantCount(t, tx, 7, "SELECT 7")
			check(t, tx.Rollback())
			exec(t, conn, "SET TRANSACTION READ WRITE") // refused inside a transaction
			wantFree(t, db, key)
		})
	}
	for name, run := range running {
		t.Run(name, func(t *testing.T) {
			key, before := uniqueKey(t, "new"), count(t, db.Admin(), "SELECT COUNT(*) FROM "+table)
			for range 2 {
				check(t, run(t.Context(), pool, key, func(tx *sql.Tx) error {
					exec(t, tx, "INSERT INTO "+table+" VALUES ()")
					return nil
				}))
			}
			if n := count(t, db.Admin(), "SELECT COUNT(*) FROM "+table); n != before+2 {
				t.Errorf("%d rows, want two more than %d", n, before)
			}
			wantFree(t, db, key)
		})
	}
	t.Run("Do", func(t *testing.T) {
		check(t, locksqlc.Do(t.Context(), pool, uniqueKey(t, "done"), func(context.Context) error { return nil }))
	})
}

// openingOnReadOnlyServer: each lock is refused, leaves the transaction as one that can go on, and
// nothing on the server that its end doesn't end.
func openingOnReadOnlyServer(t *testing.T, db *testdb.DB) {
	t.Helper()
	variables := map[testdb.Engine][]string{testdb.MariaDB: {"read_only"}, testdb.MySQL: {"read_only", "super_read_only"}}[db.Engine()]
	table := db.CreateTable(t, "read_only", "id INT PRIMARY KEY AUTO_INCREMENT")
	insert := "INSERT INTO " + table + " VALUES ()"
	key := uniqueKey(t, "a")
	check(t, txlock.Ensure(t.Context(), db.Admin(), key, besides(key, "b")))
	readOnly := func(t *testing.T, variable, value string) { db.Exec(t, "SET GLOBAL "+variable+" = "+value) }
	for _, variable := range variables {
		for name, ask := range writing {
			t.Run(variable+"/"+name, func(t *testing.T) {
				conn := takeConn(t, newPool(t, db.Config(), true))
				tx, scope := joined(t, conn)
				readOnly(t, variable, "ON")
				defer readOnly(t, "read_only", "OFF") // which ends super_read_only, too
				wants(t, ask(t.Context(), scope, key), txlock.ErrReadOnly, 1290)
				wantCount(t, tx, 0, "SELECT COUNT(*) FROM "+table)
				if _, err := tx.ExecContext(t.Context(), insert); number(err) != 1290 {
					t.Errorf("a write: %v, want 1290", err)
				}
				check(t, tx.Rollback())
				exec(t, conn, "SET TRANSACTION READ WRITE") // refused inside a transaction
				readOnly(t, "read_only", "OFF")
				wantFree(t, db, key, besides(key, "b"))
			})
		}
		t.Run(variable+"/until it is written", func(t *testing.T) {
			tx, scope := joined(t, newPool(t, db.Config(), true))
			readOnly(t, variable, "ON")
			_, err := scope.Lock(t.Context(), key)
			readOnly(t, "read_only", "OFF")
			wants(t, err, txlock.ErrReadOnly, 1290)
			lock(t, scope, key)
			exec(t, tx, insert)
			check(t, tx.Commit())
			wantFree(t, db, key)
			db.Exec(t, "DELETE FROM "+table)
		})
		for name, run := range running {
			t.Run(variable+"/at the end of "+name, func(t *testing.T) {
				pool := newPool(t, db.Config(), true)
				calls := 0
				err := run(t.Context(), pool, key, func(tx *sql.Tx) error {
					calls++
					exec(t, tx, insert)
					readOnly(t, variable, "ON")
					return nil
				})
				readOnly(t, "read_only", "OFF")
				if number(err) != 1290 || txlock.Retryable(err) || calls != 1 {
					t.Errorf("%v after %d calls, want 1290 after one", err, calls)
				}
				wantFree(t, db, key)
				wantCount(t, db.Admin(), 0, "SELECT COUNT(*) FROM "+table)
				check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }))
			})
		}
	}
}

// reset has the server reset the session of a connection that is idle, behind the back of
// its driver, as proxies do (COM_RESET_CONNECTION).
func reset(t *testing.T, conn net.Conn) {
	t.Helper()
	const comResetConnection = 0x1f
	check(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	check(t, second(conn.Write([]byte{1, 0, 0, 0, comResetConnection})))
	var header [4]byte
	check(t, second(io.ReadFull(conn, header[:])))
	reply := make([]byte, int(header[0])|int(header[1])<<8|int(header[2])<<16)
	check(t, errors.Join(second(io.ReadFull(conn, reply)), conn.SetDeadline(time.Time{})))
	if reply[0] != 0 {
		t.Fatalf("COM_RESET_CONNECTION is answered %q", reply)
	}
}

// wired has the driver dial connections that it stores.
func wired(t *testing.T, wire *net.Conn) func(*mysql.Config) {
	return testdb.Dialled(t, func(conn *net.TCPConn) net.Conn { *wire = conn; return conn })
}

// TestOpeningIsReset has the session reset after the lock that begins a transaction was
// refused, which may have left one open, and after one that was given: that one is lost,
// and the next statement says so. So is one whose BEGIN was sent before the lock.
func TestOpeningIsReset(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "reset", "id INT PRIMARY KEY")
		for i, granted := range []bool{false, true} {
			t.Run(fmt.Sprintf("granted=%t", granted), func(t *testing.T) {
				var wire net.Conn
				key := uniqueKey(t, "key")
				check(t, txlock.Ensure(t.Context(), db.Admin(), key))
				holder := begin(t, newPool(t, db.Config(), true))
				if !granted {
					lock(t, join(t, holder), key)
				}
				tx, scope := joined(t, newPool(t, db.Config(oneSecond, wired(t, &wire)), true))
				insert := fmt.Sprintf("INSERT INTO %s VALUES (%d)", table, i)
				_, err := scope.Lock(t.Context(), key)
				if granted {
					check(t, err)
					reset(t, wire)
					wantDoomed(t, "a lock", second(scope.Lock(t.Context(), uniqueKey(t, "another"))), 0)
					isError(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
					wantFree(t, db, key)
					return
				}
				wants(t, err, txlock.ErrWaitTimeout, 1205)
				reset(t, wire)
				check(t, holder.Rollback())
				if !hasProcedures(db.Engine()) && db.Engine() == testdb.MySQL { // BEGIN was sent before
					wantDoomed(t, "the lock", second(scope.Lock(t.Context(), key)), 0)
					return
				}
				lock(t, scope, key)
				exec(t, tx, insert)
				wantLocked(t, "the lock doesn't exclude", db, key)
				check(t, tx.Rollback())
				wantCount(t, db.Admin(), 0, fmt.Sprintf("SELECT COUNT(*) FROM %s WHERE id = %d", table, i))
				wantFree(t, db, key)
			})
		}
	})
}

// TestRefusedOnClusters proves that calls which can't exclude on a cluster of several
// primaries are refused there, and that the transaction goes on. It needs no cluster:
// with wsrep_on = ON and no provider, a MariaDB works alone.
func TestRefusedOnClusters(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		if engine == testdb.MySQL {
			continue
		}
		db := testdb.Dedicated(t, engine, testdb.Args("--wsrep-on=ON", "--binlog-format=ROW")).OpenNamed(t)
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			t.Run(name, func(t *testing.T) {
				pool := locksuite.OpenSQL(guarded, locksuite.BeginTx)(t, db.Config()).DB()
				key := txlock.Named(t.Name())
				err := locksqlc.Do(t.Context(), pool, key, func(context.Context) error {
					t.Error("Do has called its function")
					return nil
				})
				says(t, "Do", err, schema.ErrMultiPrimary, "use a lease")
				tx, scope := joined(t, pool)
				for _, verb := range []string{"RLock", "TryRLock"} {
					says(t, verb, verbs[verb](t.Context(), scope, key), schema.ErrMultiPrimary, "lock exclusively")
				}
				isError(t, "Lock after that", second(scope.Lock(t.Context(), key)), nil)
				if grant, err := scope.RLock(t.Context(), key); err != nil || grant.Shared() {
					t.Errorf("RLock of what is held exclusively: %+v, %v", grant, err)
				}
				check(t, tx.Commit())
			})
		}
	}
}
