package locksqlc_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestFunctionThatEndsItsTransaction proves that Run says of a function that has committed
// or rolled back the transaction itself, and doesn't call it again.
func TestFunctionThatEndsItsTransaction(t *testing.T) {
	deadlock := &mysql.MySQLError{Number: 1213, Message: "of something else"}
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		for _, c := range []struct {
			end     func(tx *sql.Tx) error
			returns error
			rows    int
			says    string
			onPlain string
		}{
			{end: (*sql.Tx).Commit, rows: 1, says: "by its own function, and what that did stays", onPlain: "which called Commit or Rollback"},
			{end: (*sql.Tx).Commit, returns: deadlock, rows: 1, says: "by its own function, and what that did stays", onPlain: "committed before its end"},
			{end: (*sql.Tx).Commit, returns: fmt.Errorf("of another transaction: %w", txlock.ErrDeadlock), rows: 1, says: "by its own function, and what that did stays", onPlain: "committed before its end"},
			{end: (*sql.Tx).Commit, returns: errInner, rows: 1, says: "by its own function, and what that did stays"},
			{end: (*sql.Tx).Rollback, says: "which called Commit or Rollback", onPlain: "which called Commit or Rollback"},
			{end: (*sql.Tx).Rollback, returns: errInner},
		} {
			table, key, calls := db.CreateTable(t, "ended", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "ended"), 0
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
				calls++
				_, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES ()")
				return errors.Join(err, c.end(tx), c.returns)
			})
			says, n := c.says, count(t, db.Admin(), "SELECT COUNT(*) FROM "+table)
			if !guarded {
				says = c.onPlain
			}
			if err == nil || c.returns != nil && !errors.Is(err, c.returns) || txlock.Retryable(err) || !strings.Contains(err.Error(), says) || calls != 1 || n != c.rows {
				t.Errorf("%v after %d calls, with %d rows, want %q and %d", err, calls, n, says, c.rows)
			}
			if c.returns != deadlock && errors.Is(err, sql.ErrTxDone) != (c.returns == nil) { //nolint:errorlint // the one above
				t.Errorf("%v, behind %v of the function", err, c.returns)
			}
			idle(t, pool)
			wantFree(t, db, key)
		}
	})
}

// TestRunWithoutKeysFindsTheEnd proves that Run without keys, and without locks, says so where
// a statement of its function has ended the transaction.
func TestRunWithoutKeysFindsTheEnd(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.AdminConfig(), true)
		table := db.CreateTable(t, "ended", "id INT PRIMARY KEY AUTO_INCREMENT")
		for _, text := range []string{"COMMIT", "ROLLBACK", "BEGIN", "ROLLBACK AND CHAIN", "CREATE TABLE IF NOT EXISTS " + table + " (id INT)"} {
			calls := 0
			err := locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
				calls++
				for _, query := range []string{"INSERT INTO " + table + " VALUES ()", text} {
					if _, err := tx.ExecContext(t.Context(), query); err != nil {
						return err
					}
				}
				return nil
			})
			if !errors.Is(err, txlock.ErrTxDoomed) || calls != 1 {
				t.Errorf("%s: %v after %d calls", text, err, calls)
			}
		}
	})
}
