package locksqlc_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// moves are statements after which no lock would hold on their session. {O} is another
// database with lockstep's tables, {P} a procedure.
var moves = []struct {
	text   string
	want   error
	engine testdb.Engine // "" for both
}{
	{text: "USE {O}", want: schema.ErrSession},
	{text: "/*! USE {O} */", want: schema.ErrSession},
	{text: "SET autocommit = 0", want: schema.ErrAutocommit},
	{text: "SET @@completion_type = CHAIN", want: schema.ErrSession},
	{text: "SET SESSION completion_type = 2", want: schema.ErrSession},
	{text: "SET timestamp = 1", want: schema.ErrSession},
	{text: "SET character_set_results = utf16", want: schema.ErrCharset},
	{text: "SET collation_connection = utf32_bin", want: schema.ErrCharset},
	{text: "SET @a = 1; SET autocommit = 0; SELECT 1", want: schema.ErrAutocommit},
	{text: "PREPARE s FROM 'SET autocommit = 0'; EXECUTE s", want: schema.ErrAutocommit},
	{text: "CALL {P}()", want: schema.ErrSession},
	{text: "BEGIN NOT ATOMIC SET completion_type = 1; END", want: schema.ErrSession, engine: testdb.MariaDB},
}

// TestMovedSession moves sessions in every way that database/sql has: in a transaction, on the
// connection before it, and on the pool. A lock of such a session is refused by name, and the
// pool doesn't use the connection again: whoever is granted a lock or a lease from it is alone.
func TestMovedSession(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		other, procedure := db.Name()+"_moved", "own_"+strings.ToLower(rand.Text())
		db.CreateProcedure(t, procedure, "SET SESSION completion_type = 1")
		db.Exec(t, "CREATE DATABASE "+other)
		t.Cleanup(func() { _, _ = db.Admin().Exec("DROP DATABASE " + other) })
		for _, table := range []string{"lockstep_locks", "lockstep_leases"} {
			db.Exec(t, "CREATE TABLE "+other+"."+table+" LIKE "+table)
		}
		fill := strings.NewReplacer("{O}", other, "{P}", procedure).Replace
		pool := single(newPool(t, db.AdminConfig(severalTexts), true))
		leases := [2]*lease.Manager{managerOf(t, pool), managerOf(t, db.Admin())}
		alone := func(t *testing.T) {
			t.Helper()
			key := uniqueKey(t, "alone")
			check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error {
				err := locksqlc.TryDo(t.Context(), db.Admin(), key, func(context.Context) error { return nil })
				isError(t, "another holder of a lock", err, txlock.ErrBusy)
				return nil
			}))
			held, err := leases[0].TryAcquire(t.Context(), key)
			check(t, err)
			isError(t, "another holder of a lease", second(leases[1].TryAcquire(t.Context(), key)), txlock.ErrBusy)
			check(t, held.Release(t.Context()))
		}
		for i, m := range moves {
			if m.engine != "" && m.engine != db.Engine() {
				continue
			}
			text := fill(m.text)
			send := func(on prepares, by string) (moved bool) { // not by what the server doesn't prepare
				err := sendBy(t.Context(), on, by, text)
				if by != "prepared" {
					check(t, err)
				}
				return err == nil
			}
			for _, by := range sendings {
				conn := takeConn(t, pool)
				moved := send(conn, by)
				tx := begin(t, conn)
				if _, err := locksqlc.Join(t.Context(), tx); moved && !errors.Is(err, m.want) {
					t.Errorf("%s, %s before the transaction: Join: %v", text, by, err)
				}
				check(t, errors.Join(tx.Rollback(), conn.Close()))

				tx = begin(t, pool)
				scope, first := join(t, tx), uniqueKey(t, "first")
				lock(t, scope, first)
				if send(tx, by) {
					refuses(t, scope, m.want, text)
				}
				wantHeld(t, text+", "+by, scope, first, true)
				check(t, tx.Commit())
			}
			send(pool, sendings[i%len(sendings)])
			alone(t)
		}
		if n := count(t, db.Admin(), "SELECT COUNT(*) FROM "+other+".lockstep_locks") + count(t, db.Admin(), "SELECT COUNT(*) FROM "+other+".lockstep_leases"); n != 0 {
			t.Errorf("%d keys are in the other database", n)
		}
	})
}

// refuses makes sure that every kind of lock is refused.
func refuses(tb testing.TB, s *txlock.Scope, want error, why string) {
	tb.Helper()
	key := uniqueKey(tb, "refused")
	verify := func(ctx context.Context, s *txlock.Scope, _ txlock.Key) error { return s.Verify(ctx) }
	for what, call := range map[string]verb{
		"Lock": verbs["Lock"], "TryLock": verbs["TryLock"], "RLock": verbs["RLock"], "LockAll": verbs["LockAll"], "Version": verbs["Version"], "Once": verbs["Once"], "Verify": verify,
	} {
		says(tb, what+" after "+why, call(tb.Context(), s, key), want, "don't ")
	}
}

// TestLockTablesUnderAutocommitOff follows the idiom of MySQL's manual in a transaction that
// holds a lock: LOCK TABLES commits it, and begins another at once.
func TestLockTablesUnderAutocommitOff(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "locked", "id INT PRIMARY KEY")
		for _, texts := range [][]string{
			{"SET autocommit = 0", "LOCK TABLES " + table + " WRITE"},
			{"SET autocommit = 0; LOCK TABLES " + table + " WRITE"},
			{"SET @@autocommit = OFF, @a = 1", "DO 1", "ANALYZE TABLE " + table, "SELECT * FROM " + table},
			{"SET autocommit = 0", "SET autocommit = 1, autocommit = 0", "SELECT * FROM " + table},
			{"PREPARE s FROM 'SET autocommit = 0'; EXECUTE s", "LOCK TABLES " + table + " READ"},
		} {
			for _, by := range sendings[:2] {
				pool, key := newPool(t, db.AdminConfig(severalTexts), true), uniqueKey(t, "tables")
				tx, scope := joined(t, pool)
				lock(t, scope, key)
				for _, text := range texts {
					if err := sendBy(t.Context(), tx, by, text); err != nil && !errors.Is(err, txlock.ErrTxDoomed) {
						t.Fatal(err)
					}
				}
				wantFree(t, db, key)
				wantHeld(t, fmt.Sprintf("%q", texts), scope, key, false)
				_, err := scope.Lock(t.Context(), key)
				for what, err := range map[string]error{"Lock": err, "Verify": scope.Verify(t.Context()), "Commit": tx.Commit()} {
					wantOver(t, fmt.Sprintf("%q: %s", texts, what), err, false)
				}
				check(t, pool.PingContext(t.Context()))
			}
		}
	})
}

// TestChainedTransaction switches completion_type in a transaction that holds a lock: COMMIT
// frees that, and the transaction behind it stays open nowhere.
func TestChainedTransaction(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db.Config(), true), uniqueKey(t, "chained")
		table := db.CreateTable(t, "chained", "id INT PRIMARY KEY AUTO_INCREMENT")
		pool.SetMaxOpenConns(1)
		for i, end := range []error{nil, errors.New("rolled back")} {
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
				exec(t, tx, "SET completion_type = CHAIN")
				return end
			})
			isError(t, "Run", err, end)
			exec(t, pool, "INSERT INTO "+table+" VALUES ()")
			wantCount(t, db.Admin(), i+1, "SELECT COUNT(*) FROM "+table)
		}

		conn := takeConn(t, pool)
		exec(t, conn, "BEGIN")
		exec(t, conn, "SET completion_type = CHAIN")
		exec(t, conn, "COMMIT")
		scope := joinConn(t, conn)
		isError(t, "a lock behind a chained COMMIT", second(scope.Lock(t.Context(), key)), schema.ErrSession)
		exec(t, conn, "SET completion_type = NO_CHAIN")
		lock(t, scope, key)
		wantLocked(t, "the chained transaction", db, key)
		exec(t, conn, "COMMIT")
		wantFree(t, db, key)

		always := single(newPool(t, db.Config(func(cfg *mysql.Config) { cfg.Params = map[string]string{"completion_type": "1"} }), true))
		tx := begin(t, always) // without locks, which are refused there
		exec(t, tx, "INSERT INTO "+table+" VALUES ()")
		check(t, tx.Commit())
		exec(t, always, "INSERT INTO "+table+" VALUES ()")
		wantCount(t, db.Admin(), 4, "SELECT COUNT(*) FROM "+table)
	})
}

func managerOf(tb testing.TB, pool *sql.DB) *lease.Manager {
	tb.Helper()
	m, err := lease.NewManager(pool)
	check(tb, err)
	tb.Cleanup(func() { check(tb, m.Close(context.Background())) })
	return m
}
