package locksqlc_test

import (
	"context"
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

// TestSharedTextsAsAlone proves that a statement which shares a text with one of lockstep's does what it
// does alone: the first of a pool, too, and with all kinds of arguments.
func TestSharedTextsAsAlone(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "alike", "id INT PRIMARY KEY AUTO_INCREMENT, n INT, s VARCHAR(99)")
		for _, interpolates := range []bool{true, false} {
			for _, c := range []struct {
				text   string
				args   []any
				params map[string]string
			}{
				{"SELECT id FROM %s ORDER BY ? DESC LIMIT 1", []any{1}, nil},
				{"SELECT id FROM %s WHERE s <> ? ORDER BY ? DESC LIMIT 1", []any{"no", 1}, nil},
				{"SELECT CONCAT(? * 1, '%'), TRUNCATE(?, 2)", []any{1.5, -2.345}, nil},
				{"SELECT id FROM %s ORDER BY id LIMIT ?", []any{"1"}, nil},
				{"SELECT id FROM %s WHERE s > ? ORDER BY id LIMIT ?", []any{"", 2}, nil},
				{"SELECT CONCAT(?, '%'), ?", []any{1.5, "x"}, nil},
				{"SELECT GREATEST(?, ?)", []any{"a", 300}, nil},
				{"DELETE FROM %s WHERE id IN (?, ?) ORDER BY id", []any{-3, "2"}, nil},
				{"SELECT COUNT(*) FROM %s WHERE id < ? AND (s = ? OR n IS NOT ?)", []any{uint64(1) << 63, "a", nil}, nil},
				{"SELECT IF(?, ?, ?), COALESCE(?, ?)", []any{true, 1, nil, nil, "x"}, nil},
				{"SELECT 7 -?, -?", []any{-1, -9223372036854775807}, nil},
				{"SELECT ?", []any{sql.Named("n", 1)}, nil},
				{"UPDATE %s SET n = ? WHERE id = 1", []any{sql.Named("n", 77)}, nil},
				{"UPDATE %s SET n = 8 WHERE id IS NULL", nil, map[string]string{"sql_auto_is_null": "1"}},
				{"SELECT id FROM %s WHERE id IS NULL", nil, map[string]string{"sql_auto_is_null": "1"}},
				{"UPDATE %s SET n = 9 WHERE id IN (? " + strings.Repeat(", ?", 30_000) + ")", longs(30_001), nil},
				{"UPDATE %s SET s = ? WHERE n = ? ORDER BY ? LIMIT 1", []any{"z", 10, 1}, nil},
			} {
				if db.Engine() == testdb.MariaDB && interpolates && c.text == "SELECT id FROM %s ORDER BY id LIMIT ?" {
					continue // alone it is a syntax error
				}
				var got [3]string
				for with := range got { // alone, by the first statement of a pool, and by the second
					cfg := db.Config()
					cfg.InterpolateParams, cfg.Params = interpolates, c.params
					pool := newPool(t, cfg, true)
					db.Exec(t, "TRUNCATE TABLE "+table)
					db.Exec(t, "INSERT INTO "+table+" VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c')")
					if with == 2 {
						exec(t, pool, "DELETE FROM "+table+" WHERE id = ?", 0)
					}
					got[with] = doneBy(t, pool, with > 0, strings.ReplaceAll(c.text, "%s", table), table, c.args)
					check(t, pool.Close())
				}
				if got[0] != got[1] || got[0] != got[2] {
					t.Errorf("%.80s, interpolated %t: alone %s, with lockstep's %q", c.text, interpolates, got[0], got[1:])
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
func doneBy(t *testing.T, pool *sql.DB, with bool, text, table string, args []any) string {
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
		if !reads && strings.Contains(text, "IS NULL") {
			exec(t, tx, "INSERT INTO "+table+" (n) VALUES (7)")
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
	case errors.As(err, &server):
		did += fmt.Sprint(" error ", server.Number, " doomed ", errors.Is(err, txlock.ErrTxDoomed))
	case err != nil:
		did += " " + err.Error()
	}
	var sum string
	check(t, pool.QueryRowContext(context.Background(), "SELECT GROUP_CONCAT(CONCAT_WS(' ', id, n, s) ORDER BY id) FROM "+table).Scan(&sum))
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
