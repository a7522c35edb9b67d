//go:build vitess

package locksuite_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// onVitess is a guarded pool of a database, with variables set by its data source name.
func onVitess(t *testing.T, db *testdb.DB, variables map[string]string) *sql.DB {
	t.Helper()
	return poolOf(t, db, true, func(cfg *mysql.Config) { cfg.Params = variables })
}

// TestVitessRefuses: no lock is taken where it wouldn't hold, and what Vitess hasn't is refused by
// its name.
func TestVitessRefuses(t *testing.T) {
	t.Parallel()
	db, key := testdb.Open(t, testdb.Vitess), txlock.Named("test:"+rand.Text())
	for name, c := range map[string]struct {
		variables map[string]string
		set       string // by the program, in the transaction
		want      error
		says      string
	}{
		"single":        {map[string]string{"transaction_mode": "'single'"}, "", nil, ""},
		"multi":         {map[string]string{"transaction_mode": "'multi'"}, "", nil, ""}, // which the pool sets to single
		"multi, set":    {nil, "SET transaction_mode = 'multi'", schema.ErrEngine, "send this one outside of it: SET TRANSACTION_MODE"},
		"OLAP":          {map[string]string{"workload": "'olap'"}, "", schema.ErrSession, "set oltp"},
		"no autocommit": {map[string]string{"autocommit": "0"}, "", schema.ErrAutocommit, "autocommit"},
	} {
		tx, err := onVitess(t, db, c.variables).BeginTx(t.Context(), nil)
		if err == nil && c.set != "" {
			_, err = tx.ExecContext(t.Context(), c.set)
		}
		if err == nil {
			var s *txlock.Scope
			if s, err = locksqlc.Join(t.Context(), tx); err == nil {
				_, err = s.Lock(t.Context(), key)
			}
			_ = tx.Rollback()
		}
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.want, c.says)
		}
	}

	for _, target := range []string{"@replica", "@rdonly", ":0", ":0@replica"} {
		pool, err := locksqlc.Open(db.DSN(func(cfg *mysql.Config) { cfg.DBName += target }))
		if err == nil {
			defer func() { _ = pool.Close() }()
			err = locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil })
		}
		if !errors.Is(err, schema.ErrSession) || !strings.Contains(err.Error(), "name the keyspace alone") {
			t.Errorf("%s: %v, want ErrSession", target, err)
		}
	}

	plain, err := sql.Open("mysql", db.DSN())
	check(t, err)
	defer func() { _ = plain.Close() }()
	if err := locksqlc.Run(t.Context(), plain, []txlock.Key{key}, func(*sql.Tx) error { return nil }); !errors.Is(err, schema.ErrEngine) {
		t.Errorf("an unguarded pool: %v, want ErrEngine", err)
	}
	conn, err := onVitess(t, db, nil).Conn(t.Context())
	check(t, err)
	defer func() { _ = conn.Close() }()
	exec(t, conn, "BEGIN")
	s, err := locksqlc.JoinConn(t.Context(), conn)
	if err == nil {
		_, err = s.Lock(t.Context(), key)
	}
	if !errors.Is(err, schema.ErrEngine) || !strings.Contains(err.Error(), "BeginTx") {
		t.Errorf("BEGIN as text: %v, want ErrEngine with BeginTx", err)
	}
	exec(t, conn, "ROLLBACK")
}

// TestVitessStatements: what may end a transaction, which no reply of Vitess tells, isn't sent in one.
func TestVitessStatements(t *testing.T) {
	t.Parallel()
	db, key := testdb.Open(t, testdb.Vitess), txlock.Named("test:"+rand.Text())
	table := newCounter(t, db, nil, sql.LevelDefault).table
	pool := poolOf(t, db, true, func(cfg *mysql.Config) { cfg.MultiStatements = true })
	undo := errors.New("undo")
	for _, text := range []string{
		"ANALYZE TABLE " + table, "OPTIMIZE TABLE " + table, "REPAIR TABLE " + table, "FLUSH STATUS", "FLUSH TABLES", "ALTER TABLE " + table + " ADD x INT", "TRUNCATE " + table,
		"COMMIT; BEGIN", "SELECT 1; COMMIT; BEGIN", "ROLLBACK; BEGIN; SAVEPOINT a", "COMMIT", "ROLLBACK", "BEGIN", "START TRANSACTION", "/*!50000 ANALYZE TABLE " + table + " */",
		"SET autocommit = 0", "SET transaction_mode = 'multi'", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "CALL p()", "LOCK TABLES " + table + " READ", "XA START 'a'",
		"EXECUTE s",
	} {
		for _, prepared := range []bool{false, true} {
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) (err error) {
				if prepared {
					var stmt *sql.Stmt
					if stmt, err = tx.PrepareContext(t.Context(), text); err == nil {
						_, err = stmt.ExecContext(t.Context())
					}
				} else {
					_, err = tx.ExecContext(t.Context(), text)
				}
				if err == nil || !prepared && !errors.Is(err, schema.ErrEngine) {
					t.Errorf("%s: %v, want ErrEngine", text, err)
				}
				if _, err := tx.ExecContext(t.Context(), "UPDATE "+table+" SET n = n + 1 WHERE id = 1"); err != nil && !prepared {
					t.Errorf("after %s: %v", text, err)
				}
				return undo
			})
			if !errors.Is(err, undo) {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
	if n := count(t, db.Admin(), "SELECT n FROM "+table+" WHERE id = 1"); n != 0 {
		t.Errorf("the counter is %d", n)
	}
}

// TestVitessShards: a transaction can't lock in one keyspace and write in another, whose commit
// might fail alone.
func TestVitessShards(t *testing.T) {
	t.Parallel()
	db, key := testdb.Open(t, testdb.Vitess), txlock.Named("test:"+rand.Text())
	table := db.CreateTable(t, "here", "id BIGINT PRIMARY KEY")
	elsewhere := testdb.Shared(t, testdb.Vitess).Fresh(t)
	elsewhere.Exec(t, "CREATE TABLE there (id BIGINT PRIMARY KEY)")
	pool, calls := onVitess(t, db, nil), 0
	err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
		calls++
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)"); err != nil {
			return err
		}
		_, err := tx.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO `%s`.there VALUES (1)", elsewhere.Name()))
		if err == nil {
			t.Error("the write on another shard has succeeded")
		}
		return nil // as who ignores it
	})
	if !errors.Is(err, txlock.ErrTxDoomed) || !errors.Is(err, schema.ErrEngine) || calls != 1 {
		t.Errorf("Run: %v in %d tries, want ErrTxDoomed and ErrEngine in one", err, calls)
	}
	here, there := count(t, db.Admin(), "SELECT COUNT(*) FROM "+table), count(t, elsewhere.Admin(), "SELECT COUNT(*) FROM there")
	if here != 0 || there != 0 {
		t.Errorf("%d rows here and %d there", here, there)
	}
}

// TestVitessSharded: nothing is installed in a keyspace of two shards, and nothing locks on both.
func TestVitessSharded(t *testing.T) {
	t.Parallel()
	db := testdb.Dedicated(t, testdb.Vitess, testdb.Args("--vschema-ddl-authorized-users=%")).Fresh(t)
	sharded := func(cfg *mysql.Config) { cfg.DBName = "sharded" }
	plain, pool := db.Connect(t, sharded), poolOf(t, db, true, sharded)
	keys := []txlock.Key{txlock.Named("a"), txlock.Named("b"), txlock.Named("c")}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, schema.ErrEngine) || !strings.Contains(err.Error(), "on each shard's MySQL server") {
			t.Errorf("%s: %v, want ErrEngine", what, err)
		}
	}
	run := func(keys ...txlock.Key) error {
		return locksqlc.Run(t.Context(), pool, keys, func(*sql.Tx) error {
			if len(keys) > 1 {
				t.Error("it has locks on two shards")
			}
			return nil
		})
	}
	refused("Install", schema.Install(t.Context(), plain))
	refused("Run", run(keys...))

	for _, text := range []string{
		"ALTER VSCHEMA CREATE VINDEX xxhash USING xxhash", "ALTER VSCHEMA ON lockstep_locks ADD VINDEX xxhash(name) USING xxhash",
	} { // a program may place the tables itself
		exec(t, plain, text)
	}
	if err := schema.Install(t.Context(), plain); err == nil {
		t.Error("Install has succeeded")
	}
	refused("Run, on two shards", run(keys...))
	for _, key := range keys {
		if err := run(key); err != nil {
			t.Errorf("%s alone: %v", key, err)
		}
	}
}

// TestVitessLevel: no lock is taken in a transaction with an isolation level, which Vitess may ignore,
// and the level isn't that of the next transaction, though Vitess would keep it.
func TestVitessLevel(t *testing.T) {
	t.Parallel()
	pool := onVitess(t, testdb.Open(t, testdb.Vitess), nil)
	pool.SetMaxOpenConns(1)
	run := func(level sql.IsolationLevel) (got string, err error) {
		err = locksqlc.Run(t.Context(), pool, []txlock.Key{txlock.Named("level")}, func(tx *sql.Tx) error {
			return tx.QueryRowContext(t.Context(), "SELECT @@transaction_isolation").Scan(&got)
		}, &sql.TxOptions{Isolation: level})
		return got, err
	}
	for _, level := range []sql.IsolationLevel{sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		if _, err := run(level); !errors.Is(err, schema.ErrEngine) || !strings.Contains(err.Error(), "not at "+level.String()) {
			t.Errorf("%v: %v, want ErrEngine", level, err)
		}
		tx, err := pool.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
		check(t, err)
		exec(t, tx, "SELECT 1")
		check(t, tx.Commit())
		if got, err := run(sql.LevelDefault); got != "REPEATABLE-READ" || err != nil {
			t.Errorf("after %v: %s, %v", level, got, err)
		}
	}
}

// TestVitessSessionsLevel: a pool whose sessions have another level than the server's knows it, however
// many others ask at the same time, and Vitess has one answer for all of them.
func TestVitessSessionsLevel(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, testdb.Vitess)
	table := newCounter(t, db, nil, sql.LevelDefault).table
	var all sync.WaitGroup
	const workers, rounds = 4, 40
	levels := []string{"", "'READ-COMMITTED'", "'SERIALIZABLE'"}
	for _, level := range levels {
		variables := map[string]string{}
		if level != "" {
			variables["transaction_isolation"] = level
		}
		pool := onVitess(t, db, variables)
		pool.SetMaxIdleConns(-1)
		c := counter{DB: pool, table: table, key: txlock.Named(table), early: true}
		for range workers {
			all.Go(func() {
				for range rounds {
					if err := c.once(t.Context(), ways[0].raise); err != nil {
						t.Errorf("%s: %v", level, err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	if n := count(t, db.Admin(), "SELECT n FROM "+table); n != workers*rounds*len(levels) {
		t.Errorf("%d increments, want %d", n, workers*rounds*len(levels))
	}
}

// TestVitessWaits: a wait without a limit ends before Vitess ends the transaction, which stays open,
// with its locks.
func TestVitessWaits(t *testing.T) {
	t.Parallel()
	db, taken, held := testdb.Open(t, testdb.Vitess), txlock.Named("test:"+rand.Text()), txlock.Named("test:"+rand.Text())
	table, pool := db.CreateTable(t, "waits", "id BIGINT PRIMARY KEY"), onVitess(t, db, nil)
	_, other := begin(t, pool, sql.LevelDefault)
	lock(t, other, taken)
	tx, s := begin(t, pool, sql.LevelDefault)
	lock(t, s, held)
	began := time.Now()
	if _, err := s.Lock(t.Context(), taken); !errors.Is(err, txlock.ErrWaitTimeout) || errors.Is(err, txlock.ErrTxDoomed) {
		t.Errorf("after %v: %v, want ErrWaitTimeout", time.Since(began), err)
	}
	check(t, s.Verify(t.Context()))
	exec(t, tx, "INSERT INTO "+table+" VALUES (1)")
	check(t, tx.Commit())
}

// TestVitessEnded: Vitess ends transactions that are old, and statements that take long together with
// their connection. Nothing that comes afterwards commits by itself, and Commit says so.
func TestVitessEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		long func(ctx context.Context, tx *sql.Tx) error
	}{
		"the transaction is old": {[]string{"--queryserver-config-transaction-timeout=1s"}, func(ctx context.Context, tx *sql.Tx) error {
			for { // the state to wait for is that which is to be noticed
				if _, err := tx.ExecContext(ctx, "DO SLEEP(0.1)"); err != nil {
					return err
				}
			}
		}},
		"a statement takes long": {[]string{"--queryserver-config-query-timeout=15s"}, func(ctx context.Context, tx *sql.Tx) error {
			return second(tx.ExecContext(ctx, "UPDATE ended SET n = SLEEP(100) WHERE id = 0"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Dedicated(t, testdb.Vitess, testdb.Args(c.args...)).Open(t)
			db.Exec(t, "CREATE TABLE ended (id BIGINT PRIMARY KEY, n BIGINT)")
			db.Exec(t, "INSERT INTO ended VALUES (0, 0)")
			pool, key := onVitess(t, db, nil), txlock.Named("ended")
			tx, s := begin(t, pool, sql.LevelDefault)
			lock(t, s, key)
			if err := c.long(t.Context(), tx); err == nil {
				t.Error("it has not ended the transaction")
			} else {
				t.Log(err)
			}
			if _, held := s.Held(key); held {
				t.Error("the lock is held, they say")
			}
			if _, err := tx.ExecContext(t.Context(), "INSERT INTO ended VALUES (1, 0)"); !errors.Is(err, txlock.ErrTxDoomed) {
				t.Errorf("a statement afterwards: %v, want ErrTxDoomed", err)
			}
			if err := tx.Commit(); !errors.Is(err, txlock.ErrTxDoomed) {
				t.Errorf("Commit: %v, want ErrTxDoomed", err)
			}
			if rows := count(t, pool, "SELECT COUNT(*) FROM ended"); rows != 1 {
				t.Errorf("%d rows", rows)
			}
			if err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }); err != nil {
				t.Errorf("the next transaction: %v", err)
			}
		})
	}
}

// TestVitessIdle: COMMIT of a transaction that Vitess has ended while nothing was sent is known to commit
// nothing, and Run runs it again.
func TestVitessIdle(t *testing.T) {
	t.Parallel()
	db := testdb.Dedicated(t, testdb.Vitess, testdb.Args("--queryserver-config-transaction-timeout=1s")).Open(t)
	db.Exec(t, "CREATE TABLE idle (id BIGINT PRIMARY KEY)")
	pool, key := onVitess(t, db, nil), txlock.Named("idle")
	calls := 0
	err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
		calls++
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO idle VALUES (1)"); err != nil || calls > 1 {
			return err
		}
		_, err := db.Admin().ExecContext(t.Context(), "DELETE FROM idle WHERE id = 1") // waits for the end of that transaction
		return err
	})
	if err != nil || calls != 2 {
		t.Errorf("%d calls, %v", calls, err)
	}
	if rows := count(t, pool, "SELECT COUNT(*) FROM idle"); rows != 1 {
		t.Errorf("%d rows", rows)
	}
}

// TestVitessGivesUp: who gives up a wait, or leaves with locks, keeps none.
func TestVitessGivesUp(t *testing.T) {
	t.Parallel()
	pool, key := onVitess(t, testdb.Open(t, testdb.Vitess), nil), txlock.Named("test:"+rand.Text())
	tx, s := begin(t, pool, sql.LevelDefault)
	lock(t, s, key)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var waits sync.WaitGroup
	for range 4 {
		waits.Go(func() {
			if err := locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("who gives up: %v", err)
			}
		})
	}
	waits.Wait()
	check(t, tx.Commit())
	if err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
