package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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

// TestCommitWith proves that the last statement commits the transaction where it has changed
// so many rows, with the result that it has alone, in one round trip; and in two where they
// can't share a text.
func TestCommitWith(t *testing.T) {
	pools := map[string]struct {
		mutate func(*mysql.Config)
		trips  int // of a statement that is the last
	}{
		"as text":      {func(*mysql.Config) {}, 1},
		"found rows":   {func(c *mysql.Config) { c.ClientFoundRows = true }, 1},
		"prepared":     {func(c *mysql.Config) { c.InterpolateParams = false }, 2}, // each is prepared once
		"ANSI quotes":  {func(c *mysql.Config) { c.Params = map[string]string{"sql_mode": "'ANSI_QUOTES'"} }, 1},
		"no backslash": {func(c *mysql.Config) { c.Params = map[string]string{"sql_mode": "'NO_BACKSLASH_ESCAPES'"} }, 1},
		"latin1":       {func(c *mysql.Config) { _ = c.Apply(mysql.Charset("latin1", "")) }, 1},
	}
	when := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	statements := []struct {
		text string
		args []any
		rows int64
	}{
		{"INSERT INTO %s (s) VALUES (?)", []any{`it's "a" \ -- # ; ?`}, 1},
		{"INSERT INTO %s (s, b, f, d) VALUES (?, ?, ?, ?), (?, ?, ?, ?)", []any{"x", []byte{0, 1, 0xff, '\''}, 1.5, when, nil, nil, true, nil}, 2},
		{"INSERT INTO %s (id, n) VALUES (?, ?)", []any{100, int64(-1) << 63}, 1},
		{"INSERT INTO %s (n) VALUES (1), (2), (3)", nil, 3},
		{"UPDATE %s SET n = n + 1 WHERE id = ?", []any{2}, 1},
		{"UPDATE %s SET n = n WHERE id = 2", nil, -1},
		{"UPDATE %s SET s = ';', n = n + 1 WHERE s <> 'COMMIT; DROP TABLE x' AND id < ?", []any{3}, 2},
		{"DELETE FROM %s WHERE id IN (?, ?)", []any{1, 2}, 2},
		{"REPLACE INTO %s (id, n) VALUES (?, ?)", []any{1, 9}, 2},
		{"INSERT INTO %s (id, n) VALUES (1, 5) ON DUPLICATE KEY UPDATE n = VALUES(n)", nil, 2},
		{"UPDATE %s SET n = 7 /*! WHERE id = 1 */", nil, 1},
		{"/* why */ update %s SET n = 8 WHERE id = 1", nil, 1},
		{"UPDATE %s SET n = lockstep_rows + v_rows + p_rows WHERE id = 1", nil, 1},
	}
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for name, p := range pools {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				trips, count := testdb.CountTrips(t)
				cfg := db.Config(count)
				cfg.InterpolateParams = true
				p.mutate(cfg)
				pool := newPool(t, cfg, true)
				pool.SetMaxOpenConns(1)
				create := func() string {
					table := db.CreateTable(t, "last", "id INT PRIMARY KEY AUTO_INCREMENT, n BIGINT, s VARCHAR(99) CHARACTER SET utf8mb4, b BLOB, f DOUBLE, d DATETIME,"+
						" lockstep_rows INT NOT NULL DEFAULT 1, v_rows INT NOT NULL DEFAULT 1, p_rows INT NOT NULL DEFAULT 1")
					db.Exec(t, "INSERT INTO "+table+" (n, s) VALUES (1, 'a'), (2, 'b')")
					return table
				}
				if p.trips > 1 { // the first tells that the driver puts no arguments into texts
					check(t, lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
						_, err := tx.ExecContext(s.CommitWith(t.Context(), 0), "DELETE FROM "+create()+" WHERE id = ?", 0)
						return err
					}))
				}
				for _, c := range statements {
					alone, last := create(), create()
					var want, got sql.Result
					check(t, lastly(t, pool, func(tx *sql.Tx, _ *txlock.Scope) (err error) {
						want, err = tx.ExecContext(t.Context(), fmt.Sprintf(c.text, alone), c.args...)
						return err
					}))
					sent := 0
					check(t, lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) (err error) {
						sent = trips.Count()
						got, err = tx.ExecContext(s.CommitWith(t.Context(), c.rows), fmt.Sprintf(c.text, last), c.args...)
						return err
					}))
					sent = trips.Count() - sent
					trip := p.trips
					if len(c.args) == 0 {
						trip = 1
					}
					switch {
					case sharesTexts(db.Engine()):
					case trip == 1:
						trip = 2
					default:
						trip = 3
					}
					if sent != trip {
						t.Errorf("%s: %d round trips, want %d", c.text, sent, trip)
					}
					for _, of := range []func(sql.Result) (int64, error){sql.Result.RowsAffected, sql.Result.LastInsertId} {
						a, errA := of(want)
						b, errB := of(got)
						given := strings.HasPrefix(c.text, "REPLACE") || strings.Contains(c.text, "(id") // an id that the server hasn't made
						if a != b && (b != 0 || !given) || errA != nil || errB != nil {
							t.Errorf("%s: %d alone, %d as the last, %v, %v", c.text, a, b, errA, errB)
						}
					}
					var differ int
					check(t, db.Admin().QueryRow("SELECT COUNT(*) FROM (SELECT * FROM "+alone+" UNION ALL SELECT * FROM "+last+") t"+
						" GROUP BY id, n, s, b, f, d HAVING COUNT(*) <> 2 UNION ALL SELECT 0 LIMIT 1").Scan(&differ))
					if differ != 0 {
						t.Errorf("%s: the rows differ", c.text)
					}
				}
			})
		}
	})
}

// TestPreparedSale proves that with the data source name as the driver has it by default a
// sale has two round trips as well, from the third on: each of the two texts is prepared once.
func TestPreparedSale(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if !sharesTexts(db.Engine()) {
			t.Skip("the procedures are missing")
		}
		trips, count := testdb.CountTrips(t)
		cfg := db.Config(count)
		cfg.InterpolateParams = false
		pool := newPool(t, cfg, true)
		pool.SetMaxOpenConns(1)
		table := db.CreateTable(t, "last", "id INT PRIMARY KEY, n INT, d DATETIME(6)")
		db.Exec(t, "INSERT INTO "+table+" VALUES (1, 1000, NULL)")
		sent := 0
		for i := range 40 {
			before, n := trips.Count(), 0
			check(t, locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
				s, err := locksqlc.Join(t.Context(), tx)
				check(t, err)
				check(t, tx.QueryRowContext(s.LockWith(t.Context(), uniqueKey(t, "sale")), "SELECT n FROM "+table+" WHERE id = ?", 1).Scan(&n))
				_, err = tx.ExecContext(s.CommitWith(t.Context(), 1), "UPDATE "+table+" SET n = ?, d = ? WHERE id = ?", n-1, time.Now(), 1)
				return err
			}))
			if sent = trips.Count() - before; n != 1000-i {
				t.Errorf("sale %d has read %d", i, n)
			}
			if i > 1 && sent != 2 {
				t.Errorf("sale %d has %d round trips", i, sent)
			}
		}
	})
}

// TestLargeLastStatement proves that an argument which the driver doesn't write into a text, as
// that would be too large, changes nothing for the statements behind it: they are not prepared.
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
				_, err := tx.ExecContext(s.CommitWith(t.Context(), 1), "UPDATE "+table+" SET b = ? WHERE id = ?", make([]byte, most), 1)
				return err
			}))
			id, before := 0, trips.Count()
			check(t, locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
				s, err := locksqlc.Join(t.Context(), tx)
				check(t, err)
				return tx.QueryRowContext(s.LockWith(t.Context(), uniqueKey(t, "large")), "SELECT id FROM "+table+" WHERE id = ?", 1).Scan(&id)
			}))
			if n := trips.Count() - before; n != 2 || id != 1 { // with the COMMIT
				t.Errorf("%d round trips behind %d bytes", n, most)
			}
		}
	})
}

// TestCommitWithOtherRows proves that nothing is committed where the statement has changed
// another number of rows or has failed, that the transaction goes on, and that it takes its
// locks along.
func TestCommitWithOtherRows(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, interpolate := range []bool{true, false} {
			cfg := db.Config()
			cfg.InterpolateParams = interpolate
			pool := newPool(t, cfg, true)
			for _, c := range []struct {
				text string
				rows int64
				want error
			}{
				{"UPDATE %s SET n = n + 1 WHERE id = 3", 1, txlock.ErrRows},
				{"UPDATE %s SET n = n + 1 WHERE id < 3", 1, txlock.ErrRows},
				{"DELETE FROM %s", 0, txlock.ErrRows},
				{"INSERT INTO %s VALUES (1, 1)", 1, &mysql.MySQLError{Number: 1062}},
				{"UPDATE %s SET none = 1", 1, &mysql.MySQLError{Number: 1054}},
				{"UPDATE %s SET n = 1; COMMIT", 1, nil},
				{"UPDATE %[1]s SET n = 9 WHERE id = 1; UPDATE %[1]s SET n = 9 WHERE id = 2", 1, nil},
				{"SELECT * FROM %s", 1, nil},
				{"DELETE FROM %s RETURNING id", 1, nil},
				{"CREATE TABLE %s (n INT)", 0, nil},
				{"SET @a = '%s'", 0, nil},
				{"COMMIT -- %s", 0, nil},
			} {
				table := db.CreateTable(t, "last", "id INT PRIMARY KEY, n INT")
				db.Exec(t, "INSERT INTO "+table+" VALUES (1, 1), (2, 2)")
				key, n := uniqueKey(t, "last"), 0
				err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
					s, err := locksqlc.Join(t.Context(), tx)
					check(t, err)
					_, err = tx.ExecContext(s.CommitWith(t.Context(), c.rows), fmt.Sprintf(c.text, table))
					server := new(mysql.MySQLError)
					switch {
					case c.want == nil && (err == nil || !strings.Contains(err.Error(), "single INSERT, UPDATE, DELETE or REPLACE")),
						c.want != nil && !errors.Is(err, c.want):
						t.Errorf("%s: %v, want %v", c.text, err, c.want)
					case errors.As(err, &server) && errors.Is(err, txlock.ErrTxDoomed):
						t.Errorf("%s: %v", c.text, err)
					}
					if _, held := s.Held(key); !held {
						t.Errorf("%s: the lock isn't held any more", c.text)
					}
					check(t, s.Verify(t.Context()))
					_, err = tx.ExecContext(t.Context(), "UPDATE "+table+" SET n = 7 WHERE id = 2")
					check(t, err)
					return errInner
				})
				isError(t, c.text, err, errInner)
				check(t, db.Admin().QueryRow("SELECT SUM(n) FROM "+table).Scan(&n))
				if n != 3 {
					t.Errorf("%s: a part of it is committed: %d", c.text, n)
				}
			}
		}
	})
}

var errInner = errors.New("the function fails")

// TestCommitWithAndBehind proves what becomes of a transaction behind the statement that has
// committed it: whatever follows is refused, its function isn't run again, and what it returns
// is told as the error behind a commit.
func TestCommitWithAndBehind(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(), true)
		for _, returns := range []error{errInner, txlock.ErrDeadlock, &mysql.MySQLError{Number: 1213}, context.Canceled} {
			table, calls, n := db.CreateTable(t, "last", "id INT PRIMARY KEY AUTO_INCREMENT"), 0, 0
			err := lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
				calls++
				ctx := s.CommitWith(t.Context(), 1)
				_, err := tx.ExecContext(ctx, "INSERT INTO "+table+" VALUES ()")
				check(t, err)
				for _, ctx := range []context.Context{t.Context(), ctx} {
					if _, err := tx.ExecContext(ctx, "INSERT INTO "+table+" VALUES ()"); err == nil {
						t.Error("a statement behind the COMMIT is executed")
					}
				}
				_, err = s.Lock(t.Context(), uniqueKey(t, "behind"))
				isError(t, "a lock behind", err, txlock.ErrNoTransaction)
				return returns
			})
			check(t, db.Admin().QueryRow("SELECT COUNT(*) FROM "+table).Scan(&n))
			if !errors.Is(err, returns) || txlock.Retryable(err) || !strings.Contains(err.Error(), "by CommitWith, and what it did stays") || calls != 1 || n != 1 {
				t.Errorf("%v after %d calls, with %d rows", err, calls, n)
			}
		}
		// A transaction of the program's own.
		table, n := db.CreateTable(t, "last", "id INT PRIMARY KEY AUTO_INCREMENT"), 0
		for range 2 {
			tx, err := pool.BeginTx(t.Context(), nil)
			check(t, err)
			s, err := locksqlc.Join(t.Context(), tx)
			check(t, err)
			_, err = tx.ExecContext(s.CommitWith(t.Context(), 1), "INSERT INTO "+table+" VALUES ()")
			check(t, err)
			if n++; n == 1 {
				err = tx.Commit()
			} else {
				err = tx.Rollback()
			}
			check(t, err)
		}
		check(t, db.Admin().QueryRow("SELECT COUNT(*) FROM "+table).Scan(&n))
		if n != 2 {
			t.Errorf("%d rows", n)
		}
	})
}

// TestCommitWithALostLock proves that the last statement of a transaction which has lost a
// lock by its own COMMIT isn't sent.
func TestCommitWithALostLock(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(), true)
		table, n := db.CreateTable(t, "last", "id INT PRIMARY KEY AUTO_INCREMENT"), 0
		err := lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
			_, err := tx.ExecContext(t.Context(), "COMMIT")
			check(t, err)
			_, err = tx.ExecContext(s.CommitWith(t.Context(), 1), "INSERT INTO "+table+" VALUES ()")
			return err
		})
		isError(t, "without its lock", err, txlock.ErrTxDoomed)
		check(t, db.Admin().QueryRow("SELECT COUNT(*) FROM "+table).Scan(&n))
		if n != 0 {
			t.Errorf("%d rows", n)
		}
	})
}

// TestCommitWithAsAlone proves that what can't share a text with its COMMIT is sent by itself:
// what asks for the statement before, what takes no argument where one is, and what would be too
// long for the driver. Ids of the upper half are those of the statement alone.
func TestCommitWithAsAlone(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		cfg := db.Config()
		cfg.InterpolateParams, cfg.MaxAllowedPacket = true, 70_000
		pool := newPool(t, cfg, true)
		table := db.CreateTable(t, "alone", "id BIGINT UNSIGNED PRIMARY KEY AUTO_INCREMENT, n BIGINT UNSIGNED, s TEXT")
		for _, c := range []struct {
			text string
			args []any
		}{
			{"INSERT INTO " + table + " (n) SELECT LAST_INSERT_ID()", nil},
			{"INSERT INTO " + table + " (n) SELECT @@last_insert_id", nil},
			{"INSERT INTO " + table + " (s) SELECT GROUP_CONCAT(n SEPARATOR ?) FROM " + table + " WHERE id < 5", []any{"-"}},
			{"INSERT INTO " + table + " (s) VALUES ('" + strings.Repeat("x", 50_000) + "')", nil},
			{"INSERT INTO " + table + " (id) VALUES (18446744073709551000)", nil},
			{"INSERT INTO " + table + " (n) VALUES (1)", nil},
		} {
			var results [2][3]any
			for i := range results {
				db.Exec(t, "TRUNCATE TABLE "+table)
				check(t, lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
					for range 2 {
						_, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" (n) VALUES (7)")
						check(t, err)
					}
					ctx := t.Context()
					if i == 1 {
						ctx = s.CommitWith(ctx, 1)
					}
					result, err := tx.ExecContext(ctx, c.text, c.args...)
					if err != nil {
						return err
					}
					if results[i][0], err = result.LastInsertId(); err != nil {
						return err
					}
					return nil
				}))
				var n sql.NullInt64
				var text sql.NullString
				check(t, db.Admin().QueryRow("SELECT n, LENGTH(s) FROM "+table+" ORDER BY id DESC LIMIT 1").Scan(&n, &text))
				results[i][1], results[i][2] = n, text
			}
			if strings.Contains(c.text, "184467") {
				results[0][0] = results[1][0] // which the server hasn't made
			}
			if results[0] != results[1] {
				t.Errorf("%.80s: alone %v, as the last %v", c.text, results[0], results[1])
			}
		}
		check(t, lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
			rows, err := tx.QueryContext(t.Context(), "SELECT 1")
			check(t, err)
			_, err = tx.ExecContext(s.CommitWith(t.Context(), 1), "INSERT INTO "+table+" (n) VALUES (1)")
			if !errors.Is(err, txlock.ErrOpenRows) || errors.Is(err, txlock.ErrUnknownOutcome) {
				t.Errorf("while rows are open: %v", err)
			}
			return rows.Close()
		}))
	})
}

// TestCommitWithInterrupted proves that a statement which was interrupted behind its change, and
// before the COMMIT, leaves nothing that could be committed.
func TestCommitWithInterrupted(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		cfg := db.AdminConfig()
		cfg.InterpolateParams = true
		pool := newPool(t, cfg, true)
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
			tx, err := pool.BeginTx(t.Context(), nil)
			check(t, err)
			s, err := locksqlc.Join(t.Context(), tx)
			check(t, err)
			session <- testdb.ConnID(t, tx)
			_, err = tx.ExecContext(s.CommitWith(t.Context(), 1), fmt.Sprintf("INSERT INTO %s VALUES (%d)", table, i))
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
			n := 0
			check(t, db.Admin().QueryRow(fmt.Sprintf("SELECT COUNT(*) FROM %s WHERE id = %d", table, i)).Scan(&n))
			if (err == nil) != (n == 1) {
				t.Errorf("%v, and %d rows", err, n)
			}
			applied += n
		}
		t.Logf("%d applied, %d interrupted", applied, doomed)
	})
}

// TestCommitWithUnanswered proves that a COMMIT with its statement, or behind it, that isn't
// answered is an outcome that nobody knows, and that the transaction isn't run again.
func TestCommitWithUnanswered(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, text := range []string{"INSERT INTO %s (s) VALUES ('a')", "INSERT INTO %s (s) VALUES ('ä')"} {
			for _, arrives := range []bool{true, false} {
				cfg := db.Config(testdb.LosingCommits(arrives))
				cfg.InterpolateParams = true
				pool := newPool(t, cfg, true)
				table, calls := db.CreateTable(t, "last", "id INT PRIMARY KEY AUTO_INCREMENT, s VARCHAR(9)"), 0
				err := lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
					calls++
					_, err := tx.ExecContext(s.CommitWith(t.Context(), 1), fmt.Sprintf(text, table))
					return err
				})
				if !errors.Is(err, txlock.ErrUnknownOutcome) || errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) || calls != 1 {
					t.Errorf("%s, arrives %t: %v after %d calls", text, arrives, err, calls)
				}
			}
		}
	})
}

// TestCommitWithRefused proves that a statement isn't sent where it must not commit, or where
// nobody would see that it is to.
func TestCommitWithRefused(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		guarded, plain := newPool(t, db.Config(), true), newPool(t, db.Config(), false)
		table, n := db.CreateTable(t, "last", "id INT PRIMARY KEY AUTO_INCREMENT"), 0
		insert := func(tx *sql.Tx, rows int64) error {
			s, err := locksqlc.Join(t.Context(), tx)
			check(t, err)
			_, err = tx.ExecContext(s.CommitWith(t.Context(), rows), "INSERT INTO "+table+" VALUES ()")
			return err
		}
		fn := func(tx *sql.Tx) error { return insert(tx, 1) }
		key := uniqueKey(t, "refused")
		isError(t, "Optimistic", locksqlc.Optimistic(t.Context(), guarded, key, fn), txlock.ErrInvalidOption)
		_, err := locksqlc.Once(t.Context(), guarded, key, fn)
		isError(t, "Once", err, txlock.ErrInvalidOption)
		isError(t, "a plain pool", locksqlc.Run(t.Context(), plain, nil, fn), txlock.ErrUnguarded)
		isError(t, "-2 rows", locksqlc.Run(t.Context(), guarded, nil, func(tx *sql.Tx) error { return insert(tx, -2) }), txlock.ErrInvalidOption)
		check(t, lastly(t, guarded, func(_ *sql.Tx, s *txlock.Scope) error {
			return lastly(t, guarded, func(other *sql.Tx, _ *txlock.Scope) error {
				if _, err := other.ExecContext(s.CommitWith(t.Context(), 1), "INSERT INTO "+table+" VALUES ()"); err == nil || !strings.Contains(err.Error(), "another transaction") {
					t.Errorf("in another transaction: %v", err)
				}
				another := newPool(t, db.Config(), true)
				check(t, lastly(t, another, func(other *sql.Tx, _ *txlock.Scope) error {
					for _, ctx := range []context.Context{s.CommitWith(t.Context(), 1), s.LockWith(t.Context(), uniqueKey(t, "another"))} {
						if _, err := other.ExecContext(ctx, "INSERT INTO "+table+" VALUES ()"); err == nil || !strings.Contains(err.Error(), "another transaction") {
							t.Errorf("on another pool: %v", err)
						}
					}
					_, err := other.ExecContext(t.Context(), "DELETE FROM "+table)
					return err
				}))
				if _, err := guarded.ExecContext(s.CommitWith(t.Context(), 1), "INSERT INTO "+table+" VALUES ()"); err == nil || !strings.Contains(err.Error(), "another transaction") {
					t.Errorf("on the pool: %v", err)
				}
				return nil
			})
		}))
		check(t, db.Admin().QueryRow("SELECT COUNT(*) FROM "+table).Scan(&n))
		if n != 0 {
			t.Errorf("%d rows", n)
		}
	})
}

func isError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}
