package locksqlc_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestArgumentsOfAllTypes: a statement under CommitWith or LockWith means what it means without,
// whatever the types of its arguments were when the connection has executed it before.
func TestArgumentsOfAllTypes(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "typed", "id INT PRIMARY KEY, s VARCHAR(9000) CHARACTER SET utf8mb4, at DATETIME(6)")
		db.Exec(t, "INSERT INTO "+table+" (id) VALUES (1)")
		arguments := []any{1.5, int64(1<<62 + 1), "abc", nil, []byte("de\x00f"), true, uint64(1<<64 - 1), strings.Repeat("ä", 4000), "7", time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC), int64(-1), 0.1, ""}
		for _, interpolate := range []bool{false, true} {
			t.Run(fmt.Sprintf("interpolated=%t", interpolate), func(t *testing.T) {
				pool := newPool(t, db.Config(func(c *mysql.Config) { c.InterpolateParams = interpolate }), true)
				pool.SetMaxOpenConns(1)
				run := func(arg any, with bool) (read, written string) {
					check(t, locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
						s := join(t, tx)
						reads, writes := t.Context(), t.Context()
						if with {
							reads, writes = s.LockWith(reads, txlock.Named("typed")), s.CommitWith(writes, txlock.AnyRows)
						}
						read = scanned(reads, t, tx, "SELECT CONCAT('<', COALESCE(?, s, '-'), '>') FROM "+table+" WHERE id = 1", arg)
						return second(tx.ExecContext(writes, "UPDATE "+table+" SET s = CONCAT('<', COALESCE(?, s, '-'), '>') WHERE id = 1", arg))
					}))
					written = scanned(t.Context(), t, pool, "SELECT s FROM "+table)
					db.Exec(t, "UPDATE "+table+" SET s = 'old' WHERE id = 1")
					return read, written
				}
				db.Exec(t, "UPDATE "+table+" SET s = 'old' WHERE id = 1")
				for range 2 {
					for _, arg := range arguments {
						plainRead, plain := run(arg, false)
						if read, written := run(arg, true); read != plainRead || written != plain {
							t.Errorf("%T %.20v: read %.60q and wrote %.60q, want %.60q and %.60q", arg, arg, read, written, plainRead, plain)
						}
					}
				}
			})
		}
	})
}

func scanned(ctx context.Context, t *testing.T, on interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, query string, args ...any) string {
	t.Helper()
	var s sql.NullString
	check(t, on.QueryRowContext(ctx, query, args...).Scan(&s))
	return s.String
}
