package locksqlc_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// makesBefore reports whether the row of a new key is made before the transaction that its lock begins.
func makesBefore(db *testdb.DB) bool {
	return db.Engine() == testdb.MariaDB || hasProcedures(db.Engine())
}

// onOwn runs a test on databases of its own: where another test has locked the place of a row, the row is made by its lock.
func onOwn(t *testing.T, test func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	onServers(t, func(t *testing.T, db *testdb.DB) { test(t, testdb.Shared(t, db.Engine()).OpenNamed(t)) })
}

// rowsOf counts the rows of a key that are committed.
func rowsOf(t *testing.T, db *testdb.DB, key txlock.Key) int {
	t.Helper()
	return count(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks WHERE name = ?", key.String())
}

// TestFirstLockText: a lock whose key is known to have a row is sent as it is without anything that makes one.
func TestFirstLockText(t *testing.T) {
	makes := regexp.MustCompile("BEGIN DECLARE .* END IF; END; | ?MAKE")
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		var sent []string
		note := func(query string) string {
			if strings.Contains(query, "INSERT INTO lockstep_locks") || strings.Contains(query, "CALL lockstep_") {
				sent = append(sent, query)
			}
			return query
		}
		pool, key := openPool(t, db.Config(), under(func(c testdb.Conn) driver.Conn { return shown{testdb.Edited{Conn: c, Edit: note}} })), uniqueKey(t, "text")
		for range 3 {
			check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }))
		}
		if makesBefore(db) {
			testdb.FatalIf(t, len(sent) != 3 || !makes.MatchString(sent[0]), "sent: %q", sent)
			sent[0] = makes.ReplaceAllString(sent[0], "")
		}
		got := slices.Compact(sent[len(sent)-3:])
		testdb.ErrorIf(t, len(got) != 1 || makes.MatchString(got[0]), "sent: %q", sent)
	})
}

// TestFirstLockMakesItsRow: the row of a new key is made before the transaction, unless that could hinder what the program has chosen.
func TestFirstLockMakesItsRow(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		for _, c := range []struct {
			before   string // sent on the connection
			options  *sql.TxOptions
			inside   string // sent in the transaction, before the lock
			isolated string // the level that it runs at, if that was chosen
			made     bool
		}{
			{made: true},
			{before: "SELECT 1", made: true},
			{before: "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", isolated: "READ COMMITTED"},
			{before: "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", isolated: "SERIALIZABLE"},
			{before: "SET @@" + db.Engine().LevelVariable() + " = 'SERIALIZABLE'", isolated: "SERIALIZABLE"},
			{before: "LOCK TABLES lockstep_centers READ"},
			{inside: "SELECT 1"},
			{options: &sql.TxOptions{Isolation: sql.LevelReadUncommitted}, isolated: "READ UNCOMMITTED", made: true},
			{options: &sql.TxOptions{Isolation: sql.LevelReadCommitted}, isolated: "READ COMMITTED", made: true},
			{options: &sql.TxOptions{Isolation: sql.LevelSerializable}, isolated: "SERIALIZABLE", made: true},
		} {
			conn := takeConn(t, newPool(t, db.AdminConfig(), true))
			if c.before != "" {
				exec(t, conn, c.before)
			}
			tx := begin(t, conn, c.options)
			if c.inside != "" {
				exec(t, tx, c.inside)
			}
			key := uniqueKey(t, rand.Text())
			lock(t, join(t, tx), key)
			n := rowsOf(t, db, key)
			testdb.ErrorIf(t, n == 1 != (c.made && makesBefore(db)), "%+v: %d rows while the lock is held", c, n)
			if c.isolated != "" {
				level, id := "", testdb.ConnID(t, tx)
				testdb.Await(time.Minute, func() bool { // the server doesn't show it at once
					testdb.Refresh()
					return db.Admin().QueryRowContext(t.Context(), "SELECT trx_isolation_level FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = ?", id).Scan(&level) == nil
				})
				testdb.ErrorIf(t, level != c.isolated, "%+v: it runs at %s", c, level)
			}
			check(t, tx.Rollback())
		}
		conn := takeConn(t, newPool(t, db.AdminConfig(), true))
		key := uniqueKey(t, rand.Text())
		tx := begin(t, conn, &sql.TxOptions{ReadOnly: true})
		isError(t, "in a transaction that writes nothing", testdb.Err(join(t, tx).Lock(t.Context(), key)), txlock.ErrReadOnly)
		check(t, tx.Rollback())
		testdb.Equal(t, "rows of a transaction that writes nothing", rowsOf(t, db, key), 0)
	})
}

// TestFirstSharedLock: the first shared lock of a process makes its row before, too: a second reader doesn't wait for it.
func TestFirstSharedLock(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		key, pool := uniqueKey(t, rand.Text()), newPool(t, db.Config(), true)
		for range 2 {
			tx := begin(t, takeConn(t, pool))
			check(t, testdb.Err(join(t, tx).RLock(t.Context(), key)))
			if !makesBefore(db) {
				return
			}
			testdb.Equal(t, "rows while the lock is held", rowsOf(t, db, key), 1)
		}
	})
}

// TestChosenIsForOneTransaction: what SET TRANSACTION has chosen is that of the next transaction, also if its first lock fails, and of no other.
func TestChosenIsForOneTransaction(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table, held := db.CreateTable(t, "chosen", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "chosen")
		holder := holding(t, newPool(t, db.Config(), true), held)
		insert := "INSERT INTO " + table + " VALUES ()"
		for _, first := range []struct {
			verb string
			key  txlock.Key
		}{{}, {"TryLock", held}, {"TryLock", uniqueKey(t, "new")}, {"Lock", uniqueKey(t, "new")}} {
			for _, options := range []*sql.TxOptions{nil, {ReadOnly: true}} {
				conn := takeConn(t, newPool(t, db.Config(), true))
				exec(t, conn, "SET TRANSACTION READ ONLY")
				tx := testdb.Got(conn.BeginTx(t.Context(), options))(t)
				if first.verb != "" {
					isError(t, first.verb+" in a transaction that writes nothing", verbs[first.verb](t.Context(), join(t, tx), first.key), txlock.ErrReadOnly)
					_, err := tx.ExecContext(t.Context(), insert)
					testdb.ErrorIf(t, err == nil, "after %s the transaction writes", first.verb)
				}
				check(t, tx.Rollback())
				exec(t, conn, insert)
			}
		}
		check(t, holder.Rollback())
	})
}

// lockNew locks a key as the first statement of a transaction, rolls back, and reports whether its row is there then.
func lockNew(t *testing.T, db *testdb.DB, conn *sql.Conn, key txlock.Key, inside string) bool {
	t.Helper()
	tx := begin(t, conn)
	check(t, testdb.Err(join(t, tx).Lock(t.Context(), key)))
	if inside != "" {
		exec(t, tx, inside)
	}
	check(t, tx.Rollback())
	return rowsOf(t, db, key) == 1
}

// TestFirstLockAfterSet: SET TRANSACTION hinders one transaction, and one inside of a transaction, or what looks like one, none.
func TestFirstLockAfterSet(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		conn := takeConn(t, newPool(t, db.Config(), true))
		exec(t, conn, "SET TRANSACTION READ WRITE")
		for i, want := range []bool{false, true, true} {
			testdb.Equal(t, fmt.Sprintf("transaction %d: the row is there", i), lockNew(t, db, conn, uniqueKey(t, rand.Text()), "SET @transaction = 2"), want && makesBefore(db))
		}
	})
}

// TestFirstLockOfARowThatIsGone: a row which the process knew, and which is gone since, is made before the second transaction that locks it.
func TestFirstLockOfARowThatIsGone(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		conn, key := takeConn(t, newPool(t, db.Config(), true)), uniqueKey(t, "gone")
		lockNew(t, db, conn, key, "")
		if lockNew(t, db, conn, key, ""); makesBefore(db) {
			db.Exec(t, "DELETE FROM lockstep_locks WHERE name = '"+key.String()+"'")
		}
		for i, want := range []bool{false, true} {
			testdb.Equal(t, fmt.Sprintf("transaction %d: the row is there", i), lockNew(t, db, conn, key, ""), want && makesBefore(db))
		}
	})
}

// TestFirstTryWaitsForNoGap tries a new key whose place is locked by another, where the server would let an INSERT wait for more than a day.
func TestFirstTryWaitsForNoGap(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		key := uniqueKey(t, "gap")
		holder := begin(t, newPool(t, db.AdminConfig(), false))
		exec(t, holder, "SELECT name FROM lockstep_locks WHERE name = '"+key.String()+"' FOR UPDATE")
		pool := newPool(t, db.Config(func(c *mysql.Config) { c.Params = map[string]string{"innodb_lock_wait_timeout": "100000"} }), true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		tx := begin(t, pool)
		_, err := join(t, tx).TryLock(ctx, key)
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrBusy), "%v", err)
		check(t, tx.Rollback())
		check(t, holder.Rollback())
	})
}

// TestTryOfAKeyThatIsBeingMade: a try whose key's first holder commits meanwhile is refused, or shows what that has committed.
func TestTryOfAKeyThatIsBeingMade(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		dbs := []*testdb.DB{testdb.Open(t, engine)}
		if engine == testdb.MySQL && !testdb.WithoutProcedures() {
			without := testdb.Shared(t, engine).OpenNamed(t)
			without.DropProcedures(t)
			dbs = append(dbs, without)
		}
		for _, db := range dbs {
			table := db.CreateTable(t, "making", "id INT PRIMARY KEY, n INT NOT NULL")
			db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0)")
			pool := newPool(t, db.Config(), true)
			for _, name := range []string{"TryLock", "TryRLock", "LockAny", "WaitAtMost", "RLock in time"} {
				tryWhileMade(t, db, pool, table, name)
			}
		}
	}
}

// tryWhileMade tries a key once, and commits its first holder as soon as the try waits.
func tryWhileMade(t *testing.T, db *testdb.DB, pool *sql.DB, table, name string) {
	key := uniqueKey(t, "making")
	before := count(t, pool, "SELECT n FROM "+table+" WHERE id = 1")
	holding := holding(t, pool, key)
	exec(t, holding, "UPDATE "+table+" SET n = n + 1 WHERE id = 1")

	conn := takeConn(t, pool)
	id := testdb.ConnID(t, conn)
	tx, scope := joined(t, conn)
	lock(t, scope, uniqueKey(t, "other")) // which reads nothing
	tried := make(chan error, 1)
	go func() { tried <- verbs[name](t.Context(), scope, key) }()
	if !testdb.Await(time.Minute, func() bool {
		waits, err := db.WaitsForLock(t.Context(), id)
		return len(tried) > 0 || err != nil || waits
	}) {
		t.Fatalf("%s on %s: the try neither waits nor ends", name, db.Engine())
	}
	check(t, holding.Commit())
	if err := <-tried; err != nil {
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrBusy) && !errors.Is(err, txlock.ErrStaleSnapshot),
			"%s on %s of a key that is being made: %v", name, db.Engine(), err)
		return
	}
	if n := count(t, tx, "SELECT n FROM "+table+" WHERE id = 1"); n != before+1 {
		t.Errorf("%s on %s of a key that is being made is granted, and shows %d, not the %d that its first holder has committed", name, db.Engine(), n, before+1)
	}
	check(t, tx.Commit())
}

var hashedKeys = txlock.NewFamily[string]("first", txlock.Exact(), txlock.Hashed())

// told is what the rows say, and their error.
func told(t *testing.T, rows *sql.Rows, err error) string {
	t.Helper()
	if err != nil {
		return err.Error()
	}
	defer func() { check(t, rows.Close()) }()
	columns := testdb.Got(rows.Columns())(t)
	types := testdb.Got(rows.ColumnTypes())(t)
	var all strings.Builder
	for i, c := range columns {
		fmt.Fprintf(&all, "%s %s, ", c, types[i].DatabaseTypeName())
	}
	for rows.Next() {
		into := make([]any, len(columns))
		for i := range into {
			into[i] = new(any)
		}
		check(t, rows.Scan(into...))
		for _, v := range into {
			fmt.Fprintf(&all, "%#v, ", *v.(*any))
		}
	}
	fmt.Fprintf(&all, "%t %v", rows.NextResultSet(), rows.Err())
	return all.String()
}

// TestLockWithoutACenter proves that a read whose lock has no row returns an error, and no rows.
func TestLockWithoutACenter(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		own := testdb.Shared(t, db.Engine()).OpenNamed(t)
		pool := single(newPool(t, own.Config(interpolating), true))
		exec(t, pool, "DO LAST_INSERT_ID(4711)") // which is no token
		err := locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
			s := join(t, tx)
			ctx := s.LockWith(t.Context(), hashedKeys.Key("none"))
			for range 2 {
				n := 0
				isError(t, "a center that is missing", tx.QueryRowContext(ctx, "SELECT 1").Scan(&n), txlock.ErrSchema)
			}
			return errInner
		})
		isError(t, "Run", err, errInner)
	})
}

// TestPreparedForAnotherContext: a statement which was prepared for LockWith or CommitWith is not executed without it.
func TestPreparedForAnotherContext(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, table, key := newPool(t, db.Config(), true), numbers(t, db), uniqueKey(t, "prepared")
		for name, mark := range map[string]func(s *txlock.Scope) context.Context{
			"LockWith":   func(s *txlock.Scope) context.Context { return s.LockWith(t.Context(), key) },
			"CommitWith": func(s *txlock.Scope) context.Context { return s.CommitWith(t.Context(), 1) },
		} {
			tx, s := joined(t, pool)
			ctx := mark(s)
			prepared, err := tx.PrepareContext(ctx, "UPDATE "+table+" SET v = v + 1")
			check(t, err)
			_, err = prepared.ExecContext(t.Context())
			testdb.ErrorIf(t, !strings.Contains(fmt.Sprint(err), "prepared under"), "%s: %v", name, err)
			check(t, testdb.Err(prepared.ExecContext(ctx)))
			_, held := s.Held(key)
			testdb.ErrorIf(t, held != (name == "LockWith"), "%s: held %t", name, held)
			check(t, prepared.Close())
			if err := tx.Rollback(); name == "LockWith" {
				check(t, err)
			}
		}
	})
}

// TestPreparedForLaterTransactions: what database/sql keeps prepared is an ordinary statement in later transactions, whatever it was prepared for.
func TestPreparedForLaterTransactions(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table, key := numbers(t, db), uniqueKey(t, "kept")
		other, elsewhere := joined(t, newPool(t, db.Config(), true))
		check(t, testdb.Err(elsewhere.Lock(t.Context(), key)))
		for name, spoil := range map[string]func(tx *sql.Tx, s *txlock.Scope, kept *sql.Stmt) error{
			"CommitWith": func(tx *sql.Tx, s *txlock.Scope, kept *sql.Stmt) error {
				ctx := s.CommitWith(t.Context(), 1)
				check(t, testdb.Err(tx.StmtContext(ctx, kept).ExecContext(ctx)))
				return errInner
			},
			"a lock that isn't free": func(tx *sql.Tx, s *txlock.Scope, kept *sql.Stmt) error {
				ctx := s.LockWith(t.Context(), key)
				isError(t, "LockWith", testdb.Err(tx.StmtContext(ctx, kept).ExecContext(ctx)), txlock.ErrWaitTimeout)
				return testdb.Err(tx.StmtContext(t.Context(), kept).ExecContext(t.Context()))
			},
			"a context that ends": func(tx *sql.Tx, s *txlock.Scope, kept *sql.Stmt) error {
				ctx, cancel := context.WithCancel(s.LockWith(t.Context(), key))
				prepared := tx.StmtContext(ctx, kept)
				cancel()
				return testdb.Err(prepared.ExecContext(ctx))
			},
			"another pool's context": func(tx *sql.Tx, _ *txlock.Scope, kept *sql.Stmt) error {
				ctx := elsewhere.CommitWith(t.Context(), 1)
				err := testdb.Err(tx.StmtContext(ctx, kept).ExecContext(ctx))
				again := testdb.Err(tx.StmtContext(t.Context(), kept).ExecContext(t.Context()))
				testdb.ErrorIf(t, fmt.Sprint(again) != fmt.Sprint(err), "in the same transaction: %v, then %v", err, again)
				return err
			},
		} {
			pool := newPool(t, db.Config(oneSecond), true)
			pool.SetMaxOpenConns(2)
			first := testdb.Got(pool.Conn(t.Context()))(t)
			kept := testdb.Got(pool.PrepareContext(t.Context(), "UPDATE "+table+" SET v = v + 1 WHERE id = 1"))(t)
			prepared, err := pool.Conn(t.Context()) // the one of kept: it isn't prepared on the first yet
			check(t, err)
			check(t, first.Close())

			tx, s := joined(t, pool)
			err = spoil(tx, s, kept)
			testdb.ErrorIf(t, (err == nil) != (name == "a lock that isn't free"), "%s: %v", name, err)
			_ = tx.Rollback() // it may have ended
			check(t, testdb.Err(kept.ExecContext(t.Context())))
			tx, s = joined(t, pool)
			check(t, testdb.Err(tx.StmtContext(t.Context(), kept).ExecContext(t.Context())))
			ctx := s.CommitWith(t.Context(), 1)
			check(t, testdb.Err(tx.StmtContext(ctx, kept).ExecContext(ctx)))
			_ = tx.Commit() // it has ended
			check(t, errors.Join(kept.Close(), prepared.Close(), pool.Close()))
		}
		check(t, other.Rollback())
	})
}
