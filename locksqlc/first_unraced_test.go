//go:build !race

package locksqlc_test

import (
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
		{"SELECT s, b, ? AS x FROM %s WHERE s = ? AND b = ?", []any{`it's \ "x" ; --`, "a", []byte{0, 0xff}}, 1},
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
		cfg := db.Config()
		cfg.InterpolateParams = true
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
			if !errors.Is(err, txlock.ErrInvalidOption) || !strings.Contains(err.Error(), "since LockWith") {
				t.Errorf("behind a read: %v", err)
			}
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
			isError(t, "twice", second(tx.QueryContext(s.LockWith(s.LockWith(t.Context(), uniqueKey(t, "first")), uniqueKey(t, "first")), "SELECT 1")), txlock.ErrInvalidOption)
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
