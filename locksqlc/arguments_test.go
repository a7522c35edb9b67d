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

// TestNumbersAreWhatTheDriverSends: a number in ORDER BY is the place of a column where the driver
// writes it into the text, and a value like any other where it is an argument, under CommitWith and
// LockWith too.
func TestNumbersAreWhatTheDriverSends(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "numbered", "id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0")
		db.Exec(t, "INSERT INTO "+table+" (id) VALUES (1), (2), (3)")
		const last = " ORDER BY ? DESC LIMIT 1"
		for _, interpolate := range []bool{false, true} {
			pool := newPool(t, db.Config(func(c *mysql.Config) { c.InterpolateParams = interpolate }), true)
			pool.SetMaxOpenConns(1)
			run := func(with bool) (read, written string) {
				check(t, locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
					s := join(t, tx)
					reads, writes := t.Context(), t.Context()
					if with {
						reads, writes = s.LockWith(reads, txlock.Named("numbered")), s.CommitWith(writes, 1)
					}
					read = scanned(reads, t, tx, "SELECT id FROM "+table+last, 1)
					return second(tx.ExecContext(writes, "INSERT INTO "+table+" (id, n) SELECT ?, id FROM "+table+last, 7, 2))
				}))
				written = scanned(t.Context(), t, pool, "SELECT n FROM "+table+" WHERE id = 7")
				db.Exec(t, "DELETE FROM "+table+" WHERE id = 7")
				return read, written
			}
			plainRead, plain := run(false)
			for range 3 {
				if read, written := run(true); read != plainRead || written != plain {
					t.Errorf("interpolated=%t: read %s and wrote %s, want %s and %s", interpolate, read, written, plainRead, plain)
				}
			}
		}
	})
}

// TestQuotedQuestionMarks: a question mark in quotes or in a comment is no argument under CommitWith
// either.
func TestQuotedQuestionMarks(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "quoted", "id INT PRIMARY KEY, s VARCHAR(20)")
		db.Exec(t, "INSERT INTO "+table+" VALUES (1, '-'), (2, '-')")
		pool := newPool(t, db.Config(func(c *mysql.Config) { c.InterpolateParams = true }), true)
		run := func(with bool, text string, args ...any) (err error) {
			return locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
				s := join(t, tx)
				ctx := t.Context()
				if with {
					ctx = s.CommitWith(ctx, txlock.AnyRows)
				}
				return second(tx.ExecContext(ctx, text, args...))
			})
		}
		check(t, run(false, "UPDATE "+table+" SET s = ? WHERE id = ?", 0, 1))
		for _, text := range []string{"SET s = '?' WHERE id = ?", `SET s = "?" WHERE id = ?`, "SET s = 'b' /* ? */ WHERE id = ?", "SET s = 'c' -- ?\n WHERE id = ?", "SET s = 'd' # ?\n WHERE id = ?", "AS `?` SET s = 'e' WHERE id = ?", `SET s = '\'?' WHERE id = ?`} {
			text = "UPDATE " + table + " " + text
			for _, with := range []bool{false, true, true} {
				if err := run(with, text, 7, 2); err == nil {
					t.Errorf("with=%t: %s has taken two arguments", with, text)
				}
			}
		}
		check(t, run(true, "UPDATE `"+table+"` SET s = ? WHERE id = ?", 5, 1)) // and one without stays a literal
		if s := scanned(t.Context(), t, pool, "SELECT GROUP_CONCAT(s ORDER BY id) FROM "+table); s != "5,-" {
			t.Errorf("the rows are %s", s)
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
