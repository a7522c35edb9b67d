//go:build !race

package locksqlc_test

import (
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
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
	t.Cleanup(func() { check(t, second(db.Admin().Exec(fill(drop)))) })
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
