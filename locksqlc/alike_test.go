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

// TestSharedTextsAsAlone proves that a statement which shares a text with one of lockstep's does what it
// does alone: the first of a pool, too, and with all kinds of arguments.
func TestSharedTextsAsAlone(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "alike", "id INT PRIMARY KEY AUTO_INCREMENT, n INT, s TEXT")
		before := "INSERT INTO " + table + " (n) VALUES (7)"
		for _, interpolates := range []bool{true, false} {
			open := func(parameters string, known bool) *sql.DB {
				cfg, err := mysql.ParseDSN(fmt.Sprintf("%s?interpolateParams=%t%s", db.DSN(), interpolates, parameters))
				check(t, err)
				pool := newPool(t, cfg, true)
				if known {
					exec(t, pool, "DELETE FROM "+table+" WHERE id = ?", 0)
				}
				return pool
			}
			known := open("", true)
			type sent struct {
				text       string
				args       []any
				before     string // sent in the transaction
				parameters string // of the data source name
			}
			cases := []sent{
				{"SELECT id FROM %s ORDER BY ? DESC LIMIT 1", []any{1}, "", ""},
				{"SELECT id FROM %s WHERE s <> ? ORDER BY ? DESC LIMIT 1", []any{"no", 1}, "", ""},
				{"SELECT CONCAT(? * 1, '%'), TRUNCATE(?, 2)", []any{1.5, -2.345}, "", ""},
				{"SELECT id FROM %s ORDER BY id LIMIT ?", []any{"1"}, "", ""},
				{"SELECT id FROM %s WHERE s > ? ORDER BY id LIMIT ?", []any{"", 2}, "", ""},
				{"SELECT CONCAT(?, '%'), ?", []any{1.5, "x"}, "", ""},
				{"SELECT GREATEST(?, ?)", []any{"a", 300}, "", ""},
				{"DELETE FROM %s WHERE id IN (?, ?) ORDER BY id", []any{-3, "2"}, "", ""},
				{"SELECT COUNT(*) FROM %s WHERE id < ? AND (s = ? OR n IS NOT ?)", []any{uint64(1) << 63, "a", nil}, "", ""},
				{"SELECT IF(?, ?, ?), COALESCE(?, ?)", []any{true, 1, nil, nil, "x"}, "", ""},
				{"SELECT 7 -?, -?", []any{-1, -9223372036854775807}, "", ""},
				{"SELECT ?", []any{sql.Named("n", 1)}, "", ""},
				{"UPDATE %s SET n = ? WHERE id = 1", []any{sql.Named("n", 77)}, "", ""},
				{"UPDATE %s SET n = 8 WHERE id IS NULL", nil, before, "&sql_auto_is_null=1"},
				{"SELECT id FROM %s WHERE id IS NULL", nil, "", "&sql_auto_is_null=1"},
				{"UPDATE %s SET n = 9 WHERE id IN (? " + strings.Repeat(", ?", 30_000) + ")", longs(30_001), "", ""},
				{"UPDATE %s SET s = ? WHERE n = ? ORDER BY ? LIMIT 1", []any{"z", 10, 1}, "", ""},
				{"INSERT INTO %s (id, n) SELECT ?, id FROM %s ORDER BY ? DESC LIMIT 1", []any{7, 2}, "", ""},
				{"INSERT INTO %s (n) SELECT LAST_INSERT_ID()", nil, before, ""},
				{"INSERT INTO %s (n) SELECT @@last_insert_id", nil, before, ""},
				{"INSERT INTO %s (s) SELECT GROUP_CONCAT(n SEPARATOR ?) FROM %s", []any{"-"}, "", ""},
				{"INSERT INTO %s (s) VALUES ('" + strings.Repeat("x", 50_000) + "')", nil, "", "&maxAllowedPacket=70000"},
				{"UPDATE `%s` SET s = ? WHERE id = ?", []any{5, 1}, "", ""},
				{"UPDATE %s SET s = '?' WHERE id = ?", []any{7, 2}, "", ""}, // a question mark in quotes, or in a comment, is no argument
				{`UPDATE %s SET s = "?" WHERE id = ?`, []any{7, 2}, "", ""},
				{"UPDATE %s SET s = 'b' /* ? */ WHERE id = ?", []any{7, 2}, "", ""},
				{"UPDATE %s SET s = 'c' -- ?\n WHERE id = ?", []any{7, 2}, "", ""},
				{"UPDATE %s SET s = 'd' # ?\n WHERE id = ?", []any{7, 2}, "", ""},
				{"UPDATE %s AS `?` SET s = 'e' WHERE id = ?", []any{7, 2}, "", ""},
				{`UPDATE %s SET s = '\'?' WHERE id = ?`, []any{7, 2}, "", ""},
			}
			typed := len(cases) // from here on, a connection executes a text with one type of argument after the other
			for _, arg := range []any{1.5, int64(1<<62 + 1), "abc", nil, []byte("de\x00f"), true, uint64(1<<64 - 1), strings.Repeat("ä", 4000), "7", time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC), int64(-1), 0.1, ""} {
				for _, text := range []string{"SELECT CONCAT('<', COALESCE(?, s, '-'), '>') FROM %s WHERE id = 1", "UPDATE %s SET s = CONCAT('<', COALESCE(?, s, '-'), '>') WHERE id = 1"} {
					cases = append(cases, sent{text, []any{arg}, "", ""})
				}
			}
			for i, c := range cases {
				if i == typed {
					known = open("", true) // whose connection keeps none of the texts above
				}
				if db.Engine() == testdb.MariaDB && interpolates && c.text == "SELECT id FROM %s ORDER BY id LIMIT ?" {
					continue // alone it is a syntax error
				}
				var got [3]string
				for with := range got { // alone, by the first statement of a pool, and by another
					pool := known
					if with == 1 && i < typed || c.parameters != "" {
						pool = open(c.parameters, with == 2)
					}
					empties := "DELETE FROM "
					if strings.HasPrefix(c.text, "INSERT") || c.before != "" { // whose rows get the same ids again
						empties = "TRUNCATE TABLE "
					}
					db.Exec(t, empties+table)
					db.Exec(t, "INSERT INTO "+table+" VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c')")
					got[with] = doneBy(t, pool, with > 0, strings.ReplaceAll(c.text, "%s", table), c.before, table, c.args)
					if pool != known {
						check(t, pool.Close())
					}
				}
				if got[0] != got[1] || got[0] != got[2] {
					t.Errorf("%.80s with %.80v, interpolated %t: alone %.500s, with lockstep's %.500q", c.text, c.args, interpolates, got[0], got[1:])
				}
			}
		}
	})
}

func longs(n int) []any {
	all := make([]any, n)
	for i := range all {
		all[i] = -9000000000000000000 + int64(i)
	}
	all[0] = 1
	return all
}

// doneBy returns what a statement does in a transaction, alone or with a lock or COMMIT.
func doneBy(t *testing.T, pool *sql.DB, with bool, text, before, table string, args []any) string {
	t.Helper()
	did, key := "", uniqueKey(t, "alike")
	err := locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
		s := join(t, tx)
		reads, ctx := strings.HasPrefix(text, "SELECT"), t.Context()
		switch {
		case with && reads:
			ctx = s.LockWith(ctx, key)
		case with:
			ctx = s.CommitWith(ctx, txlock.AnyRows)
		default:
			check(t, second(s.Lock(ctx, key)))
		}
		if before != "" {
			exec(t, tx, before)
		}
		if reads {
			rows, err := tx.QueryContext(ctx, text, args...)
			if err == nil {
				did, err = allOf(rows)
			}
			return err
		}
		result, err := tx.ExecContext(ctx, text, args...)
		if err == nil {
			n, _ := result.RowsAffected()
			did = fmt.Sprint(n)
		}
		return err
	})
	server := new(mysql.MySQLError)
	switch {
	case err != nil && strings.Contains(err.Error(), " arguments"): // as database/sql or the server says it
		did += " error of arguments"
	case errors.As(err, &server):
		did += fmt.Sprint(" error ", server.Number, " doomed ", errors.Is(err, txlock.ErrTxDoomed))
	case err != nil:
		did += " " + err.Error()
	}
	var sum string
	check(t, pool.QueryRowContext(context.Background(), "SELECT GROUP_CONCAT(CONCAT_WS(' ', id, n, CRC32(s), s) ORDER BY id) FROM "+table).Scan(&sum))
	return did + " leaves " + sum
}

func allOf(rows *sql.Rows) (all string, err error) {
	columns, err := rows.Columns()
	for err == nil && rows.Next() {
		values := make([]sql.NullString, len(columns))
		to := make([]any, len(columns))
		for i := range values {
			to[i] = &values[i]
		}
		err = rows.Scan(to...)
		all += fmt.Sprint(values)
	}
	return all, errors.Join(err, rows.Err(), rows.Close())
}
