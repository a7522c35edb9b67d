//go:build !race

package locksqlc_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

func TestTransparency(t *testing.T) {
	onServers(t, func(t *testing.T, server *testdb.DB) {
		for i, setting := range slices.Sorted(maps.Keys(settings)) {
			for j, name := range slices.Sorted(maps.Keys(scenarios)) {
				set, scenario := settings[setting], scenarios[name]
				if setting != "default" && setting != "interpolate" && !testdb.Meet(i, j) {
					continue
				}
				t.Run(setting+"/"+name, func(t *testing.T) {
					t.Parallel()
					var records [2][]string
					for i, guarded := range []bool{false, true} {
						cfg := server.AdminConfig(func(cfg *mysql.Config) {
							cfg.MultiStatements, cfg.Collation, cfg.MaxAllowedPacket = true, "utf8mb4_bin", 8<<20
							set(server, cfg)
						})
						s := &side{TB: t, ctx: t.Context(), server: server, db: newPool(t, cfg, guarded)}
						if err := s.db.PingContext(s.ctx); setting == "TLS" && !guarded && errors.Is(err, mysql.ErrNoTLS) {
							t.Skipf("the server answers that it has no TLS, which its administrator may have switched off: %v", err)
						} else if err != nil {
							t.Fatalf("guarded %t: %v", guarded, err)
						}
						s.table = server.CreateTable(t, "transparent", counters)
						scenario(s)
						s.note("in use %d", testdb.InUse(s.db))
						records[i] = s.record
					}
					compare(t, records[0], records[1])
				})
			}
		}
	})
}

// TestSuitePreparing is TestSuite with a driver that prepares each statement: the race
// detector watches each behaviour with each adapter and kind of key in TestSuite.
func TestSuitePreparing(t *testing.T) { locksuite.RunPreparing(t, adapters...) }

// implicitStatement is a statement. In its text T stands for a table with a row 1, and P for a free name.
type implicitStatement struct {
	text    string
	needs   string        // what CREATE makes before
	engine  testdb.Engine // "" for both
	fails   uint16        // the server's error, 0 for none
	commits bool          // the transaction, so that its locks are free
	unsaid  bool          // its text doesn't say so
	name    string        // what the error calls it, "" for its first two words
}

var implicit = []implicitStatement{
	{text: "CREATE TABLE {P} (id INT)", commits: true},
	{text: "CREATE TABLE {T} (id INT)", fails: 1050, commits: true},
	{text: "CREATE TABLE {T} (", fails: 1064},
	{text: "ALTER TABLE {T} ADD COLUMN w INT", commits: true},
	{text: "ALTER TABLE {P} ADD COLUMN w INT", fails: 1146, commits: true},
	{text: "TRUNCATE TABLE {T}", commits: true},
	{text: "RENAME TABLE {T} TO {P}", commits: true},
	{text: "DROP TABLE IF EXISTS {P}", commits: true},
	{text: "CREATE INDEX v ON {T} (v)", commits: true},
	{text: "/*!50000 CREATE */ TABLE {P} (id INT)", commits: true, name: "CREATE TABLE"},
	{text: "ANALYZE TABLE {T}", commits: true},
	{text: "FLUSH STATUS", commits: true},
	{text: "LOCK TABLES {T} WRITE", commits: true},
	{text: "BEGIN", commits: true},
	{text: "START TRANSACTION", commits: true},
	{text: "COMMIT", commits: true},
	{text: "ROLLBACK", commits: true},
	{text: "COMMIT AND CHAIN", commits: true},
	{text: "SET PASSWORD FOR {P} = 'x'", needs: "USER {P}", engine: testdb.MySQL, commits: true, unsaid: true},
	{text: "SET PASSWORD FOR {P} = PASSWORD('x')", needs: "USER {P}", engine: testdb.MariaDB, commits: true, unsaid: true},
	{text: "SET DEFAULT ROLE NONE TO {P}", needs: "USER {P}", engine: testdb.MySQL, commits: true, unsaid: true},
	{text: "SET DEFAULT ROLE NONE FOR {P}", needs: "USER {P}", engine: testdb.MariaDB, commits: true, unsaid: true},
	{text: "CREATE TEMPORARY SEQUENCE {P}", engine: testdb.MariaDB, commits: true},
	{text: "SET STATEMENT max_statement_time=1 FOR TRUNCATE TABLE {T}", engine: testdb.MariaDB, commits: true, name: "TRUNCATE TABLE"},
	{text: "BEGIN NOT ATOMIC COMMIT; END", engine: testdb.MariaDB, commits: true, unsaid: true},
	{text: "SELECT 1; TRUNCATE TABLE {T}", commits: true, name: "TRUNCATE TABLE"},
	{text: "DO 1; COMMIT; BEGIN", commits: true, name: "COMMIT"},
	{text: "CALL {P}()", needs: "PROCEDURE {P}() COMMIT", commits: true, unsaid: true},
	{text: "CALL {P}()", needs: "PROCEDURE {P}() BEGIN COMMIT; START TRANSACTION; END", commits: true},
	{text: "CALL {P}()", needs: "PROCEDURE {P}() BEGIN COMMIT AND CHAIN; SIGNAL SQLSTATE '45000'; END", fails: 1644, commits: true},
	{text: "ROLLBACK AND CHAIN;; DO 1", fails: 1064, commits: true},
	{text: "COMMIT AND CHAIN; (", fails: 1064, commits: true},
	{text: "COMMIT AND CHAIN; ; -- nothing", fails: 1064, commits: true},
	{text: "/*! BEGIN */", commits: true, name: "BEGIN"},
	{text: "/*!50000 START TRANSACTION */", commits: true, name: "START TRANSACTION"},
	{text: "/*! COMMIT AND CHAIN */", commits: true, name: "COMMIT AND CHAIN"},
	{text: "/*! COMMIT */", commits: true, name: "COMMIT"},
	{text: "SELECT 1 /*! ; COMMIT AND CHAIN */", fails: 1064},
	{text: "PREPARE s FROM 'COMMIT AND CHAIN'; EXECUTE s", commits: true, name: "EXECUTE S"},
	{text: "EXECUTE IMMEDIATE 'COMMIT AND CHAIN'", engine: testdb.MariaDB, commits: true},
	{text: "BEGIN NOT ATOMIC COMMIT; START TRANSACTION; END", engine: testdb.MariaDB, commits: true},
	{text: "DO (SELECT COUNT(*) FROM {T} FOR UPDATE)"},
	{text: "INSERT /*! IGNORE */ INTO {T} VALUES (1, 0)"},
	{text: "CALL {P}()", needs: "PROCEDURE {P}() INSERT INTO {T} VALUES (9, 9)"},
	{text: "BEGIN NOT ATOMIC DO 1; END", engine: testdb.MariaDB},
	{text: "DROP /*!99999 TEMPORARY */ TABLE IF EXISTS {P}", commits: true, unsaid: true, name: "DROP TEMPORARY"},
	{text: "SET autocommit = 1"},
	{text: "SET @a = 1, NAMES utf8mb4"},
	{text: "SET STATEMENT max_statement_time=1 FOR INSERT INTO {T} VALUES (2, 0)", engine: testdb.MariaDB},
	{text: "CREATE TEMPORARY TABLE {P} (id INT)"},
	{text: "CREATE TEMPORARY TABLE {P} SELECT * FROM {T}"},
	{text: "DROP TEMPORARY TABLE IF EXISTS {P}"},
	{text: "INSERT INTO {T} VALUES (1, 0)", fails: 1062},
	{text: "SELECT * FROM {P}", fails: 1146},
	{text: "SAVEPOINT a; RELEASE SAVEPOINT a"},
	{text: "PREPARE s FROM 'DO 1'"},
	{text: "UNLOCK TABLES"},
	{text: "SHOW TABLES"},
	{text: "EXPLAIN SELECT * FROM {T}"},
	{text: "/*!99999 COMMIT */"},
	{text: "SELECT '\\';', 'COMMIT'"},
}

// prepare makes what the statement needs and returns its text.
func (i implicitStatement) prepare(t *testing.T, db *testdb.DB) string {
	t.Helper()
	table := db.CreateTable(t, "implicit", counters)
	own := "own_" + table
	fill := strings.NewReplacer("{T}", table, "{P}", own).Replace
	db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0)")
	drop := "DROP TABLE IF EXISTS {P}"
	if i.needs != "" {
		db.Exec(t, fill("CREATE "+i.needs))
		kind, _, _ := strings.Cut(i.needs, " ")
		drop = "DROP " + kind + " {P}"
	}
	t.Cleanup(func() { check(t, testdb.Err(db.Admin().Exec(fill(drop)))) })
	return fill(i.text)
}

// onImplicit runs a test with every statement on every server.
func onImplicit(t *testing.T, test func(t *testing.T, db *testdb.DB, i implicitStatement)) {
	t.Helper()
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, i := range implicit {
			if i.engine == "" || i.engine == db.Engine() {
				t.Run(i.text, func(t *testing.T) {
					t.Parallel()
					test(t, db, i)
				})
			}
		}
	})
}

// unkept has a pool use no connection twice: LOCK TABLES outlives its transaction.
func unkept(pool *sql.DB) *sql.DB {
	pool.SetMaxIdleConns(-1)
	return pool
}

// TestImplicitCommit: a guarded pool, also one that can't read the replies, knows what ends a transaction as a second session sees it.
func TestImplicitCommit(t *testing.T) {
	onImplicit(t, func(t *testing.T, db *testdb.DB, i implicitStatement) {
		for _, ask := range []bool{false, true} { // before Commit
			text, key := i.prepare(t, db), uniqueKey(t, "implicit")
			tx, scope := joined(t, unkept(reading(t, !ask, db.AdminConfig(severalTexts))))
			lock(t, scope, key)
			if _, err := tx.ExecContext(t.Context(), text); number(err) != i.fails {
				t.Fatalf("the statement was answered %v, want %d", err, i.fails)
			}
			if i.commits {
				wantFree(t, db, key)
			} else if isFree(t, db, key) {
				t.Fatal("the lock is free")
			}
			if ask { // what a pool says that can't read the replies
				_, err := scope.Lock(t.Context(), uniqueKey(t, "implicit"))
				i.wants(t, "Lock", err)
				i.wants(t, "Verify", scope.Verify(t.Context()))
				wantHeld(t, "after the statement", scope, key, !i.commits)
			}
			i.wants(t, "Commit", tx.Commit())
		}
	})
}

// wants fails the test unless the error is an ErrTxDoomed that names the statement if it commits, and nil if it doesn't.
func (i implicitStatement) wants(t *testing.T, what string, err error) {
	t.Helper()
	if !i.commits {
		isError(t, what, err, nil)
		return
	}
	name := i.name
	if name == "" {
		name = strings.ToUpper(strings.Join(strings.Fields(i.text)[:min(2, len(strings.Fields(i.text)))], " "))
		name = strings.TrimSuffix(name, " {P}()") // CALL
	}
	testdb.ErrorIf(t, !errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) || !strings.Contains(err.Error(), `"`+name),
		"%s: %v (to be tried again: %t), want ErrTxDoomed by %s", what, err, txlock.Retryable(err), name)
}

// shared is a statement that can share a text with one of lockstep's, or can't: one that writes with COMMIT, another with a lock.
type shared struct {
	text       string
	args       []any
	trips      int    // of the second time, if that is said
	before     string // sent in the transaction
	parameters string // of the data source name
}

var (
	moment = time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)
	// All that a compound statement or a procedure declares are columns, too.
	declared = strings.Fields("lockstep_name lockstep_rows p_opening p_name p_slot p_owner p_held p_text p_args p_set p_mode p_client p_collation p_rows v_token v_old v_name v_slot v_outcome v_rows v_changed v_made")
	// commits are the beginnings of what is sent with COMMIT.
	commits = regexp.MustCompile(`(?i)^(/\* why \*/ )?(INSERT|UPDATE|DELETE|REPLACE) [^/]`)
)

var sharedTexts = []shared{
	{text: "SELECT n FROM %s WHERE id = ?", args: []any{1}, trips: 1},
	{text: "SELECT * FROM %s ORDER BY id", trips: 1},
	{text: "SELECT * FROM %s WHERE id > ?", args: []any{100}, trips: 1},
	{text: "SELECT s, ? AS x FROM %s WHERE s = ?", args: []any{`it's \ "x" ; --`, "a"}, trips: 1},
	{text: "SELECT s, ? AS x FROM %s WHERE id = ? AND b = ?", args: []any{7, 1, []byte{0, 0xff}}, trips: 1},
	{text: "select " + strings.Join(declared, ", ") + " from %s FOR UPDATE", trips: 1},
	{text: "SELECT s, ? AS x FROM %s WHERE id = ?", args: []any{"\xbf' OR 1 = 1 -- \x5c", 1}, trips: 1},
	{text: "SELECT COUNT(*), 'it''s; COMMIT -- #' FROM %s", trips: 1},
	{text: "SELECT 'ä' FROM %s", trips: 2},
	{text: "SELECT n INTO @lockstep_test FROM %s WHERE id = 1", trips: 2},
	{text: "UPDATE /* with a lock */ %s SET n = n + 1", trips: 2},
	{text: "SHOW COLUMNS FROM %s", trips: 2},
	{text: "INSERT INTO %s (s) VALUES (?)", args: []any{`it's "a" \ -- # ; ?`}, trips: 1},
	{text: "INSERT INTO %s (b) VALUES (?)", args: []any{[]byte("\xbf' OR 1 = 1 -- \x5c")}, trips: 1},
	{text: "INSERT INTO %s (s, b, g, d) VALUES (?, ?, ?, ?), (?, ?, ?, ?)", args: []any{"x", []byte{0, 1, 0xff, '\''}, 1.5, moment, nil, nil, true, nil}},
	{text: "INSERT INTO %s (id, n) VALUES (?, ?)", args: []any{100, int64(-1) << 63}, trips: 1},
	{text: "INSERT INTO %s (n) VALUES (1), (2), (3)", trips: 1},
	{text: "UPDATE %s SET n = n + 1 WHERE id = ?", args: []any{2}, trips: 1},
	{text: "UPDATE %s SET n = n WHERE id = 2", trips: 1},
	{text: "UPDATE %s SET s = ';', n = n + 1 WHERE s <> 'COMMIT; DROP TABLE x' AND id < ?", args: []any{3}, trips: 1},
	{text: "DELETE FROM %s WHERE id IN (?, ?)", args: []any{1, 2}, trips: 1},
	{text: "REPLACE INTO %s (id, n) VALUES (?, ?)", args: []any{1, 9}, trips: 1},
	{text: "INSERT INTO %s (id, n) VALUES (1, 5) ON DUPLICATE KEY UPDATE n = VALUES(n)", trips: 1},
	{text: "UPDATE %s SET n = 7 /*! WHERE id = 1 */", trips: 1},
	{text: "/* why */ update %s SET n = 8 WHERE id = 1", trips: 1},
	{text: "UPDATE %s SET n = lockstep_rows + v_rows + p_rows WHERE id = 1", trips: 1},
	{text: "SELECT id FROM %s ORDER BY ? DESC LIMIT 1", args: []any{1}},
	{text: "SELECT id FROM %s WHERE s <> ? ORDER BY ? DESC LIMIT 1", args: []any{"no", 1}},
	{text: "SELECT CONCAT(? * 1, '%') AS x, TRUNCATE(?, 2) AS y", args: []any{1.5, -2.345}},
	{text: "SELECT id FROM %s ORDER BY id LIMIT ?", args: []any{"1"}},
	{text: "SELECT id FROM %s WHERE s > ? ORDER BY id LIMIT ?", args: []any{"", 2}},
	{text: "SELECT CONCAT(?, '%') AS x, ? AS y", args: []any{1.5, "x"}},
	{text: "SELECT GREATEST(?, ?) AS x", args: []any{"a", 300}},
	{text: "DELETE FROM %s WHERE id IN (?, ?) ORDER BY id", args: []any{-3, "2"}},
	{text: "SELECT COUNT(*) FROM %s WHERE id < ? AND (s = ? OR n IS NOT ?)", args: []any{uint64(1) << 63, "a", nil}},
	{text: "SELECT IF(?, ?, ?) AS x, COALESCE(?, ?) AS y", args: []any{true, 1, nil, nil, "x"}},
	{text: "SELECT CONCAT(7 -?) AS x, CONCAT(-?) AS y", args: []any{-1, -9223372036854775807}},
	{text: "SELECT ? AS x", args: []any{sql.Named("n", 1)}},
	{text: "UPDATE %s SET n = ? WHERE id = 1", args: []any{sql.Named("n", 77)}},
	{text: "UPDATE %s SET n = 8 WHERE id IS NULL", before: "INSERT INTO %s (n) VALUES (7)", parameters: "&sql_auto_is_null=1"},
	{text: "SELECT id FROM %s WHERE id IS NULL", parameters: "&sql_auto_is_null=1"},
	{text: "UPDATE %s SET n = 9 WHERE id IN (? " + strings.Repeat(", ?", 30_000) + ")", args: longs(30_001)},
	{text: "UPDATE %s SET s = ? WHERE n = ? ORDER BY ? LIMIT 1", args: []any{"z", 10, 1}},
	{text: "INSERT INTO %s (id, n) SELECT ?, id FROM %s ORDER BY ? DESC LIMIT 1", args: []any{7, 2}},
	{text: "INSERT INTO %s (n) SELECT LAST_INSERT_ID()", before: "INSERT INTO %s (n) VALUES (7)"},
	{text: "INSERT INTO %s (n) SELECT @@last_insert_id", before: "INSERT INTO %s (n) VALUES (7)"},
	{text: "INSERT INTO %s (s) SELECT GROUP_CONCAT(n SEPARATOR ?) FROM %s", args: []any{"-"}},
	{text: "INSERT INTO %s (s) VALUES ('" + strings.Repeat("x", 50_000) + "')", parameters: "&maxAllowedPacket=70000"},
	{text: "UPDATE `%s` SET s = ? WHERE id = ?", args: []any{5, 1}},
	{text: "UPDATE %s SET s = '?' WHERE id = ?", args: []any{7, 2}}, // a question mark in quotes, or in a comment, is no argument
	{text: `UPDATE %s SET s = "?" WHERE id = ?`, args: []any{7, 2}},
	{text: "UPDATE %s SET s = 'b' /* ? */ WHERE id = ?", args: []any{7, 2}},
	{text: "UPDATE %s SET s = 'c' -- ?\n WHERE id = ?", args: []any{7, 2}},
	{text: "UPDATE %s SET s = 'd' # ?\n WHERE id = ?", args: []any{7, 2}},
	{text: "UPDATE %s AS `?` SET s = 'e' WHERE id = ?", args: []any{7, 2}},
	{text: `UPDATE %s SET s = '\'?' WHERE id = ?`, args: []any{7, 2}},
	{text: "UPDATE %s SET s = IF(? = 'A', 'same', 'other') WHERE id = 1", args: []any{"a"}},
	{text: "UPDATE %s SET s = IF('A' = ?, 'same', 'other') WHERE id = 1", args: []any{[]byte("a")}},
	{text: "UPDATE %s SET s = IF('A' = ?, 'same', ?) WHERE id = 1", args: []any{[]byte("a"), "other"}},
	{text: "UPDATE %s SET s = CONCAT('A' = ?, ? + 1, LENGTH(?)) WHERE id = 1", args: []any{[]byte("a"), []byte("12"), []byte(nil)}},
	{text: "SELECT IF('A' = ?, 'same', 'other') AS x FROM %s WHERE id = 1", args: []any{[]byte("a")}},
	{text: "UPDATE %s SET s = JSON_SET('{}', '$.a', ?) WHERE id = 1", args: []any{[]byte{1, 0xff}}},
	{text: "UPDATE %s SET s = JSON_SET('{}', '$.a', ?) WHERE id = 1", args: []any{json.RawMessage("a")}},
	{text: "UPDATE %s SET s = n - ? WHERE id = 1", args: []any{uint64(15)}},
	{text: "UPDATE %s SET s = n - ? WHERE id = 1", args: []any{15}},
	{text: "UPDATE %s SET s = ? / 3 WHERE id = 1", args: []any{5}},
	{text: "UPDATE %s SET s = (? + 0.2 = 0.3) WHERE id = 1", args: []any{0.1}},
	{text: "UPDATE %s SET s = ? + 1 WHERE id = 1", args: []any{true}},
	{text: "UPDATE %s SET n = 1 WHERE id = 1", args: []any{[]byte("a"), 1.5, 2}}, // too many
	{text: "UPDATE %s SET s = CAST(? AS DATETIME(6)) > CAST('2020-02-29' AS DATETIME) WHERE id = 1", args: []any{moment}},
	{text: "UPDATE %s SET s = CAST(? + 0 AS CHAR) WHERE id = 1", args: []any{int64(math.MinInt64)}},
}

func longs(n int) []any {
	all := make([]any, n)
	for i := range all {
		all[i] = -9000000000000000000 + int64(i)
	}
	all[0] = 1
	return all
}

// TestSharedTextsAsAlone: a statement that shares a text with one of lockstep's does what it does alone, in sessions of all kinds.
func TestSharedTextsAsAlone(t *testing.T) {
	all := slices.Clone(sharedTexts)
	typed := len(all) // from here on, a connection executes a text with one type of argument after the other
	for _, arg := range []any{1.5, int64(1<<62 + 1), "abc", nil, []byte("de\x00f"), true, uint64(1<<64 - 1), strings.Repeat("ä", 4000), "7", moment, int64(-1), 0.1, ""} {
		for _, text := range []string{"SELECT CRC32(CONCAT('<', COALESCE(?, s, '-'), '>')) AS x FROM %s WHERE id = 1", "UPDATE %s SET s = CONCAT('<', COALESCE(?, s, '-'), '>') WHERE id = 1"} {
			all = append(all, shared{text: text, args: []any{arg}})
		}
	}
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for i, session := range []string{ // in others than the first two only those that say their round trips
			"interpolateParams=true", "interpolateParams=false", "interpolateParams=true&clientFoundRows=true&parseTime=true", "interpolateParams=true&charset=latin1", "charset=gbk",
			"interpolateParams=true&sql_mode=%27ANSI_QUOTES%27", "interpolateParams=true&sql_mode=%27NO_BACKSLASH_ESCAPES%27",
		} {
			t.Run(session, func(t *testing.T) {
				t.Parallel()
				all := all
				if i > 1 {
					all = slices.DeleteFunc(slices.Clone(all), func(c shared) bool { return c.trips == 0 })
				}
				sharedAsAlone(t, db, session, all, typed)
			})
		}
	})
}

func sharedAsAlone(t *testing.T, db *testdb.DB, session string, all []shared, typed int) {
	t.Helper()
	table := db.CreateTable(t, "shared", "id INT PRIMARY KEY AUTO_INCREMENT, n BIGINT, s TEXT CHARACTER SET utf8mb4, b BLOB, d DATETIME(6), f FLOAT, g DOUBLE, e DECIMAL(9,3), u BIGINT UNSIGNED, y YEAR, t TIME(3), a DATE, j JSON, k ENUM('x','y'), z BIT(9), sm SMALLINT, "+strings.Join(declared, " INT NOT NULL DEFAULT 1, ")+" INT NOT NULL DEFAULT 2")
	trips, count := testdb.CountTrips(t)
	config := func(parameters string) *mysql.Config {
		cfg := testdb.Got(mysql.ParseDSN(db.DSN() + "?" + session + parameters))(t)
		count(cfg)
		return cfg
	}
	open := func(parameters string, known bool) *sql.DB {
		pool := newPool(t, config(parameters), true)
		if known {
			exec(t, pool, "DELETE FROM "+table+" WHERE id = ?", 0)
		}
		return pool
	}
	known := open("", true)
	for i, c := range all {
		if strings.Contains(session, "=true") && db.Engine() == testdb.MariaDB && c.text == "SELECT id FROM %s ORDER BY id LIMIT ?" { // alone a syntax error
			continue
		}
		if c.trips > 0 || i == typed { // a connection that keeps none of the texts above
			check(t, known.Close())
			known = open("", true)
		}
		kept, got := (*sql.DB)(nil), make([]done, 4) // alone, by the first statement of a pool, by another, and again
		if db.Engine() == testdb.MariaDB {
			kept, got = keptPool(t, config(c.parameters)), make([]done, 6) // by one that is prepared, and by one that was
		}
		for with := range got {
			pool := known
			if with > 3 {
				pool = kept
			} else if with == 1 && i < typed || c.parameters != "" {
				pool = open(c.parameters, with > 1)
			}
			empties := "DELETE FROM "
			if strings.HasPrefix(c.text, "INSERT") || c.before != "" { // whose rows get the same ids again
				empties = "TRUNCATE TABLE "
			}
			db.Exec(t, empties+table)
			db.Exec(t, "INSERT INTO "+table+" (id, n, s, b, d, f, g, e, u, y, t, a, j, k, z, sm) VALUES (1, 10, 'a', X'00FF', '2026-02-03 04:05:06.7', 0.1, 1e300, 1.25, 18446744073709551615, 1999, '-11:22:33.5', '2020-02-29', '{}', 'y', 257, -7)")
			db.Exec(t, "INSERT INTO "+table+" (id, n, s) VALUES (2, 20, 'b'), (3, 30, 'c')")
			got[with] = c.do(t, db, pool, with > 0, got[0].rows, table, trips)
			if with == 5 || pool != known && pool != kept {
				check(t, pool.Close())
			}
			given := strings.HasPrefix(c.text, "REPLACE") || strings.Contains(c.text, "(id") // an id that the server hasn't made
			if g := got[with]; g.did != got[0].did || g.id != got[0].id && (g.id != 0 || !given) {
				t.Errorf("%.80s with %.80v: alone %.500s, id %d, with lockstep's, %d, %.500s, id %d", c.text, c.args, got[0].did, got[0].id, with, g.did, g.id)
			}
		}
		trips := got[3].sent
		testdb.ErrorIf(t, c.trips > 0 && trips != c.trips && sharesTexts(db.Engine()), "%s: %d round trips, want %d", c.text, trips, c.trips)
	}
}

// done is what a statement does.
type done struct {
	did      string
	rows, id int64
	sent     int // round trips
}

// do sends a statement in a transaction, alone or with a lock or COMMIT.
func (c shared) do(t *testing.T, db *testdb.DB, pool *sql.DB, with bool, rows int64, table string, trips *testdb.Trips) (d done) {
	t.Helper()
	d.rows = txlock.AnyRows
	fill, key := strings.NewReplacer("%s", table).Replace, uniqueKey(t, "shared")
	if len(c.text)%2 == 0 {
		key = hashedKeys.Key(key.String())
	}
	err := locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
		s, ctx, writes := join(t, tx), t.Context(), commits.MatchString(c.text)
		if with && !writes {
			ctx = s.LockWith(ctx, key)
			if sharesTexts(db.Engine()) {
				wantHeld(t, "before the statement", s, key, false)
			}
		} else {
			lock(t, s, key)
		}
		if c.before != "" {
			exec(t, tx, fill(c.before))
		}
		if with && writes {
			ctx = s.CommitWith(ctx, rows)
		}
		before := trips.Count()
		if writes {
			result, err := tx.ExecContext(ctx, fill(c.text), c.args...)
			d.sent = trips.Count() - before
			if err == nil {
				d.rows, err = result.RowsAffected()
				d.id, _ = result.LastInsertId()
				d.did = fmt.Sprint(d.rows)
			}
			return err
		}
		found, err := tx.QueryContext(ctx, fill(c.text), c.args...)
		if err == nil {
			d.did = told(t, found, nil)
			d.sent = trips.Count() - before
			grant, held := s.Held(key)
			again := lock(t, s, key)
			testdb.ErrorIf(t, !held || grant.Token() < 1000 || again != grant, "%s: held %t, %v, locked again %v", c.text, held, grant, again)
			check(t, s.Verify(t.Context()))
			found, err = tx.QueryContext(ctx, "SELECT 1") // under the same context
			_ = told(t, found, err)
		}
		return err
	})
	server := new(mysql.MySQLError)
	switch {
	case err != nil && strings.Contains(err.Error(), " arguments"): // as database/sql or the server says it
		d.did += " error of arguments"
	case errors.As(err, &server):
		d.did += fmt.Sprint(" error ", server.Number, " doomed ", errors.Is(err, txlock.ErrTxDoomed))
	case err != nil:
		d.did += " " + err.Error()
	}
	var sum string
	check(t, pool.QueryRowContext(context.Background(), "SELECT GROUP_CONCAT(CONCAT_WS(' ', id, n, CRC32(s), HEX(b), g, d, s) ORDER BY id) FROM "+table).Scan(&sum))
	d.did += " leaves " + sum
	return d
}

// TestLockWithErrors proves what becomes of the lock and of the transaction where one of the two fails.
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
					isError(t, "a lock that is held", testdb.Err(tx.QueryContext(ctx, "SELECT 1")), txlock.ErrWaitTimeout)
					isError(t, "a lock that is held", testdb.Err(tx.ExecContext(ctx, "INSERT INTO "+table+" VALUES (1)")), txlock.ErrWaitTimeout)
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
			isError(t, "rows are open", testdb.Err(tx.QueryContext(ctx, "SELECT 1")), txlock.ErrOpenRows)
			_ = told(t, rows, nil)
			_, err = tx.QueryContext(ctx, "SELECT 1") // what was read since LockWith may be older than the lock
			says(t, "behind a read", err, txlock.ErrInvalidOption, "since LockWith")
			rows, err = tx.QueryContext(s.LockWith(t.Context(), other), "SELECT 1") // which locks at once
			_ = told(t, rows, err)
			wantHeld(t, "a lock behind a read", s, other, true)
		})
		for _, s := range []txlock.Key{{}, txlock.Named(strings.Repeat("x", 300))} {
			within(func(tx *sql.Tx, scope *txlock.Scope) {
				isError(t, "no key", testdb.Err(tx.QueryContext(scope.LockWith(t.Context(), s), "SELECT 1")), txlock.ErrInvalidKey)
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
			rows := testdb.Got(tx.QueryContext(s.LockWith(t.Context(), uniqueKey(t, "first")), "SELECT 1"))(t)
			for rows.Next() {
			}
			check(t, rows.Err())
			check(t, errors.Join(testdb.Err(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (3)")), rows.Close()))
		})
		within(func(tx *sql.Tx, s *txlock.Scope) { // an argument that can't be one
			key := uniqueKey(t, "first")
			rows, err := tx.QueryContext(s.LockWith(t.Context(), key), "SELECT GROUP_CONCAT(1 SEPARATOR ?)", "-")
			_, held := s.Held(key)
			testdb.ErrorIf(t, err != nil || !held, "%v, held %t", err, held)
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

// TestCommitWithOtherRows: nothing is committed where the statement has failed or changed other rows, and the transaction goes on with its locks.
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
				testdb.Equal(t, c.text+": a part of it is committed", count(t, db.Admin(), "SELECT SUM(n) FROM "+table), 3)
			}
		}
	})
}

// TestProceduresOfAnotherCreator: a statement of the program is read by the modes of its session, not by those of the procedures' creator.
func TestProceduresOfAnotherCreator(t *testing.T) {
	statements := testdb.Got(schema.Procedures())(t)
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
				testdb.Equal(t, "made under "+made, told(t, rows, err), want)
				_, err = tx.ExecContext(s.CommitWith(t.Context(), 1), write)
				testdb.Equal(t, "round trips, made under "+made, trips.Count()-before, 2)
				return err
			}))
			var written, different int
			var value string
			check(t, own.Admin().QueryRowContext(t.Context(), "SELECT COUNT(s), COUNT(DISTINCT s), MIN(s) FROM "+table).Scan(&written, &different, &value))
			testdb.ErrorIf(t, written != 2 || different != 1, "made under %q: %d rows with %d values, one of them %q", made, written, different, value)
			answers[value] = true
		}
		testdb.ErrorIf(t, len(answers) != 2, "the modes make no difference: %v", answers)
	})
}
