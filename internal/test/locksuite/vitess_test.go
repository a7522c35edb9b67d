//go:build vitess

package locksuite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
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

// TestVitessRefuses: no lock is taken where it wouldn't hold, and what Vitess hasn't is refused by its name.
func TestVitessRefuses(t *testing.T) {
	t.Parallel()
	db, key := testdb.Open(t, testdb.Vitess), unused()
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
			err = locked(t, key)(locksqlc.Join(t.Context(), tx))
			_ = tx.Rollback()
		}
		if wants(t, name, err, c.want); c.says != "" {
			testdb.Fails(t, name, err, c.says)
		}
	}
	for _, target := range []string{"@replica", "@rdonly", ":0", ":0@replica"} {
		pool, err := locksqlc.Open(db.DSN(func(cfg *mysql.Config) { cfg.DBName += target }))
		if err == nil {
			defer func() { _ = pool.Close() }()
			err = locksqlc.Run(t.Context(), pool, []txlock.Key{key}, nothing)
		}
		wants(t, target, err, schema.ErrSession)
		testdb.Fails(t, target, err, "name the keyspace alone")
	}
	wants(t, "an unguarded pool", locksqlc.Run(t.Context(), db.Connect(t), []txlock.Key{key}, nothing), schema.ErrEngine)
	conn, _ := connection(t, onVitess(t, db, nil))
	exec(t, conn, "BEGIN")
	err := locked(t, key)(locksqlc.JoinConn(t.Context(), conn))
	wants(t, "BEGIN as text", err, schema.ErrEngine)
	testdb.Fails(t, "BEGIN as text", err, "BeginTx")
	exec(t, conn, "ROLLBACK")
}

// TestVitessStatements: what may end a transaction, which no reply of Vitess tells, isn't sent in one.
func TestVitessStatements(t *testing.T) {
	t.Parallel()
	db, key := testdb.Open(t, testdb.Vitess), unused()
	table := newCounter(t, db, nil, sql.LevelDefault).table
	pool := poolOf(t, db, true, func(cfg *mysql.Config) { cfg.MultiStatements = true })
	undo := errors.New("undo")
	for _, text := range []string{
		"ANALYZE TABLE " + table, "OPTIMIZE TABLE " + table, "REPAIR TABLE " + table, "FLUSH STATUS", "FLUSH TABLES", "ALTER TABLE " + table + " ADD x INT", "TRUNCATE " + table,
		"COMMIT; BEGIN", "SELECT 1; COMMIT; BEGIN", "ROLLBACK; BEGIN; SAVEPOINT a", "COMMIT", "ROLLBACK", "BEGIN", "START TRANSACTION", "/*!50000 ANALYZE TABLE " + table + " */",
		"SET autocommit = 0", "SET transaction_mode = 'multi'", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "CALL p()", "LOCK TABLES " + table + " READ", "XA START 'a'",
		"EXECUTE s",
	} {
		wants(t, text, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			wants(t, text, testdb.Err(tx.ExecContext(t.Context(), text)), schema.ErrEngine)
			wants(t, "after "+text, testdb.Err(tx.ExecContext(t.Context(), "UPDATE "+table+" SET n = n + 1 WHERE id = 1")), nil)
			return undo
		}), undo)
		wants(t, text+", prepared", locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			stmt, err := tx.PrepareContext(t.Context(), text)
			if err == nil {
				_, err = stmt.ExecContext(t.Context())
			}
			testdb.Fails(t, text+", prepared", err)
			_, _ = tx.ExecContext(t.Context(), "UPDATE "+table+" SET n = n + 1 WHERE id = 1")
			return undo
		}), undo)
	}
	testdb.Equal(t, "the counter", count(t, db.Admin(), "SELECT n FROM "+table+" WHERE id = 1"), 0)
}

// TestVitessShards: a transaction can't lock in one keyspace and write in another, whose commit might fail alone.
func TestVitessShards(t *testing.T) {
	t.Parallel()
	db, key := testdb.Open(t, testdb.Vitess), unused()
	table := db.CreateTable(t, "here", "id BIGINT PRIMARY KEY")
	elsewhere := testdb.Shared(t, testdb.Vitess).Fresh(t)
	elsewhere.Exec(t, "CREATE TABLE there (id BIGINT PRIMARY KEY)")
	calls := 0
	err := locksqlc.Run(t.Context(), onVitess(t, db, nil), []txlock.Key{key}, func(tx *sql.Tx) error {
		calls++
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)"); err != nil {
			return err
		}
		testdb.Fails(t, "the write on another shard", testdb.Err(tx.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO `%s`.there VALUES (1)", elsewhere.Name()))))
		return nil // as who ignores it
	})
	wants(t, "Run", err, txlock.ErrTxDoomed, schema.ErrEngine)
	testdb.Equal(t, "tries", calls, 1)
	testdb.Equal(t, "rows here", count(t, db.Admin(), "SELECT COUNT(*) FROM "+table), 0)
	testdb.Equal(t, "rows there", count(t, elsewhere.Admin(), "SELECT COUNT(*) FROM there"), 0)
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
		wants(t, what, err, schema.ErrEngine)
		testdb.Fails(t, what, err, "on each shard's MySQL server")
	}
	run := func(keys ...txlock.Key) error {
		return locksqlc.Run(t.Context(), pool, keys, func(*sql.Tx) error {
			testdb.ErrorIf(t, len(keys) > 1, "it has locks on two shards")
			return nil
		})
	}
	refused("Install", schema.Install(t.Context(), plain))
	refused("Run", run(keys...))
	// A program may place the tables itself.
	exec(t, plain, "ALTER VSCHEMA CREATE VINDEX xxhash USING xxhash")
	exec(t, plain, "ALTER VSCHEMA ON lockstep_locks ADD VINDEX xxhash(name) USING xxhash")
	testdb.Fails(t, "Install", schema.Install(t.Context(), plain))
	refused("Run, on two shards", run(keys...))
	for _, key := range keys {
		wants(t, key.String()+" alone", run(key), nil)
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
	for _, level := range append(levels, sql.LevelReadUncommitted) {
		_, err := run(level)
		wants(t, level.String(), err, schema.ErrEngine)
		testdb.Fails(t, level.String(), err, "not at "+level.String())
		tx := testdb.Got(pool.BeginTx(t.Context(), &sql.TxOptions{Isolation: level}))(t)
		exec(t, tx, "SELECT 1")
		check(t, tx.Commit())
		got, err := run(sql.LevelDefault)
		testdb.ErrorIf(t, got != "REPEATABLE-READ" || err != nil, "after %v: %s, %v", level, got, err)
	}
}

// TestVitessSessionsLevel: a pool whose sessions have another level than the server's knows it, however
// many others ask at the same time, and Vitess has one answer for all of them.
func TestVitessSessionsLevel(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, testdb.Vitess)
	table := newCounter(t, db, nil, sql.LevelDefault).table
	const workers, rounds = 4, 40
	var pools []*sql.DB
	for _, variables := range []map[string]string{nil, {"transaction_isolation": "'READ-COMMITTED'"}, {"transaction_isolation": "'SERIALIZABLE'"}} {
		pool := onVitess(t, db, variables)
		pool.SetMaxIdleConns(-1)
		pools = append(pools, pool)
	}
	each(t, workers*len(pools), func(ctx context.Context, w int) (err error) {
		c := counter{DB: pools[w%len(pools)], table: table, key: txlock.Named(table), early: true}
		for i := 0; i < rounds && err == nil; i++ {
			err = c.once(ctx, ways[0].raise)
		}
		return err
	})
	testdb.Equal(t, "increments", count(t, db.Admin(), "SELECT n FROM "+table), workers*rounds*len(pools))
}

// TestVitessWaits: a wait without a limit ends before Vitess ends the transaction, which stays open, with its locks.
func TestVitessWaits(t *testing.T) {
	t.Parallel()
	db, taken := testdb.Open(t, testdb.Vitess), unused()
	table, pool := db.CreateTable(t, "waits", "id BIGINT PRIMARY KEY"), onVitess(t, db, nil)
	_, other := begin(t, pool, sql.LevelDefault)
	lock(t, other, taken)
	tx, s := begin(t, pool, sql.LevelDefault)
	lock(t, s, unused())
	_, err := s.Lock(t.Context(), taken)
	testdb.ErrorIf(t, !errors.Is(err, txlock.ErrWaitTimeout) || errors.Is(err, txlock.ErrTxDoomed), "Lock: %v, want ErrWaitTimeout", err)
	check(t, s.Verify(t.Context()))
	exec(t, tx, "INSERT INTO "+table+" VALUES (1)")
	check(t, tx.Commit())
}

// TestVitessEnded: Vitess ends transactions that are old, and statements that take long together with
// their connection. Nothing that comes afterwards commits by itself, and Commit says so.
func TestVitessEnded(t *testing.T) {
	t.Parallel()
	for arg, long := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"--queryserver-config-transaction-timeout=1s": func(ctx context.Context, tx *sql.Tx) error {
			for { // the state to wait for is that which is to be noticed
				if _, err := tx.ExecContext(ctx, "DO SLEEP(0.1)"); err != nil {
					return err
				}
			}
		},
		"--queryserver-config-query-timeout=15s": func(ctx context.Context, tx *sql.Tx) error {
			return testdb.Err(tx.ExecContext(ctx, "UPDATE ended SET n = SLEEP(100) WHERE id = 0"))
		},
	} {
		t.Run(arg, func(t *testing.T) {
			t.Parallel()
			db := testdb.Dedicated(t, testdb.Vitess, testdb.Args(arg)).Open(t)
			db.Exec(t, "CREATE TABLE ended (id BIGINT PRIMARY KEY, n BIGINT)")
			db.Exec(t, "INSERT INTO ended VALUES (0, 0)")
			pool, key := onVitess(t, db, nil), txlock.Named("ended")
			tx, s := begin(t, pool, sql.LevelDefault)
			lock(t, s, key)
			testdb.Fails(t, "what ends the transaction", long(t.Context(), tx))
			_, held := s.Held(key)
			testdb.ErrorIf(t, held, "the lock is held, they say")
			wants(t, "a statement afterwards", testdb.Err(tx.ExecContext(t.Context(), "INSERT INTO ended VALUES (1, 0)")), txlock.ErrTxDoomed)
			wants(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
			testdb.Equal(t, "rows", count(t, pool, "SELECT COUNT(*) FROM ended"), 1)
			wants(t, "the next transaction", locksqlc.Run(t.Context(), pool, []txlock.Key{key}, nothing), nil)
		})
	}
}

// TestVitessIdle: COMMIT of a transaction that Vitess has ended while nothing was sent is known to commit
// nothing, and Run runs it again.
func TestVitessIdle(t *testing.T) {
	t.Parallel()
	db := testdb.Dedicated(t, testdb.Vitess, testdb.Args("--queryserver-config-transaction-timeout=1s")).Open(t)
	db.Exec(t, "CREATE TABLE idle (id BIGINT PRIMARY KEY)")
	pool, calls := onVitess(t, db, nil), 0
	check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{txlock.Named("idle")}, func(tx *sql.Tx) error {
		calls++
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO idle VALUES (1)"); err != nil || calls > 1 {
			return err
		}
		return testdb.Err(db.Admin().ExecContext(t.Context(), "DELETE FROM idle WHERE id = 1")) // waits for the end of that transaction
	}))
	testdb.Equal(t, "calls", calls, 2)
	testdb.Equal(t, "rows", count(t, pool, "SELECT COUNT(*) FROM idle"), 1)
}

// TestVitessGivesUp: who gives up a wait, or leaves with locks, keeps none.
func TestVitessGivesUp(t *testing.T) {
	t.Parallel()
	pool, key := onVitess(t, testdb.Open(t, testdb.Vitess), nil), unused()
	tx, s := begin(t, pool, sql.LevelDefault)
	lock(t, s, key)
	ctx := leasetest.Limited(t, 300*time.Millisecond)
	each(t, 4, func(context.Context, int) error {
		wants(t, "who gives up", locksqlc.Run(ctx, pool, []txlock.Key{key}, nothing), context.DeadlineExceeded)
		return nil
	})
	check(t, tx.Commit())
	wants(t, "afterwards", locksqlc.Run(t.Context(), pool, []txlock.Key{key}, nothing), nil)
}
