package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// lastly runs fn with a scope in a transaction of Run under a key of its own.
func lastly(t *testing.T, pool *sql.DB, fn func(tx *sql.Tx, s *txlock.Scope) error) error {
	t.Helper()
	return locksqlc.Run(t.Context(), pool, []txlock.Key{uniqueKey(t, "last")}, func(tx *sql.Tx) error {
		s, err := locksqlc.Join(t.Context(), tx)
		if err != nil {
			return err
		}
		return fn(tx, s)
	})
}

// sharesTexts reports whether statements of the program can share a text with lockstep's.
func sharesTexts(engine testdb.Engine) bool { return engine == testdb.MariaDB || hasProcedures(engine) }

// TestLargeLastStatement: an argument that is too large to be written into a text changes nothing for the statements behind it.
func TestLargeLastStatement(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if !sharesTexts(db.Engine()) {
			t.Skip("the procedures are missing")
		}
		trips, count := testdb.CountTrips(t)
		table := db.CreateTable(t, "last", "id INT PRIMARY KEY, b LONGBLOB")
		db.Exec(t, "INSERT INTO "+table+" (id) VALUES (1)")
		for _, most := range []int{1 << 14, 1 << 20} {
			cfg := db.Config(count)
			cfg.InterpolateParams, cfg.MaxAllowedPacket = true, most
			pool := newPool(t, cfg, true)
			db.Exec(t, "UPDATE "+table+" SET b = NULL")
			check(t, lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
				return testdb.Err(tx.ExecContext(s.CommitWith(t.Context(), 1), "UPDATE "+table+" SET b = ? WHERE id = ?", make([]byte, most), 1))
			}))
			id, before := 0, 0
			for range 2 { // by the first the pool learns what its driver does with arguments
				before = trips.Count()
				check(t, locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
					s := join(t, tx)
					return tx.QueryRowContext(s.LockWith(t.Context(), uniqueKey(t, "large")), "SELECT id FROM "+table+" WHERE id = ?", 1).Scan(&id)
				}))
			}
			if n := trips.Count() - before; n != 2 || id != 1 { // with the COMMIT
				t.Errorf("%d round trips behind %d bytes", n, most)
			}
		}
	})
}

var errInner = errors.New("the function fails")

// TestCommitWithAndBehind: what follows the statement that has committed is refused, its function isn't run again, and its error is told.
func TestCommitWithAndBehind(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(), true)
		for _, returns := range []error{errInner, txlock.ErrDeadlock, &mysql.MySQLError{Number: 1213}, context.Canceled} {
			table, calls, n := db.CreateTable(t, "last", "id INT PRIMARY KEY AUTO_INCREMENT"), 0, 0
			err := lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
				calls++
				ctx := s.CommitWith(t.Context(), 1)
				check(t, testdb.Err(tx.ExecContext(ctx, "INSERT INTO "+table+" VALUES ()")))
				for _, ctx := range []context.Context{t.Context(), ctx} {
					_, err := tx.ExecContext(ctx, "INSERT INTO "+table+" VALUES ()")
					testdb.ErrorIf(t, err == nil, "a statement behind the COMMIT is executed")
				}
				isError(t, "a lock behind", testdb.Err(s.Lock(t.Context(), uniqueKey(t, "behind"))), txlock.ErrNoTransaction)
				return returns
			})
			n = count(t, db.Admin(), "SELECT COUNT(*) FROM "+table)
			testdb.ErrorIf(t, !errors.Is(err, returns) || txlock.Retryable(err) || !strings.Contains(err.Error(), "by CommitWith, and what it did stays") || calls != 1 || n != 1,
				"%v after %d calls, with %d rows", err, calls, n)
		}
		// A transaction of the program's own.
		table := db.CreateTable(t, "last", "id INT PRIMARY KEY AUTO_INCREMENT")
		for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
			tx := begin(t, pool)
			check(t, testdb.Err(tx.ExecContext(join(t, tx).CommitWith(t.Context(), 1), "INSERT INTO "+table+" VALUES ()")))
			check(t, end(tx))
		}
		wantCount(t, db.Admin(), 2, "SELECT COUNT(*) FROM "+table)
		// One that was begun as text. Its end is known at once, and its connection stays in the pool.
		one, called := newPool(t, db.Config(), true), newCallees(t)
		one.SetMaxOpenConns(1)
		first := testdb.ConnID(t, one)
		for _, end := range []string{"COMMIT", "ROLLBACK", "BEGIN", ""} {
			conn := testdb.Got(one.Conn(t.Context()))(t)
			exec(t, conn, "BEGIN")
			s := joinConn(t, conn)
			called.then(t, s, "after")
			check(t, testdb.Err(conn.ExecContext(s.CommitWith(t.Context(), 1), "INSERT INTO "+table+" VALUES ()")))
			called.wants(t, "behind CommitWith", "after")
			_, err := conn.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES ()")
			testdb.ErrorIf(t, err == nil, "a statement behind the COMMIT is executed")
			if end != "" {
				exec(t, conn, end)
				exec(t, conn, "ROLLBACK")
			}
			check(t, conn.Close())
		}
		testdb.Equal(t, "the session of the pool", testdb.ConnID(t, one), first)
		wantCount(t, db.Admin(), 6, "SELECT COUNT(*) FROM "+table)
	})
}

// TestCommitWithALostLock: the last statement of a transaction which has lost a lock by its own COMMIT isn't sent.
func TestCommitWithALostLock(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(), true)
		table := db.CreateTable(t, "last", "id INT PRIMARY KEY AUTO_INCREMENT")
		err := lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
			exec(t, tx, "COMMIT")
			return testdb.Err(tx.ExecContext(s.CommitWith(t.Context(), 1), "INSERT INTO "+table+" VALUES ()"))
		})
		isError(t, "without its lock", err, txlock.ErrTxDoomed)
		wantCount(t, db.Admin(), 0, "SELECT COUNT(*) FROM "+table)
	})
}

// TestCommitWithInterrupted: a statement which was interrupted behind its change, and before the COMMIT, leaves nothing that could be committed.
func TestCommitWithInterrupted(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.AdminConfig(interpolating), true)
		table := db.CreateTable(t, "interrupted", "id INT PRIMARY KEY")
		applied, doomed := 0, 0
		for i := 0; i < 400 && doomed < 3; i++ {
			session, killed := make(chan int64, 1), make(chan struct{})
			go func() {
				defer close(killed)
				id := <-session
				time.Sleep(time.Duration(i%40) * 25 * time.Microsecond)
				_, _ = db.Admin().Exec(fmt.Sprintf("KILL QUERY %d", id)) // it may be gone
			}()
			tx, s := joined(t, pool)
			session <- testdb.ConnID(t, tx)
			_, err := tx.ExecContext(s.CommitWith(t.Context(), 1), fmt.Sprintf("INSERT INTO %s VALUES (%d)", table, i))
			<-killed
			switch {
			case err == nil:
				check(t, tx.Commit())
			case errors.Is(err, txlock.ErrUnknownOutcome):
				_ = tx.Rollback() // over
				continue
			default:
				doomed++
				_ = tx.Commit() // which must not commit the change
			}
			n := count(t, db.Admin(), "SELECT COUNT(*) FROM "+table+" WHERE id = ?", i)
			testdb.ErrorIf(t, (err == nil) != (n == 1), "%v, and %d rows", err, n)
			applied += n
		}
		t.Logf("%d applied, %d interrupted", applied, doomed)
	})
}

// TestCommitWithRefused: a statement isn't sent where it must not commit, or where nobody would see that it is to.
func TestCommitWithRefused(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		guarded, plain := newPool(t, db.Config(), true), newPool(t, db.Config(), false)
		table := db.CreateTable(t, "last", "id INT PRIMARY KEY AUTO_INCREMENT")
		insert := func(tx *sql.Tx, rows int64) error {
			s := join(t, tx)
			return testdb.Err(tx.ExecContext(s.CommitWith(t.Context(), rows), "INSERT INTO "+table+" VALUES ()"))
		}
		fn := func(tx *sql.Tx) error { return insert(tx, 1) }
		key := uniqueKey(t, "refused")
		isError(t, "Optimistic", locksqlc.Optimistic(t.Context(), guarded, key, fn), txlock.ErrInvalidOption)
		isError(t, "Once", testdb.Err(locksqlc.Once(t.Context(), guarded, key, fn)), txlock.ErrInvalidOption)
		isError(t, "a plain pool", locksqlc.Run(t.Context(), plain, nil, fn), txlock.ErrUnguarded)
		isError(t, "-2 rows", locksqlc.Run(t.Context(), guarded, nil, func(tx *sql.Tx) error { return insert(tx, -2) }), txlock.ErrInvalidOption)
		check(t, lastly(t, guarded, func(tx *sql.Tx, _ *txlock.Scope) error {
			rows, err := tx.QueryContext(t.Context(), "SELECT 1")
			check(t, err)
			err = insert(tx, 1)
			testdb.ErrorIf(t, !errors.Is(err, txlock.ErrOpenRows) || errors.Is(err, txlock.ErrUnknownOutcome), "while rows are open: %v", err)
			return rows.Close()
		}))
		check(t, lastly(t, guarded, func(_ *sql.Tx, s *txlock.Scope) error {
			return lastly(t, guarded, func(other *sql.Tx, _ *txlock.Scope) error {
				_, err := other.ExecContext(s.CommitWith(t.Context(), 1), "INSERT INTO "+table+" VALUES ()")
				says(t, "in another transaction", err, nil, "another transaction")
				another := newPool(t, db.Config(), true)
				check(t, lastly(t, another, func(other *sql.Tx, _ *txlock.Scope) error {
					with := []context.Context{s.CommitWith(t.Context(), 1)}
					if db.Engine() == testdb.MariaDB || hasProcedures(db.Engine()) { // else LockWith locks at once
						with = append(with, s.LockWith(t.Context(), uniqueKey(t, "another")))
					}
					for _, ctx := range with {
						says(t, "on another pool", testdb.Err(other.ExecContext(ctx, "INSERT INTO "+table+" VALUES ()")), nil, "another transaction")
					}
					return testdb.Err(other.ExecContext(t.Context(), "DELETE FROM "+table))
				}))
				_, err = guarded.ExecContext(s.CommitWith(t.Context(), 1), "INSERT INTO "+table+" VALUES ()")
				says(t, "on the pool", err, nil, "another transaction")
				return nil
			})
		}))
		conn := testdb.Got(guarded.Conn(t.Context()))(t)
		defer func() { _ = conn.Close() }()
		xid := "'" + table + "'"
		check(t, testdb.Err(conn.ExecContext(t.Context(), "XA START "+xid)))
		s := testdb.Got(locksqlc.JoinConn(t.Context(), conn))(t)
		says(t, "in a transaction of XA", testdb.Err(conn.ExecContext(s.CommitWith(t.Context(), 1), "INSERT INTO "+table+" VALUES ()")), txlock.ErrUnguarded, "XA or a procedure has begun")
		for _, end := range []string{"XA END ", "XA ROLLBACK "} {
			check(t, testdb.Err(conn.ExecContext(t.Context(), end+xid)))
		}
		wantCount(t, db.Admin(), 0, "SELECT COUNT(*) FROM "+table)
	})
}

// TestCommitWithIsSentOnce: a last statement that has begun is not sent again, and the program's variables stay. What MyISAM has stored shows it.
func TestCommitWithIsSentOnce(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, interpolates := range []bool{false, true} {
			trips, count := testdb.CountTrips(t)
			cfg := db.Config(count)
			cfg.InterpolateParams = interpolates
			sentOnce(t, db, newPool(t, cfg, true), trips)
		}
	})
}

func sentOnce(t *testing.T, db *testdb.DB, pool *sql.DB, trips *testdb.Trips) {
	t.Helper()
	pool.SetMaxOpenConns(1)
	seen := db.CreateTable(t, "seen", "n INT")
	db.Exec(t, "ALTER TABLE "+seen+" ENGINE = MyISAM")
	for i, c := range []struct {
		state  string
		number int
	}{
		{"45000", 1064}, {"45000", 1210}, {"45000", 1295}, {"45000", 1644}, {"45000", 1461}, {"45000", 1243}, {"42000", 1064},
		{"42000", 1461}, {"HY000", 1295}, {"HY000", 1243}, {"HY000", 1210}, {"0A000", 1644}, {"42000", 1305}, {"42000", 1370}, {"", 1305},
	} {
		table, number := db.CreateTable(t, "last", "id INT PRIMARY KEY, s VARCHAR(9)"), c.number
		db.Exec(t, "INSERT INTO "+table+" VALUES (1, 'a')")
		fails := fmt.Sprintf("SIGNAL SQLSTATE '%s' SET MYSQL_ERRNO = %d, MESSAGE_TEXT = 'no lockstep_thing'", c.state, number)
		if c.state == "" {
			db.Exec(t, "CREATE FUNCTION lockstep_"+table+"(s TEXT) RETURNS TEXT DETERMINISTIC RETURN s")
			fails = "SET NEW.s = lockstep_" + table + "(NEW.s)"
		}
		db.Exec(t, fmt.Sprintf("CREATE TRIGGER %s_refuses BEFORE UPDATE ON %[1]s FOR EACH ROW BEGIN INSERT INTO %s VALUES (%d); %s; END", table, seen, i, fails))
		if c.state == "" {
			db.Exec(t, "DROP FUNCTION lockstep_"+table)
		}
		err := lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
			return testdb.Err(tx.ExecContext(s.CommitWith(t.Context(), 1), "UPDATE "+table+" SET s = ? WHERE id = 1", "b"))
		})
		var server *mysql.MySQLError
		testdb.ErrorIf(t, !errors.As(err, &server) || int(server.Number) != number || errors.Is(err, txlock.ErrTxDoomed), "%v: got %v", c, err)
		testdb.Equal(t, fmt.Sprintf("%v: executions", c), count(t, db.Admin(), "SELECT COUNT(*) FROM "+seen+" WHERE n = ?", i), 1)
	}
	if before, table := trips.Count(), db.CreateTable(t, "last", "id INT PRIMARY KEY"); sharesTexts(db.Engine()) {
		check(t, lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
			before = trips.Count()
			return testdb.Err(tx.ExecContext(s.CommitWith(t.Context(), 1), "INSERT INTO "+table+" VALUES (1)"))
		}))
		testdb.Equal(t, "round trips of a last statement, after all these", trips.Count()-before, 1)
	}
	table := db.CreateTable(t, "last", "id INT PRIMARY KEY, s VARCHAR(99)")
	db.Exec(t, "INSERT INTO "+table+" VALUES (1, 'a')")
	for _, name := range []string{"@lockstep_1", "@lockstep_text", "@LOCKSTEP_rows", "@`lockstep_text`", "@'lockstep_1'"} {
		check(t, lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
			check(t, tx.QueryRowContext(t.Context(), "SELECT "+name+" := 'mine'").Scan(new(string)))
			return testdb.Err(tx.ExecContext(s.CommitWith(t.Context(), txlock.AnyRows), "UPDATE "+table+" SET s = CONCAT("+name+", ?) WHERE id = 1", "!"))
		}))
		var got string
		check(t, db.Admin().QueryRowContext(t.Context(), "SELECT s FROM "+table).Scan(&got))
		testdb.ErrorIf(t, got != "mine!", "%s was %q", name, got)
		db.Exec(t, "UPDATE "+table+" SET s = 'a'")
	}
}

// callees are the names of the functions that were called after the COMMIT, in order.
type callees chan string

func newCallees(t *testing.T) callees {
	c := make(callees, 16)
	t.Cleanup(func() { c.wants(t, "at the end") })
	return c
}

// then registers a function of that name.
func (c callees) then(t *testing.T, s *txlock.Scope, name string) {
	t.Helper()
	check(t, s.AfterCommit(func() { c <- name }))
}

// wants waits until as many were called, and makes sure that no other was.
func (c callees) wants(t *testing.T, what string, want ...string) {
	t.Helper()
	var got []string
	testdb.Await(30*time.Second, func() bool {
		for {
			select {
			case name := <-c:
				got = append(got, name)
			default:
				return len(got) >= len(want)
			}
		}
	})
	testdb.FatalIf(t, !slices.Equal(got, want), "%s: %q were called, want %q", what, got, want)
}

// commitWays are the ways to commit a transaction in which fn has written.
func commitWays(t *testing.T, pool *sql.DB, fn func(on testdb.Executor, s *txlock.Scope) error) map[string]func() error {
	in := func(tx *sql.Tx) error { return fn(tx, join(t, tx)) }
	all := map[string]func() error{
		"CommitWith": func() error {
			err := endingWith("DELETE FROM lockstep_once WHERE 1 = 0", errBehind)(t.Context(), pool, uniqueKey(t, "after"), in)
			if errors.Is(err, errBehind) {
				return nil // it was committed nevertheless
			}
			return err
		},
		"Commit": func() error {
			return plainly(t.Context(), pool, nil, func(tx *sql.Tx, _ *txlock.Scope) error { return in(tx) })
		},
		"COMMIT as text": func() error {
			return asText(t.Context(), pool, func(conn *sql.Conn) error { return fn(conn, joinConn(t, conn)) })
		},
		"CommitWith before COMMIT as text": func() error {
			return asText(t.Context(), pool, func(conn *sql.Conn) error {
				s := joinConn(t, conn)
				if err := fn(conn, s); err != nil {
					return err
				}
				return testdb.Err(conn.ExecContext(s.CommitWith(t.Context(), txlock.AnyRows), "DELETE FROM lockstep_once WHERE 1 = 0"))
			})
		},
	}
	for name, run := range ways {
		all[name] = func() error { return run(t.Context(), pool, uniqueKey(t, "after"), in) }
	}
	return all
}

var errBehind = errors.New("of the function, behind CommitWith")

// TestAfterCommit: functions are called in order, once, behind the COMMIT, with the lock free and the connection back; and not behind a rollback.
func TestAfterCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, table := newPool(t, db.Config(), true), db.CreateTable(t, "after_commit", "id INT PRIMARY KEY")
		pool.SetMaxOpenConns(1)
		id, called := 0, newCallees(t)
		for way, commit := range commitWays(t, pool, func(on testdb.Executor, s *txlock.Scope) error {
			id++
			id, key := id, uniqueKey(t, "after")
			lock(t, s, key)
			exec(t, on, fmt.Sprintf("INSERT INTO %s VALUES (%d)", table, id))
			called.then(t, s, "first")
			return s.AfterCommit(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // for a connection that isn't back
				defer cancel()
				err := locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
					wantCount(t, tx, 1, fmt.Sprintf("SELECT COUNT(*) FROM %s WHERE id = %d", table, id))
					called.then(t, join(t, tx), "inner")
					return nil
				})
				isError(t, "Run in a function after the COMMIT", err, nil)
				isError(t, "AfterCommit after the COMMIT", s.AfterCommit(func() {}), txlock.ErrNoTransaction)
				called <- "second"
			})
		}) {
			isError(t, way, commit(), nil)
			called.wants(t, way, "first", "inner", "second")
			idle(t, pool)
		}
		broken := errors.New("broken")
		for way, commit := range commitWays(t, pool, func(_ testdb.Executor, s *txlock.Scope) error {
			called.then(t, s, "never")
			return broken
		}) {
			isError(t, way, commit(), broken)
			called.wants(t, way+", rolled back")
		}
	})
}

// TestAfterCommitOfSavepoints: what was registered after a savepoint is dropped with it.
func TestAfterCommitOfSavepoints(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, called := newPool(t, db.Config(), true), newCallees(t)
		for way, commit := range commitWays(t, pool, func(on testdb.Executor, s *txlock.Scope) error {
			called.then(t, s, "before")
			exec(t, on, "SAVEPOINT a")
			called.then(t, s, "undone")
			exec(t, on, "ROLLBACK TO a")
			called.then(t, s, "between")
			exec(t, on, "SAVEPOINT b")
			called.then(t, s, "released")
			exec(t, on, "RELEASE SAVEPOINT b")
			return nil
		}) {
			isError(t, way, commit(), nil)
			called.wants(t, way, "before", "between", "released")
		}
	})
}

// TestAfterCommitUnanswered: nothing is called if the connection is lost with COMMIT, on its way or with the reply, when all is committed.
func TestAfterCommitUnanswered(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, arrives := range []bool{false, true} {
			pool, called := newPool(t, db.AdminConfig(testdb.LosingCommits(arrives)), true), newCallees(t)
			table := db.CreateTable(t, fmt.Sprintf("unanswered_%t", arrives), "id INT PRIMARY KEY AUTO_INCREMENT")
			for way, commit := range commitWays(t, pool, func(on testdb.Executor, s *txlock.Scope) error {
				exec(t, on, "INSERT INTO "+table+" VALUES ()")
				called.then(t, s, "never")
				return nil
			}) {
				isError(t, fmt.Sprintf("%s, arrives %t", way, arrives), commit(), txlock.ErrUnknownOutcome)
				called.wants(t, fmt.Sprintf("%s, arrives %t", way, arrives))
			}
		}
	})
}

// TestAfterCommitPanics: the transaction stays committed, the other functions are called, and the panic goes on.
func TestAfterCommitPanics(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, called := newPool(t, db.Config(), true), newCallees(t)
		table := numbers(t, db)
		wantPanic(t, "on purpose", func() {
			_ = locksqlc.Run(t.Context(), pool, keysOf(t), func(tx *sql.Tx) error {
				exec(t, tx, "UPDATE "+table+" SET v = 1")
				check(t, join(t, tx).AfterCommit(func() { panic("on purpose") }))
				called.then(t, join(t, tx), "the other")
				return nil
			})
		})
		called.wants(t, "behind a panic", "the other")
		idle(t, pool)
		wantCount(t, pool, 1, "SELECT v FROM "+table)
	})
}

// TestAfterCommitRefused: AfterCommit refuses what it could not see, and a Commit that fails calls nothing.
func TestAfterCommitRefused(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		never := func() { t.Error("a function was called") }
		plain := begin(t, newPool(t, db.Config(), false))
		isError(t, "on a plain pool", join(t, plain).AfterCommit(never), txlock.ErrUnguarded)
		check(t, plain.Commit())
		pool := newPool(t, db.AdminConfig(), true)
		tx, s := joined(t, pool)
		isError(t, "nil", s.AfterCommit(nil), txlock.ErrInvalidOption)
		isError(t, "a view that is wrong", s.WaitAtMost(-1).AfterCommit(never), txlock.ErrInvalidOption)
		check(t, tx.Rollback())
		isError(t, "after the end", s.AfterCommit(never), txlock.ErrNoTransaction)

		c, lost := cross(t, db), begin(t, pool)
		s = join(t, lost)
		_ = c.lose(t, lost)
		isError(t, "after a deadlock", s.AfterCommit(never), txlock.ErrTxDoomed)

		table := db.CreateTable(t, "ended", "id INT PRIMARY KEY")
		for _, statement := range []string{"ALTER TABLE " + table + " COMMENT 'ended'", "COMMIT", "ROLLBACK"} {
			tx := begin(t, pool)
			check(t, join(t, tx).AfterCommit(never))
			exec(t, tx, statement)
			isError(t, "Commit after "+statement, tx.Commit(), txlock.ErrTxDoomed)
		}
		killed := begin(t, pool)
		check(t, join(t, killed).AfterCommit(never))
		db.Kill(t, testdb.ConnID(t, killed))
		err := killed.Commit()
		testdb.ErrorIf(t, err == nil, "COMMIT of a session that was killed succeeds")
	})
}

// TestAfterCommitBesideCommit: each function is called for which AfterCommit has returned nil, also while another goroutine commits.
func TestAfterCommitBesideCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(), true)
		for range 100 {
			tx, s := joined(t, pool)
			c, accepted := make(chan struct{}, 1000), make(chan int, 1)
			begun := make(chan struct{})
			go func() {
				close(begun)
				n := 0
				for n < cap(c) && s.AfterCommit(func() { c <- struct{}{} }) == nil {
					n++
				}
				accepted <- n
			}()
			<-begun
			check(t, tx.Commit())
			n := <-accepted
			testdb.FatalIf(t, !testdb.Await(30*time.Second, func() bool { return len(c) >= n }) || len(c) != n,
				"%d functions were called, AfterCommit has accepted %d", len(c), n)
		}
	})
}
