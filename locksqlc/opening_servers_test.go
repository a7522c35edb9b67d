package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// reset has the server reset the session of a connection that is idle, behind the back of its driver, as proxies do (COM_RESET_CONNECTION).
func reset(t *testing.T, conn net.Conn) {
	t.Helper()
	const comResetConnection = 0x1f
	check(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	check(t, second(conn.Write([]byte{1, 0, 0, 0, comResetConnection})))
	var header [4]byte
	check(t, second(io.ReadFull(conn, header[:])))
	reply := make([]byte, int(header[0])|int(header[1])<<8|int(header[2])<<16)
	check(t, errors.Join(second(io.ReadFull(conn, reply)), conn.SetDeadline(time.Time{})))
	testdb.FatalIf(t, reply[0] != 0, "COM_RESET_CONNECTION is answered %q", reply)
}

// wired has the driver dial connections that it stores.
func wired(t *testing.T, wire *net.Conn) func(*mysql.Config) {
	return testdb.Dialled(t, func(conn *net.TCPConn) net.Conn { *wire = conn; return conn })
}

// TestOpeningIsReset: a session that is reset behind a refused lock goes on, one behind a granted lock is lost, and says so.
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

// TestRefusedOnClusters: what can't exclude on a cluster is refused, and the transaction goes on. A MariaDB with wsrep_on works alone.
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
				other, free := joined(t, pool)
				isError(t, "a try beside what was refused", second(free.TryLock(t.Context(), key)), nil)
				check(t, other.Rollback())
				isError(t, "Lock after that", second(scope.Lock(t.Context(), key)), nil)
				grant, err := scope.RLock(t.Context(), key)
				testdb.ErrorIf(t, err != nil || grant.Shared(), "RLock of what is held exclusively: %+v, %v", grant, err)
				check(t, tx.Commit())
			})
		}
	}
}

// onMariaDB runs a test on that server.
func onMariaDB(t *testing.T, test func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	if !slices.Contains(testdb.Engines(), testdb.MariaDB) {
		t.Skip("needs MariaDB")
	}
	test(t, testdb.Open(t, testdb.MariaDB))
}

// runs runs transactions with the lock of a key, each of which writes a row, and returns their tokens, which must rise.
func runs(t *testing.T, pool *sql.DB, table string, key txlock.Key, n int) (last uint64) {
	t.Helper()
	for range n {
		var grant txlock.Grant
		check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			grant, _ = join(t, tx).Held(key)
			return second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES ()"))
		}))
		testdb.FatalIf(t, grant.Token() <= last, "token %d after %d", grant.Token(), last)
		last = grant.Token()
	}
	return last
}

// TestOpenerStaysPrepared: what begins a transaction, when a connection has sent it often, is prepared once, and costs no round trip more.
func TestOpenerStaysPrepared(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		table, key := db.CreateTable(t, "kept", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "kept")
		trips, counting := testdb.CountTrips(t)
		pool := single(newPool(t, db.Config(counting), true))
		prepared := func() int { return sessionStatus(t, pool, "Com_stmt_prepare") }
		check(t, txlock.Ensure(t.Context(), db.Admin(), key))
		runs(t, pool, table, key, 4)
		leasetest.Equal(t, "statements that are prepared at once", prepared(), 0)
		runs(t, pool, table, key, 1)
		before := trips.Count()
		token := runs(t, pool, table, key, 20)
		leasetest.Equal(t, "round trips of 20 transactions", trips.Count()-before, 3*20)
		leasetest.Equal(t, "statements that were prepared", prepared(), 1)
		behind := time.Now().UnixMicro() - int64(token)
		testdb.ErrorIf(t, behind < 0 || behind > time.Hour.Microseconds(), "the token is %d us behind the clock", behind)
		wantCount(t, db.Admin(), 25, "SELECT COUNT(*) FROM "+table)
		before = trips.Count()
		for i := range 20 { // the first lock of a key is another opener
			runs(t, pool, table, txlock.Named(key.String()+string(rune(0x80+i))), 1)
		}
		leasetest.Equal(t, "round trips of 20 transactions with new keys", trips.Count()-before, 3*20+1)
		leasetest.Equal(t, "statements that were prepared", prepared(), 2)
	})
}

// TestOpenersStayFew: a connection keeps some of the statements that begin its transactions, and neither all nor always others.
func TestOpenersStayFew(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		pool := single(newPool(t, db.Config(), true))
		const most, often = 16, 5
		for range 2 {
			keys := []txlock.Key{uniqueKey(t, "few")}
			for range most + 4 { // each number of keys has a statement of its own
				keys = append(keys, uniqueKey(t, "few"))
				for range often {
					check(t, locksqlc.Run(t.Context(), pool, keys, func(*sql.Tx) error { return nil }))
				}
			}
			leasetest.Equal(t, "statements that are prepared", sessionStatus(t, pool, "Com_stmt_prepare"), most)
		}
	})
}

// TestOpenersOfAResetSession: a lock is taken where the session has forgotten the statements that were prepared.
func TestOpenersOfAResetSession(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		var wire net.Conn
		table, key := db.CreateTable(t, "forgotten", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "forgotten")
		pool := single(keptPool(t, db.Config(wired(t, &wire))))
		runs(t, pool, table, key, 2)
		reset(t, wire)
		runs(t, pool, table, key, 3)
		// the first lock has found that nothing is prepared any more
		leasetest.Equal(t, "statements that were prepared and are executed", sessionStatus(t, pool, "Com_stmt_execute"), 2)
	})
}

// TestOpenerSeesOtherTables: a lock goes to the database of the pool, and to tables that were made anew or changed since it was prepared.
func TestOpenerSeesOtherTables(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		other := testdb.Shared(t, testdb.MariaDB).OpenNamed(t)
		table, key := other.Name()+"."+other.CreateTable(t, "kept", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "moved")
		pool := single(keptPool(t, db.AdminConfig()))
		runs(t, pool, table, key, 2)
		for _, choose := range []string{"USE " + other.Name(), "/*! USE " + other.Name() + " */", "EXECUTE IMMEDIATE 'USE " + other.Name() + "'"} {
			if _, err := pool.ExecContext(t.Context(), choose); err != nil {
				t.Log(err) // MariaDB may not take it, then it has chosen nothing
			}
			runs(t, pool, table, key, 2)
		}
		wantCount(t, other.Admin(), 0, "SELECT COUNT(*) FROM lockstep_locks WHERE token > 0")
		pool = single(keptPool(t, other.AdminConfig()))
		runs(t, pool, table, key, 2)
		for _, change := range []string{
			"ALTER TABLE lockstep_locks ADD COLUMN note INT FIRST",
			"RENAME TABLE lockstep_locks TO lockstep_old",
			"CREATE TABLE lockstep_locks LIKE lockstep_old",
			"ALTER TABLE lockstep_locks DROP COLUMN note",
			"TRUNCATE TABLE lockstep_locks",
		} {
			other.Exec(t, change)
			if change[0] != 'R' {
				runs(t, pool, table, key, 2)
			}
		}
	})
}

// TestOpenerIsIndifferentToModes: what was prepared under one sql_mode works under another.
func TestOpenerIsIndifferentToModes(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		table, key := db.CreateTable(t, "kept", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "modes")
		pool := single(keptPool(t, db.Config()))
		last := uint64(0)
		for _, mode := range []string{"", "ORACLE,EMPTY_STRING_IS_NULL", "ANSI", "TRADITIONAL,SIMULTANEOUS_ASSIGNMENT", ""} {
			exec(t, pool, "SET SESSION sql_mode = '"+mode+"'")
			runs(t, pool, table, uniqueKey(t, "new under "+mode), 1)
			token := runs(t, pool, table, key, 2)
			testdb.ErrorIf(t, token <= last, "under %q: token %d after %d", mode, token, last)
			last = token
			cfg := db.Config()
			cfg.Params = map[string]string{"sql_mode": "'" + mode + "'"}
			runs(t, newPool(t, cfg, true), table, uniqueKey(t, "new in a session under "+mode), 1)
		}
	})
}

// TestCommitWithElsewhere: the last statement is executed in the database that the program has chosen, however often its text was sent before.
func TestCommitWithElsewhere(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		other := testdb.Shared(t, db.Engine()).OpenNamed(t)
		for _, at := range []*testdb.DB{db, other} {
			at.Exec(t, "CREATE TABLE elsewhere (id INT PRIMARY KEY, n INT)")
			at.Exec(t, "INSERT INTO elsewhere VALUES (1, 0)")
		}
		for _, interpolate := range []bool{true, false} {
			cfg := db.AdminConfig()
			cfg.InterpolateParams = interpolate
			pool := single(newPool(t, cfg, true))
			sell := func(tx *sql.Tx, s *txlock.Scope) error {
				return second(tx.ExecContext(s.CommitWith(t.Context(), 1), "UPDATE elsewhere SET n = n + ? WHERE id = ?", 1, 1))
			}
			for range 8 {
				check(t, lastly(t, pool, sell))
			}
			check(t, lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
				exec(t, tx, "USE "+other.Name())
				return sell(tx, s)
			}))
		}
		here, there := count(t, db.Admin(), "SELECT n FROM elsewhere"), count(t, other.Admin(), "SELECT n FROM elsewhere")
		testdb.ErrorIf(t, here != 16 || there != 2, "%d here, want 16, and %d there, want 2", here, there)
	})
}
