//go:build !race

package locksqlc_test

import (
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
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// TestLockWith proves that a statement which takes a lock with it is answered as it is alone,
// that the lock is held behind it, and how many round trips that takes.
func TestLockWith(t *testing.T) {
	pools := map[string]func(*mysql.Config){
		"as text":      func(*mysql.Config) {},
		"kept":         func(*mysql.Config) {},
		"prepared":     func(c *mysql.Config) { c.InterpolateParams = false },
		"ANSI quotes":  func(c *mysql.Config) { c.Params = map[string]string{"sql_mode": "'ANSI_QUOTES'"} },
		"no backslash": func(c *mysql.Config) { c.Params = map[string]string{"sql_mode": "'NO_BACKSLASH_ESCAPES'"} },
		"latin1":       func(c *mysql.Config) { _ = c.Apply(mysql.Charset("latin1", "")) },
		"gbk":          func(c *mysql.Config) { c.InterpolateParams, _ = false, c.Apply(mysql.Charset("gbk", "")) },
	}
	// All that a compound statement or a procedure declares are columns, too.
	declared := strings.Fields("lockstep_name lockstep_rows p_opening p_name p_slot p_owner p_held p_text p_args p_set p_mode p_client p_collation p_rows v_token v_old v_name v_slot v_outcome v_rows v_changed v_made")
	statements := []struct {
		text  string
		args  []any
		trips int // as text
	}{
		{"SELECT n FROM %s WHERE id = ?", []any{1}, 1},
		{"SELECT * FROM %s ORDER BY id", nil, 1},
		{"SELECT * FROM %s WHERE id > ?", []any{100}, 1},
		{"SELECT s, ? AS x FROM %s WHERE s = ?", []any{`it's \ "x" ; --`, "a"}, 1},
		{"SELECT s, ? AS x FROM %s WHERE id = ? AND b = ?", []any{7, 1, []byte{0, 0xff}}, 1},
		{"select " + strings.Join(declared, ", ") + " from %s FOR UPDATE", nil, 1},
		{"SELECT s, ? AS x FROM %s WHERE id = ?", []any{"\xbf' OR 1 = 1 -- \x5c", 1}, 1},
		{"SELECT COUNT(*), 'it''s; COMMIT -- #' FROM %s", nil, 1},
		{"SELECT 'ä' FROM %s", nil, 2},
		{"SELECT n INTO @lockstep_test FROM %s WHERE id = 1", nil, 2},
		{"UPDATE %s SET n = n + 1", nil, 2},
		{"SHOW COLUMNS FROM %s", nil, 2},
	}
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "first", "id INT PRIMARY KEY, n BIGINT, s VARCHAR(99) CHARACTER SET utf8mb4, b BLOB, d DATETIME(6), f FLOAT, g DOUBLE, e DECIMAL(9,3), u BIGINT UNSIGNED, y YEAR, t TIME(3), a DATE, j JSON, k ENUM('x','y'), z BIT(9), sm SMALLINT, "+strings.Join(declared, " INT NOT NULL DEFAULT 1, ")+" INT NOT NULL DEFAULT 2")
		db.Exec(t, "INSERT INTO "+table+" (id, n, s, b, d, f, g, e, u, y, t, a, j, k, z, sm) VALUES (1, 5, 'a', X'00FF', NOW(6), 0.1, 1e300, 1.25, 18446744073709551615, 1999, '-11:22:33.5', '2020-02-29', '{}', 'y', 257, -7)")
		db.Exec(t, "INSERT INTO "+table+" (id) VALUES (2)")
		for name, mutate := range pools {
			for _, hashed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/hashed=%t", name, hashed), func(t *testing.T) {
					trips, count := testdb.CountTrips(t)
					cfg := db.Config(count)
					cfg.InterpolateParams, cfg.ParseTime = true, true
					mutate(cfg)
					pool := newPool(t, cfg, true)
					if name == "kept" {
						pool = keptPool(t, cfg)
					}
					pool.SetMaxOpenConns(1)
					check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{uniqueKey(t, "first")}, func(*sql.Tx) error { return nil })) // the pool asks for a cluster once
					check(t, lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {                                                 // and finds out once how the driver treats arguments
						return second(tx.ExecContext(s.CommitWith(t.Context(), 0), "DELETE FROM "+table+" WHERE id = ?", 0))
					}))
					for _, c := range statements {
						query := fmt.Sprintf(c.text, table)
						key := uniqueKey(t, "first")
						if hashed {
							key = hashedKeys.Key(key.String())
						}
						var alone, locked string
						sent := 0
						isError(t, query, locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
							rows, err := tx.QueryContext(t.Context(), query, c.args...)
							alone = told(t, rows, err)
							return errInner
						}), errInner)
						run := func(key txlock.Key) error {
							return locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
								s := join(t, tx)
								ctx := s.LockWith(t.Context(), key)
								if _, held := s.Held(key); held && sharesTexts(db.Engine()) {
									t.Errorf("%s: it is held before the statement", query)
								}
								sent = trips.Count()
								rows, err := tx.QueryContext(ctx, query, c.args...)
								locked = told(t, rows, err)
								sent = trips.Count() - sent
								grant, held := s.Held(key)
								if !held || grant.Token() < 1000 || grant.Key() != key {
									t.Errorf("%s: held %t, token %d", query, held, grant.Token())
								}
								check(t, s.Verify(t.Context()))
								again := lock(t, s, key)
								if again != grant {
									t.Errorf("%s: %v, locked again %v", query, grant, again)
								}
								rows, err = tx.QueryContext(ctx, "SELECT 1") // under the same context
								_ = told(t, rows, err)
								return errInner
							})
						}
						err := run(key)
						isError(t, query, err, errInner)
						if alone != locked || strings.HasPrefix(alone, "Error ") {
							t.Errorf("%s: alone %q, with a lock %q", query, alone, locked)
						}
						want := c.trips
						if name == "kept" || (name == "prepared" || name == "gbk") && len(c.args) > 0 { // which is prepared for each text
							key = txlock.Named(key.String() + "/again")
							if hashed {
								key = hashedKeys.Key(key.String())
							}
							isError(t, query, run(key), errInner)
						}
						if !sharesTexts(db.Engine()) {
							want = sent // the lock is taken before
						}
						if sent != want {
							t.Errorf("%s: %d round trips, want %d", query, sent, want)
						}
					}
				})
			}
		}
	})
}

// TestLockWithErrors proves what becomes of the lock and of the transaction where one of the
// two fails.
func TestLockWithErrors(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		cfg := db.Config(interpolating)
		table := db.CreateTable(t, "first", "id INT PRIMARY KEY")
		on := func(pool *sql.DB) func(fn func(tx *sql.Tx, s *txlock.Scope)) {
			return func(fn func(tx *sql.Tx, s *txlock.Scope)) {
				t.Helper()
				tx := begin(t, pool)
				defer func() { check(t, tx.Rollback()) }()
				s := join(t, tx)
				fn(tx, s)
			}
		}
		within := on(newPool(t, cfg, true))
		key := uniqueKey(t, "first")
		tx, s := joined(t, newPool(t, cfg, true), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		exec(t, tx, "INSERT INTO "+table+" VALUES (9)") // which the lock behind it doesn't commit
		rows, err := tx.QueryContext(s.LockWith(t.Context(), key), "SELECT 1")
		_ = told(t, rows, err)
		wantHeld(t, "behind a write", s, key, true)
		check(t, tx.Rollback())
		wantCount(t, db.Admin(), 0, "SELECT COUNT(*) FROM "+table)
		oneSecond(cfg)
		impatient := on(newPool(t, cfg, true))
		for _, text := range []string{"SELECT none FROM " + table, "SELECT 1 FROM none", "SELECT FROM WHERE", "SELECT 1; COMMIT"} {
			within(func(tx *sql.Tx, s *txlock.Scope) { // the statement fails, and the lock is held
				key := uniqueKey(t, "first")
				rows, err := tx.QueryContext(s.LockWith(t.Context(), key), text)
				if err == nil {
					t.Errorf("%s: %s", text, told(t, rows, nil))
				}
				wantHeld(t, text, s, key, true)
				check(t, s.Verify(t.Context()))
			})
		}
		within(func(_ *sql.Tx, holder *txlock.Scope) { // the lock fails, and the statement isn't executed
			key := uniqueKey(t, "first")
			lock(t, holder, key)
			impatient(func(tx *sql.Tx, s *txlock.Scope) {
				ctx := s.LockWith(t.Context(), key)
				for range 2 {
					isError(t, "a lock that is held", second(tx.QueryContext(ctx, "SELECT 1")), txlock.ErrWaitTimeout)
					isError(t, "a lock that is held", second(tx.ExecContext(ctx, "INSERT INTO "+table+" VALUES (1)")), txlock.ErrWaitTimeout)
				}
				wantHeld(t, "a lock that was refused", s, key, false)
				exec(t, tx, "INSERT INTO "+table+" VALUES (2)")
				check(t, s.Verify(t.Context()))
			})
		})
		within(func(tx *sql.Tx, s *txlock.Scope) { // a statement before, and rows that are open
			if !sharesTexts(db.Engine()) {
				return // LockWith has locked
			}
			key, other := uniqueKey(t, "first"), uniqueKey(t, "first")
			ctx := s.LockWith(t.Context(), key)
			rows, err := tx.QueryContext(t.Context(), "SELECT 1")
			check(t, err)
			isError(t, "rows are open", second(tx.QueryContext(ctx, "SELECT 1")), txlock.ErrOpenRows)
			_ = told(t, rows, nil)
			_, err = tx.QueryContext(ctx, "SELECT 1") // what was read since LockWith may be older than the lock
			says(t, "behind a read", err, txlock.ErrInvalidOption, "since LockWith")
			rows, err = tx.QueryContext(s.LockWith(t.Context(), other), "SELECT 1") // which locks at once
			_ = told(t, rows, err)
			wantHeld(t, "a lock behind a read", s, other, true)
		})
		for _, s := range []txlock.Key{{}, txlock.Named(strings.Repeat("x", 300))} {
			within(func(tx *sql.Tx, scope *txlock.Scope) {
				isError(t, "no key", second(tx.QueryContext(scope.LockWith(t.Context(), s), "SELECT 1")), txlock.ErrInvalidKey)
			})
		}
		within(func(tx *sql.Tx, s *txlock.Scope) { // a context of another LockWith
			if !sharesTexts(db.Engine()) {
				return
			}
			_, err := tx.QueryContext(s.LockWith(s.LockWith(t.Context(), uniqueKey(t, "first")), uniqueKey(t, "first")), "SELECT 1")
			isError(t, "twice", err, txlock.ErrInvalidOption)
		})
		within(func(tx *sql.Tx, s *txlock.Scope) { // rows that are read to their end are closed
			rows, err := tx.QueryContext(s.LockWith(t.Context(), uniqueKey(t, "first")), "SELECT 1")
			check(t, err)
			for rows.Next() {
			}
			check(t, rows.Err())
			check(t, errors.Join(second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (3)")), rows.Close()))
		})
		within(func(tx *sql.Tx, s *txlock.Scope) { // an argument that can't be one
			key := uniqueKey(t, "first")
			rows, err := tx.QueryContext(s.LockWith(t.Context(), key), "SELECT GROUP_CONCAT(1 SEPARATOR ?)", "-")
			if _, held := s.Held(key); err != nil || !held {
				t.Errorf("%v, held %t", err, held)
			}
			_ = told(t, rows, err)
		})
		within(func(tx *sql.Tx, s *txlock.Scope) { // others
			a, b, c := uniqueKey(t, "first"), uniqueKey(t, "first"), uniqueKey(t, "first")
			rows, err := tx.QueryContext(s.WaitAtMost(time.Second).LockWith(t.Context(), a), "SELECT 1")
			_ = told(t, rows, err)
			rows, err = tx.QueryContext(s.LockWith(t.Context(), b, txlock.Shared(c)), "SELECT 1")
			_ = told(t, rows, err)
			for _, key := range []txlock.Key{a, b, c} {
				wantHeld(t, "another way", s, key, true)
			}
		})
	})
}

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
		"gbk":          {func(c *mysql.Config) { c.InterpolateParams, _ = false, c.Apply(mysql.Charset("gbk", "")) }, 2},
	}
	when := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	statements := []struct {
		text string
		args []any
		rows int64
	}{
		{"INSERT INTO %s (s) VALUES (?)", []any{`it's "a" \ -- # ; ?`}, 1},
		{"INSERT INTO %s (b) VALUES (?)", []any{[]byte("\xbf' OR 1 = 1 -- \x5c")}, 1},
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
				pool := single(newPool(t, cfg, true))
				create := func() string {
					table := db.CreateTable(t, "last", "id INT PRIMARY KEY AUTO_INCREMENT, n BIGINT, s VARCHAR(99) CHARACTER SET utf8mb4, b BLOB, f DOUBLE, d DATETIME,"+
						" lockstep_rows INT NOT NULL DEFAULT 1, v_rows INT NOT NULL DEFAULT 1, p_rows INT NOT NULL DEFAULT 1")
					db.Exec(t, "INSERT INTO "+table+" (n, s) VALUES (1, 'a'), (2, 'b')")
					return table
				}
				if p.trips > 1 { // the first tells that the driver puts no arguments into texts
					check(t, lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
						return second(tx.ExecContext(s.CommitWith(t.Context(), 0), "DELETE FROM "+create()+" WHERE id = ?", 0))
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
					case sharesTexts(db.Engine()) && (db.Engine() == testdb.MariaDB || p.trips > 1 || !slices.ContainsFunc(c.args, isFloat)): // beside texts they are sent alone
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

func isFloat(arg any) bool { _, is := arg.(float64); return is }

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
				{"UPDATE %s SET n = EXTRACTVALUE('<a/>', '/a[')", 1, &mysql.MySQLError{Number: 1105}}, // of no class
				{"UPDATE %s SET n = SUM(n)", 1, &mysql.MySQLError{Number: 1111}},
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
				key := uniqueKey(t, "last")
				err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
					s := join(t, tx)
					_, err := tx.ExecContext(s.CommitWith(t.Context(), c.rows), fmt.Sprintf(c.text, table))
					server := new(mysql.MySQLError)
					switch {
					case c.want == nil && (err == nil || !strings.Contains(err.Error(), "single INSERT, UPDATE, DELETE or REPLACE")),
						c.want != nil && !errors.Is(err, c.want):
						t.Errorf("%s: %v, want %v", c.text, err, c.want)
					case errors.As(err, &server) && errors.Is(err, txlock.ErrTxDoomed):
						t.Errorf("%s: %v", c.text, err)
					}
					wantHeld(t, c.text, s, key, true)
					check(t, s.Verify(t.Context()))
					exec(t, tx, "UPDATE "+table+" SET n = 7 WHERE id = 2")
					return errInner
				})
				isError(t, c.text, err, errInner)
				if n := count(t, db.Admin(), "SELECT SUM(n) FROM "+table); n != 3 {
					t.Errorf("%s: a part of it is committed: %d", c.text, n)
				}
			}
		}
	})
}

// TestProceduresOfAnotherCreator proves that MySQL reads a statement of the program by the modes of
// its own session, whatever those were under which the procedures that execute it were made.
func TestProceduresOfAnotherCreator(t *testing.T) {
	statements, err := schema.Procedures()
	check(t, err)
	modes := []string{"ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT", ""}
	const values = `"n", 'a' || 'b', '\\'`
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if !hasProcedures(db.Engine()) {
			return
		}
		answers := make(map[string]bool)
		for i, made := range modes {
			own := testdb.Shared(t, db.Engine()).OpenNamed(t)
			creator, err := sql.Open("mysql", own.AdminDSN(func(c *mysql.Config) {
				c.Params = map[string]string{"sql_mode": "'" + made + "'"}
				check(t, c.Apply(mysql.Charset("gbk", "")))
			}))
			check(t, err)
			for _, statement := range statements {
				exec(t, creator, statement)
			}
			check(t, creator.Close())
			table := own.CreateTable(t, "creator", "n INT, s VARCHAR(99)")
			own.Exec(t, "INSERT INTO "+table+" (n) VALUES (5)")
			trips, count := testdb.CountTrips(t)
			cfg := own.Config(count)
			cfg.InterpolateParams, cfg.Params = true, map[string]string{"sql_mode": "'" + modes[1-i] + "'"}
			pool := newPool(t, cfg, true)
			key := uniqueKey(t, "creator")
			check(t, txlock.Ensure(t.Context(), pool, key))
			read, write := "SELECT "+values+" FROM "+table+" WHERE s IS NULL", "INSERT INTO "+table+" SELECT n, CONCAT_WS(',', "+values+") FROM "+table+" WHERE s IS NULL"
			rows, err := pool.QueryContext(t.Context(), read)
			want := told(t, rows, err)
			exec(t, pool, write)
			check(t, locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
				s := join(t, tx)
				before := trips.Count()
				rows, err := tx.QueryContext(s.LockWith(t.Context(), key), read)
				if got := told(t, rows, err); got != want {
					t.Errorf("made under %q: %s, want %s", made, got, want)
				}
				_, err = tx.ExecContext(s.CommitWith(t.Context(), 1), write)
				if sent := trips.Count() - before; sent != 2 {
					t.Errorf("made under %q: %d round trips, want 2", made, sent)
				}
				return err
			}))
			var written, different int
			var value string
			check(t, own.Admin().QueryRowContext(t.Context(), "SELECT COUNT(s), COUNT(DISTINCT s), MIN(s) FROM "+table).Scan(&written, &different, &value))
			if written != 2 || different != 1 {
				t.Errorf("made under %q: %d rows with %d values, one of them %q", made, written, different, value)
			}
			answers[value] = true
		}
		if len(answers) != 2 {
			t.Errorf("the modes make no difference: %v", answers)
		}
	})
}
