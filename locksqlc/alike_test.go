package locksqlc_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestSharedTextsAsAlone proves that a statement which shares a text with one of lockstep's does what it
// does alone: the first of a pool, too, where what it shares is kept prepared, and with all kinds of
// arguments, which are compared, computed and stored in the same way.
func TestSharedTextsAsAlone(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "alike", "id INT PRIMARY KEY AUTO_INCREMENT, n INT, s TEXT")
		before := "INSERT INTO " + table + " (n) VALUES (7)"
		for _, interpolates := range []bool{true, false} {
			config := func(parameters string) *mysql.Config {
				cfg, err := mysql.ParseDSN(fmt.Sprintf("%s?interpolateParams=%t%s", db.DSN(), interpolates, parameters))
				check(t, err)
				return cfg
			}
			open := func(parameters string, known bool) *sql.DB {
				pool := newPool(t, config(parameters), true)
				if known {
					exec(t, pool, "DELETE FROM "+table+" WHERE id = ?", 0)
				}
				return pool
			}
			known, moment := open("", true), time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)
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
				{"UPDATE %s SET s = IF(? = 'A', 'same', 'other') WHERE id = 1", []any{"a"}, "", ""},
				{"UPDATE %s SET s = IF('A' = ?, 'same', 'other') WHERE id = 1", []any{[]byte("a")}, "", ""},
				{"UPDATE %s SET s = IF('A' = ?, 'same', ?) WHERE id = 1", []any{[]byte("a"), "other"}, "", ""},
				{"UPDATE %s SET s = CONCAT('A' = ?, ? + 1, LENGTH(?)) WHERE id = 1", []any{[]byte("a"), []byte("12"), []byte(nil)}, "", ""},
				{"SELECT IF('A' = ?, 'same', 'other') FROM %s WHERE id = 1", []any{[]byte("a")}, "", ""},
				{"UPDATE %s SET s = JSON_SET('{}', '$.a', ?) WHERE id = 1", []any{[]byte{1, 0xff}}, "", ""},
				{"UPDATE %s SET s = JSON_SET('{}', '$.a', ?) WHERE id = 1", []any{json.RawMessage("a")}, "", ""},
				{"UPDATE %s SET s = n - ? WHERE id = 1", []any{uint64(15)}, "", ""},
				{"UPDATE %s SET s = n - ? WHERE id = 1", []any{15}, "", ""},
				{"UPDATE %s SET s = ? / 3 WHERE id = 1", []any{5}, "", ""},
				{"UPDATE %s SET s = (? + 0.2 = 0.3) WHERE id = 1", []any{0.1}, "", ""},
				{"UPDATE %s SET s = ? + 1 WHERE id = 1", []any{true}, "", ""},
				{"UPDATE %s SET n = 1 WHERE id = 1", []any{[]byte("a"), 1.5, 2}, "", ""}, // too many
				{"UPDATE %s SET s = CAST(? AS DATETIME(6)) > CAST('2020-02-29' AS DATETIME) WHERE id = 1", []any{moment}, "", ""},
				{"UPDATE %s SET s = CAST(? + 0 AS CHAR) WHERE id = 1", []any{int64(math.MinInt64)}, "", ""},
			}
			typed := len(cases) // from here on, a connection executes a text with one type of argument after the other
			for _, arg := range []any{1.5, int64(1<<62 + 1), "abc", nil, []byte("de\x00f"), true, uint64(1<<64 - 1), strings.Repeat("ä", 4000), "7", moment, int64(-1), 0.1, ""} {
				for _, text := range []string{"SELECT CONCAT('<', COALESCE(?, s, '-'), '>') FROM %s WHERE id = 1", "UPDATE %s SET s = CONCAT('<', COALESCE(?, s, '-'), '>') WHERE id = 1"} {
					cases = append(cases, sent{text, []any{arg}, "", ""})
				}
			}
			for i, c := range cases {
				if i == typed {
					known = open("", true) // whose connection keeps none of the texts above
				}
				if interpolates && db.Engine() == testdb.MariaDB && c.text == "SELECT id FROM %s ORDER BY id LIMIT ?" { // alone a syntax error
					continue
				}
				kept, waysToDo := (*sql.DB)(nil), 3 // alone, by the first statement of a pool, and by another
				if db.Engine() == testdb.MariaDB {
					kept, waysToDo = keptPool(t, config(c.parameters)), 5 // by one that is prepared, and by one that was
				}
				got := make([]string, waysToDo)
				for with := range got {
					pool := known
					if with > 2 {
						pool = kept
					} else if with == 1 && i < typed || c.parameters != "" {
						pool = open(c.parameters, with == 2)
					}
					empties := "DELETE FROM "
					if strings.HasPrefix(c.text, "INSERT") || c.before != "" { // whose rows get the same ids again
						empties = "TRUNCATE TABLE "
					}
					db.Exec(t, empties+table)
					db.Exec(t, "INSERT INTO "+table+" VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c')")
					got[with] = doneBy(t, pool, with > 0, strings.ReplaceAll(c.text, "%s", table), c.before, table, c.args)
					if with == 4 || pool != known && pool != kept {
						check(t, pool.Close())
					}
				}
				if different := slices.Compact(got); len(different) > 1 {
					t.Errorf("%.80s with %.80v, interpolated %t: alone %.500s, with lockstep's %.500q", c.text, c.args, interpolates, different[0], different[1:])
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

// onMariaDB runs a test on that server.
func onMariaDB(t *testing.T, test func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	if !slices.Contains(testdb.Engines(), testdb.MariaDB) {
		t.Skip("needs MariaDB")
	}
	test(t, testdb.Open(t, testdb.MariaDB))
}

// runs runs transactions with the lock of a key, each of which writes a row, and returns
// their tokens, which must rise.
func runs(t *testing.T, pool *sql.DB, table string, key txlock.Key, n int) (last uint64) {
	t.Helper()
	for range n {
		var grant txlock.Grant
		check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			grant, _ = join(t, tx).Held(key)
			return second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES ()"))
		}))
		if grant.Token() <= last {
			t.Fatalf("token %d after %d", grant.Token(), last)
		}
		last = grant.Token()
	}
	return last
}

// TestOpenerStaysPrepared proves that what begins a transaction, when a connection has sent it
// often, is prepared once, and costs no round trip more.
func TestOpenerStaysPrepared(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		table, key := db.CreateTable(t, "kept", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "kept")
		trips, counting := testdb.CountTrips(t)
		pool := single(newPool(t, db.Config(counting), true))
		prepared := func() int { return sessionStatus(t, pool, "Com_stmt_prepare") }
		check(t, txlock.Ensure(t.Context(), db.Admin(), key))
		runs(t, pool, table, key, 4)
		if n := prepared(); n != 0 {
			t.Errorf("%d statements are prepared at once", n)
		}
		runs(t, pool, table, key, 1)
		before := trips.Count()
		token := runs(t, pool, table, key, 20)
		if n := trips.Count() - before; n != 3*20 {
			t.Errorf("%d round trips of 20 transactions", n)
		}
		if n := prepared(); n != 1 {
			t.Errorf("%d statements were prepared", n)
		}
		if behind := time.Now().UnixMicro() - int64(token); behind < 0 || behind > time.Hour.Microseconds() {
			t.Errorf("the token is %d us behind the clock", behind)
		}
		wantCount(t, db.Admin(), 25, "SELECT COUNT(*) FROM "+table)
		before = trips.Count()
		for i := range 20 { // the first lock of a key is another opener
			runs(t, pool, table, txlock.Named(key.String()+string(rune(0x80+i))), 1)
		}
		if n := trips.Count() - before; n != 3*20+1 {
			t.Errorf("%d round trips of 20 transactions with new keys", n)
		}
		if n := prepared(); n != 2 {
			t.Errorf("%d statements were prepared", n)
		}
	})
}

// TestOpenersStayFew proves that a connection keeps some of the statements that begin its
// transactions, and neither all nor always others.
func TestOpenersStayFew(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		pool := single(newPool(t, db.Config(), true))
		const most, often = 16, 5
		for range 2 {
			keys := []txlock.Key{uniqueKey(t, "few")}
			for range most + 4 { // each number of keys has a statement of its own
				keys = append(keys, uniqueKey(t, "few"))
				for range often {
					check(t, locksqlc.Run(t.Context(), pool, keys, func(*sql.Tx) error { return nil }))
				}
			}
			prepared := sessionStatus(t, pool, "Com_stmt_prepare")
			if prepared != most {
				t.Errorf("%d statements were prepared, want %d", prepared, most)
			}
		}
	})
}

// TestOpenersOfAResetSession proves that a lock is taken where the session has forgotten the
// statements that were prepared.
func TestOpenersOfAResetSession(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		var wire net.Conn
		table, key := db.CreateTable(t, "forgotten", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "forgotten")
		pool := single(keptPool(t, db.Config(wired(t, &wire))))
		runs(t, pool, table, key, 2)
		reset(t, wire)
		runs(t, pool, table, key, 3)
		prepared := sessionStatus(t, pool, "Com_stmt_execute")
		if prepared != 2 { // the first lock has found that nothing is prepared any more
			t.Errorf("%d statements that were prepared are executed, want 2", prepared)
		}
	})
}

// TestOpenerSeesOtherTables proves that a lock goes to the database of the pool, whatever a
// statement has chosen, and to tables that were made anew or changed since it was prepared.
func TestOpenerSeesOtherTables(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		other := testdb.Shared(t, testdb.MariaDB).OpenNamed(t)
		table, key := other.Name()+"."+other.CreateTable(t, "kept", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "moved")
		pool := single(keptPool(t, db.AdminConfig()))
		runs(t, pool, table, key, 2)
		for _, choose := range []string{"USE " + other.Name(), "/*! USE " + other.Name() + " */", "EXECUTE IMMEDIATE 'USE " + other.Name() + "'"} {
			if _, err := pool.ExecContext(t.Context(), choose); err != nil {
				t.Log(err) // MariaDB may not take it, then it has chosen nothing
			}
			runs(t, pool, table, key, 2)
		}
		wantCount(t, other.Admin(), 0, "SELECT COUNT(*) FROM lockstep_locks WHERE token > 0")
		pool = single(keptPool(t, other.AdminConfig()))
		runs(t, pool, table, key, 2)
		for _, change := range []string{
			"ALTER TABLE lockstep_locks ADD COLUMN note INT FIRST",
			"RENAME TABLE lockstep_locks TO lockstep_old",
			"CREATE TABLE lockstep_locks LIKE lockstep_old",
			"ALTER TABLE lockstep_locks DROP COLUMN note",
			"TRUNCATE TABLE lockstep_locks",
		} {
			other.Exec(t, change)
			if change[0] != 'R' {
				runs(t, pool, table, key, 2)
			}
		}
	})
}

// TestOpenerIsIndifferentToModes proves that what was prepared under one sql_mode works under
// another.
func TestOpenerIsIndifferentToModes(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		table, key := db.CreateTable(t, "kept", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "modes")
		pool := single(keptPool(t, db.Config()))
		last := uint64(0)
		for _, mode := range []string{"", "ORACLE,EMPTY_STRING_IS_NULL", "ANSI", "TRADITIONAL,SIMULTANEOUS_ASSIGNMENT", ""} {
			exec(t, pool, "SET SESSION sql_mode = '"+mode+"'")
			runs(t, pool, table, uniqueKey(t, "new under "+mode), 1)
			token := runs(t, pool, table, key, 2)
			if token <= last {
				t.Errorf("under %q: token %d after %d", mode, token, last)
			}
			last = token
			cfg := db.Config()
			cfg.Params = map[string]string{"sql_mode": "'" + mode + "'"}
			runs(t, newPool(t, cfg, true), table, uniqueKey(t, "new in a session under "+mode), 1)
		}
	})
}

// TestCommitWithElsewhere: the last statement is executed in the database that the program has
// chosen, however often its text was sent before.
func TestCommitWithElsewhere(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		other := testdb.Shared(t, db.Engine()).OpenNamed(t)
		for _, at := range []*testdb.DB{db, other} {
			at.Exec(t, "CREATE TABLE elsewhere (id INT PRIMARY KEY, n INT)")
			at.Exec(t, "INSERT INTO elsewhere VALUES (1, 0)")
		}
		for _, interpolate := range []bool{true, false} {
			cfg := db.AdminConfig()
			cfg.InterpolateParams = interpolate
			pool := single(newPool(t, cfg, true))
			sell := func(tx *sql.Tx, s *txlock.Scope) error {
				return second(tx.ExecContext(s.CommitWith(t.Context(), 1), "UPDATE elsewhere SET n = n + ? WHERE id = ?", 1, 1))
			}
			for range 8 {
				check(t, lastly(t, pool, sell))
			}
			check(t, lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
				exec(t, tx, "USE "+other.Name())
				return sell(tx, s)
			}))
		}
		here, there := count(t, db.Admin(), "SELECT n FROM elsewhere"), count(t, other.Admin(), "SELECT n FROM elsewhere")
		if here != 16 || there != 2 {
			t.Errorf("%d here, want 16, and %d there, want 2", here, there)
		}
	})
}
