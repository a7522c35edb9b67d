//go:build tidb

package locksuite_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// onTiDB is a guarded pool, with variables set by its data source name.
func onTiDB(t *testing.T, variables map[string]string) *sql.DB {
	t.Helper()
	return poolOf(t, testdb.Open(t, testdb.TiDB), true, func(cfg *mysql.Config) { cfg.Params = variables })
}

// TestTiDBRefusesVerbs: what TiDB hasn't is refused by its name, and the transaction goes on.
func TestTiDBRefusesVerbs(t *testing.T) {
	t.Parallel()
	ctx, pool, key := t.Context(), onTiDB(t, nil), unused()
	ran := func(context.Context) error { return errRan }
	for name, call := range map[string]func(s *txlock.Scope) error{
		"RLock":               func(s *txlock.Scope) error { return testdb.Err(s.RLock(ctx, key)) },
		"TryRLock":            func(s *txlock.Scope) error { return testdb.Err(s.TryRLock(ctx, key)) },
		"WaitAtMost, RLock":   func(s *txlock.Scope) error { return testdb.Err(s.WaitAtMost(aWhile).RLock(ctx, key)) },
		"RLockAll":            func(s *txlock.Scope) error { return testdb.Err(s.RLockAll(ctx, key, beside(key))) },
		"LockAll, one shared": func(s *txlock.Scope) error { return testdb.Err(s.LockAll(ctx, key, txlock.Shared(beside(key)))) },
		"Do":                  func(*txlock.Scope) error { return locksqlc.Do(ctx, pool, key, ran) },
		"TryDo":               func(*txlock.Scope) error { return locksqlc.TryDo(ctx, pool, key, ran) },
		"Holders":             func(*txlock.Scope) error { return testdb.Err(txlock.Holders(ctx, pool, key)) },
		"Ensure":              func(*txlock.Scope) error { return txlock.Ensure(ctx, pool, key) },
	} {
		_, s := begin(t, pool, sql.LevelDefault)
		err := call(s)
		wants(t, name, err, schema.ErrEngine)
		testdb.ErrorIf(t, errors.Is(err, errRan), "%s: %v", name, err)
		if strings.Contains(name, "Lock") {
			testdb.Fails(t, name, err, "no shared locks")
		}
		_, held := s.Held(key)
		testdb.ErrorIf(t, held && name != "LockAll, one shared", "%s: the key is held", name)
		wants(t, name, s.Verify(ctx), nil)
	}
}

// TestTiDBRefusesTransactions: no lock is taken in a transaction of another kind than those that locks hold in.
func TestTiDBRefusesTransactions(t *testing.T) {
	t.Parallel()
	key := unused()
	type variables = map[string]string
	for name, c := range map[string]struct {
		variables variables
		options   sql.TxOptions
		set       string // by the program, in the transaction
		want      error
		says      string
	}{
		"SERIALIZABLE":     {nil, sql.TxOptions{Isolation: sql.LevelSerializable}, "", schema.ErrEngine, "READ COMMITTED or REPEATABLE READ"},
		"READ UNCOMMITTED": {nil, sql.TxOptions{Isolation: sql.LevelReadUncommitted}, "", schema.ErrEngine, "READ COMMITTED or REPEATABLE READ"},
		"SERIALIZABLE, accepted": {variables{"tidb_skip_isolation_level_check": "1"}, sql.TxOptions{Isolation: sql.LevelSerializable}, "",
			schema.ErrSession, "tidb_skip_isolation_level_check"},
		"read only":       {nil, sql.TxOptions{ReadOnly: true}, "", txlock.ErrReadOnly, "READ ONLY"},
		"optimistic":      {variables{"tidb_txn_mode": "'optimistic'"}, sql.TxOptions{}, "", schema.ErrSession, "set pessimistic"},
		"optimistic, set": {nil, sql.TxOptions{}, "SET tidb_txn_mode = 'optimistic'", schema.ErrSession, "set pessimistic"},
		"lazy uniqueness": {variables{"tidb_constraint_check_in_place_pessimistic": "0"}, sql.TxOptions{}, "", schema.ErrSession, "new rows"},
		"stale reads":     {variables{"tidb_read_staleness": "'-5'"}, sql.TxOptions{}, "", schema.ErrSession, "older than the lock"},
		"old timestamps":  {variables{"tidb_low_resolution_tso": "1"}, sql.TxOptions{}, "", schema.ErrSession, "older than the lock"},
		"bulk":            {variables{"tidb_dml_type": "'bulk'"}, sql.TxOptions{}, "", schema.ErrSession, "standard"},
		"autocommit":      {variables{"autocommit": "0"}, sql.TxOptions{}, "", schema.ErrAutocommit, "autocommit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx, err := onTiDB(t, c.variables).BeginTx(t.Context(), &c.options)
			if err == nil && c.set != "" {
				_, err = tx.ExecContext(t.Context(), c.set)
			}
			if err == nil {
				err = locked(t, key)(locksqlc.Join(t.Context(), tx))
			}
			if tx != nil {
				_ = tx.Rollback() // nothing was done in it
			}
			wants(t, "the transaction", err, c.want)
			testdb.Fails(t, "the transaction", err, c.says)
		})
	}
	for _, begin := range []string{"BEGIN", "START TRANSACTION", "BEGIN PESSIMISTIC", "BEGIN OPTIMISTIC", "BEGIN /*T! OPTIMISTIC */"} {
		conn, _ := connection(t, onTiDB(t, nil))
		exec(t, conn, begin)
		err := locked(t, key)(locksqlc.JoinConn(t.Context(), conn))
		testdb.ErrorIf(t, !errors.Is(err, schema.ErrEngine) && !errors.Is(err, txlock.ErrNoTransaction), "%s: %v, want ErrEngine", begin, err)
		exec(t, conn, "ROLLBACK")
	}
}

// TestTiDBLocks: a lock excludes until the end of its transaction, a wait is limited, and what was
// read before the lock is refused as old at REPEATABLE READ.
func TestTiDBLocks(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted} {
		for kind, key := range map[string]txlock.Key{"named": unused(), "hashed": txlock.NewFamily[string]("tidb", txlock.Hashed(), txlock.Exact()).Key(rand.Text())} {
			t.Run(level.String()+"/"+kind, func(t *testing.T) {
				t.Parallel()
				pool := onTiDB(t, nil)
				tx, s := begin(t, pool, level)
				first := lock(t, s, key)
				_, other := begin(t, pool, level)
				wants(t, "TryLock", testdb.Err(other.TryLock(t.Context(), key)), txlock.ErrBusy)
				wants(t, "LockAll", testdb.Err(other.WaitAtMost(aWhile).LockAll(t.Context(), key, beside(key))), txlock.ErrWaitTimeout)
				wants(t, "Lock", testdb.Err(other.WaitAtMost(aWhile).Lock(t.Context(), key)), txlock.ErrWaitTimeout)
				wants(t, "after the refusals", other.Verify(t.Context()), nil)
				testdb.Equal(t, "the token of the key again", lock(t, s, key).Token(), first.Token())
				check(t, tx.Commit())
				if level == sql.LevelDefault { // its transaction has begun before
					wants(t, "with an older snapshot", testdb.Err(other.Lock(t.Context(), key)), txlock.ErrStaleSnapshot)
				} else if got := lock(t, other, key); got.Token() <= first.Token() {
					t.Errorf("%+v after %+v", got, first)
				}
			})
		}
	}
}

// TestTiDBSavepoint: a lock that a savepoint has undone is asked for again.
func TestTiDBSavepoint(t *testing.T) {
	t.Parallel()
	key := unused()
	tx, s := begin(t, onTiDB(t, nil), sql.LevelDefault)
	exec(t, tx, "SAVEPOINT a")
	lock(t, s, key)
	exec(t, tx, "ROLLBACK TO SAVEPOINT a")
	_, held := s.Held(key)
	testdb.ErrorIf(t, held, "it is held after the rollback")
	lock(t, s, key)
	check(t, tx.Commit())
}

// TestTiDBVersion: who has raised a version is in its row, and a conflict changes nothing.
func TestTiDBVersion(t *testing.T) {
	t.Parallel()
	key := unused()
	type row struct{ token, holder uint64 }
	read := func(tx *sql.Tx) (r row) {
		t.Helper()
		check(t, tx.QueryRowContext(t.Context(), "SELECT token, conn_id FROM lockstep_locks WHERE name = ? FOR UPDATE", key.String()).Scan(&r.token, &r.holder))
		return r
	}
	var last row
	for range 2 { // the row is made, and then changed by another session
		tx, s := begin(t, onTiDB(t, nil), sql.LevelDefault)
		check(t, s.CompareAndBump(t.Context(), key, last.token))
		grant, held := s.Held(key)
		is, want := read(tx), row{grant.Token(), uint64(testdb.ConnID(t, tx))}
		testdb.ErrorIf(t, !held || is != want || is.token <= last.token, "the row has %+v, want %+v, after %+v", is, want, last)
		check(t, tx.Commit())
		last = is
	}
	tx, s := begin(t, onTiDB(t, nil), sql.LevelReadCommitted) // where the row alone is compared
	wants(t, "an old version", s.CompareAndBump(t.Context(), key, last.token-1), txlock.ErrConflict)
	testdb.Equal(t, "the row after a conflict", read(tx), last)
}

// TestTiDBOnce: a key is given to the first transaction that commits, and to no other.
func TestTiDBOnce(t *testing.T) {
	t.Parallel()
	key, pool := unused(), onTiDB(t, nil)
	var firsts atomic.Int64
	each(t, 10, func(ctx context.Context, _ int) error {
		first, err := locksqlc.Once(ctx, pool, key, nothing)
		if first {
			firsts.Add(1)
		}
		return err
	})
	testdb.Equal(t, "calls that were the first", firsts.Load(), 1)
	result, err := locksqlc.Once(t.Context(), pool, key, ran, txlock.Fingerprint([]byte("other")))
	testdb.ErrorIf(t, err != nil || result, "again: %t, %v", result, err)
	for i, want := range []bool{true, false} {
		value, first, err := locksqlc.OnceValue(t.Context(), pool, beside(key), func(*sql.Tx) (int, error) { return i, nil })
		testdb.ErrorIf(t, err != nil || value != 0 || first != want, "call %d returns %d, %t, %v, want 0, %t", i, value, first, err, want)
	}
}

// TestTiDBDoomed: what TiDB has ended is refused.
func TestTiDBDoomed(t *testing.T) {
	t.Parallel()
	pool, keys := onTiDB(t, nil), []txlock.Key{unused(), unused()}
	var txs [2]*sql.Tx
	var scopes [2]*txlock.Scope
	for i, key := range keys {
		txs[i], scopes[i] = begin(t, pool, sql.LevelReadCommitted)
		lock(t, scopes[i], key)
	}
	var errs [2]error
	each(t, len(errs), func(ctx context.Context, i int) error {
		if _, errs[i] = scopes[i].Lock(ctx, keys[1-i]); errs[i] == nil {
			return txs[i].Commit()
		}
		wants(t, "after the deadlock", testdb.Err(txs[i].ExecContext(ctx, "SELECT 1")), txlock.ErrTxDoomed)
		wants(t, "Commit", txs[i].Commit(), txlock.ErrTxDoomed)
		return nil
	})
	testdb.ErrorIf(t, errors.Is(errs[0], txlock.ErrDeadlock) == errors.Is(errs[1], txlock.ErrDeadlock), "want one deadlock: %v", errs)
}

// TestTiDBEnded: a lock that a statement of the program has ended is lost, and Commit returns that.
func TestTiDBEnded(t *testing.T) {
	t.Parallel()
	pool := onTiDB(t, nil)
	for _, statement := range []string{"BEGIN OPTIMISTIC", "BEGIN", "COMMIT", "ROLLBACK", "PREPARE s FROM 'BEGIN'; EXECUTE s"} {
		tx, s := begin(t, pool, sql.LevelDefault)
		lock(t, s, unused())
		for one := range strings.SplitSeq(statement, "; ") {
			_, _ = tx.ExecContext(t.Context(), one) // the guard may return what it has found
		}
		wants(t, statement+": Lock", testdb.Err(s.Lock(t.Context(), unused())), txlock.ErrTxDoomed)
		wants(t, statement+": Commit", tx.Commit(), txlock.ErrTxDoomed)
	}
}

// TestTiDBPurge: Purge and PurgeOnce remove what is old, and neither wait for rows that are locked nor remove them.
func TestTiDBPurge(t *testing.T) {
	t.Parallel()
	const old = 1100
	db := testdb.Shared(t, testdb.TiDB).Open(t)
	guarded := testdb.Got(locksqlc.Open(db.AdminDSN()))(t)
	defer func() { _ = guarded.Close() }()
	for i, pool := range []*sql.DB{db.Admin(), guarded} {
		for table, rest := range map[string]string{
			"lockstep_locks": "(name, token, owner, conn_id, locked_us) VALUES (?, 1, '-', 0, IF(?, UNIX_TIMESTAMP() * 1000000, 0))",
			"lockstep_once":  "(name, fingerprint, result, done_us, keep_us) VALUES (?, '-', '-', IF(?, UNIX_TIMESTAMP() * 1000000, 0), 3600000000)",
		} {
			inAdmin := func(f func(tx *sql.Tx)) *sql.Tx {
				tx := testdb.Got(db.Admin().BeginTx(t.Context(), nil))(t)
				f(tx)
				return tx
			}
			check(t, inAdmin(func(tx *sql.Tx) {
				for n := range old + 1 {
					exec(t, tx, "INSERT INTO "+table+" "+rest, fmt.Sprintf("%d:%04d", i, n), n == old)
				}
			}).Commit())
			holder := inAdmin(func(tx *sql.Tx) { // the last row of a batch, and one within it
				exec(t, tx, "SELECT name FROM "+table+" WHERE name IN (?, ?) FOR UPDATE", fmt.Sprintf("%d:0049", i), fmt.Sprintf("%d:0007", i))
			})
			purges := func(what string, want int) {
				t.Helper()
				n, err := txlock.PurgeOnce(t.Context(), pool)
				if table == "lockstep_locks" {
					n, err = txlock.Purge(t.Context(), pool, time.Hour)
				}
				check(t, err)
				testdb.Equal(t, table+": removed "+what, n, want)
			}
			purges("beside a holder of two", old-2)
			check(t, holder.Rollback())
			purges("of those that were locked", 2)
			testdb.Equal(t, table+": the rows left", count(t, db.Admin(), "SELECT COUNT(*) FROM "+table+" WHERE name LIKE ?", fmt.Sprintf("%d:%%", i)), 1)
		}
	}
}

// incrementing returns what increments the counter of freshTiDB under the lock of a key.
func incrementing(t *testing.T, pool *sql.DB, key txlock.Key) (increment func()) {
	return func() {
		t.Helper()
		err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error { return write(t, tx, read(t, tx)+1) })
		testdb.ErrorIf(t, err != nil, "%v", err)
	}
}

// runWith is Run, for a function that takes the scope of the transaction, too.
func runWith(t *testing.T, pool *sql.DB, keys []txlock.Key, fn func(s *txlock.Scope, tx *sql.Tx) error, options ...*sql.TxOptions) error {
	return locksqlc.Run(t.Context(), pool, keys, func(tx *sql.Tx) error {
		s, err := locksqlc.Join(t.Context(), tx)
		if err != nil {
			return err
		}
		return fn(s, tx)
	}, options...)
}

func read(t *testing.T, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) (n int) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), "SELECT n FROM counter WHERE id = 1").Scan(&n)
	testdb.ErrorIf(t, err != nil, "%v", err)
	return n
}

func write(t *testing.T, tx *sql.Tx, n int) error {
	return testdb.Err(tx.ExecContext(t.Context(), "UPDATE counter SET n = ? WHERE id = 1", n))
}

// rereads reports whether a transaction reads what another has committed since its first read.
func rereads(t *testing.T, tx *sql.Tx, increment func()) bool {
	t.Helper()
	first := read(t, tx)
	increment()
	return read(t, tx) > first
}

// TestTiDBLevelOfRun: Run chooses READ COMMITTED for a transaction whose keys it locks, unless
// the program has chosen a level.
func TestTiDBLevelOfRun(t *testing.T) {
	t.Parallel()
	key := []txlock.Key{txlock.Named("level")}
	for name, c := range map[string]struct {
		keys    []txlock.Key
		session string
		options []*sql.TxOptions
		fresh   bool
	}{
		"no options":              {keys: key, fresh: true}, // though others have sent statements before
		"no level":                {keys: key, options: []*sql.TxOptions{{}}, fresh: true},
		"REPEATABLE READ":         {keys: key, options: []*sql.TxOptions{{Isolation: sql.LevelRepeatableRead}}},
		"READ COMMITTED":          {keys: key, options: []*sql.TxOptions{{Isolation: sql.LevelReadCommitted}}, fresh: true},
		"READ COMMITTED, session": {keys: key, session: "'READ-COMMITTED'", fresh: true},
		"no keys":                 {},
	} {
		pool := freshTiDB(t, c.session)
		increment := incrementing(t, pool, txlock.Named("other"))
		for _, text := range []string{"SET @a = 1", "SET time_zone = '+00:00'", "CREATE TABLE IF NOT EXISTS counter (id INT)"} {
			exec(t, pool, text)
		}
		err := locksqlc.Run(t.Context(), pool, c.keys, func(tx *sql.Tx) error {
			testdb.Equal(t, name+": the second read is fresh", rereads(t, tx, increment), c.fresh)
			return nil
		}, c.options...)
		wants(t, name, err, nil)
	}
}

// freshTiDB is a guarded pool of a database of its own with a counter, 0, and with an isolation level
// of its sessions.
func freshTiDB(t *testing.T, level string) *sql.DB {
	t.Helper()
	db := testdb.Fresh(t, testdb.TiDB)
	check(t, schema.Install(t.Context(), db.Admin()))
	db.Exec(t, "CREATE TABLE counter (id INT PRIMARY KEY, n INT NOT NULL)")
	db.Exec(t, "INSERT INTO counter VALUES (1, 0)")
	pool, err := locksqlc.Open(db.AdminDSN(func(cfg *mysql.Config) {
		if level != "" {
			cfg.Params = map[string]string{"transaction_isolation": level}
		}
	}))
	check(t, err)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// tries runs a transaction whose level Run chooses, and demands what act returns in each run until it commits.
func tries(t *testing.T, what string, pool *sql.DB, act func(run int, s *txlock.Scope, tx *sql.Tx) error, want ...error) {
	t.Helper()
	var got []error
	err := runWith(t, pool, []txlock.Key{txlock.Named("first")}, func(s *txlock.Scope, tx *sql.Tx) error {
		err := act(len(got), s, tx)
		got = append(got, err)
		return err
	})
	testdb.ErrorIf(t, err != nil || !slices.EqualFunc(got, want, errors.Is), "%s: %v, want %v; Run: %v", what, got, want, err)
}

// TestTiDBReadBeforeLock: where Run has chosen the level, a lock after a read is refused, and the
// transaction is run again at the session's, where the snapshot shows whether the read is too old.
func TestTiDBReadBeforeLock(t *testing.T) {
	t.Parallel()
	first, other := txlock.Named("first"), txlock.Named("other")
	for name, lock := range map[string]func(s *txlock.Scope, tx *sql.Tx) error{
		"Lock":    func(s *txlock.Scope, _ *sql.Tx) error { return testdb.Err(s.Lock(t.Context(), other)) },
		"TryLock": func(s *txlock.Scope, _ *sql.Tx) error { return testdb.Err(s.TryLock(t.Context(), other)) },
		"LockAny": func(s *txlock.Scope, _ *sql.Tx) error { return testdb.Err(s.LockAny(t.Context(), other)) },
		"LockAll": func(s *txlock.Scope, _ *sql.Tx) error { return testdb.Err(s.LockAll(t.Context(), first, other)) },
		"WaitAtMost": func(s *txlock.Scope, _ *sql.Tx) error {
			return testdb.Err(s.WaitAtMost(aWhile).Lock(t.Context(), other))
		},
		"LockWith": func(s *txlock.Scope, tx *sql.Tx) error {
			return testdb.Err(tx.ExecContext(s.LockWith(t.Context(), other), "DO 1"))
		},
	} {
		pool := freshTiDB(t, "")
		increment := incrementing(t, pool, other)
		tries(t, name, pool, func(run int, s *txlock.Scope, tx *sql.Tx) error {
			n := read(t, tx)
			if run < 2 {
				increment()
			}
			if err := lock(s, tx); err != nil {
				return err
			}
			return write(t, tx, n+1)
		}, txlock.ErrStaleSnapshot, txlock.ErrStaleSnapshot, nil)
		testdb.Equal(t, name+": increments", read(t, pool), 3)
	}
}

// TestTiDBReadBeforeGuard: it is the same if a lease guards the transaction after a read.
func TestTiDBReadBeforeGuard(t *testing.T) {
	t.Parallel()
	pool := freshTiDB(t, "")
	l := testdb.Got(manage(t, pool).Acquire(t.Context(), txlock.Named("lease")))(t)
	tries(t, "Guard", pool, func(_ int, _ *txlock.Scope, tx *sql.Tx) error {
		read(t, tx)
		return l.Guard(t.Context(), tx)
	}, txlock.ErrStaleSnapshot, nil)
}

// TestTiDBManyWait: transactions of Run that wait for one key don't have to run again.
func TestTiDBManyWait(t *testing.T) {
	t.Parallel()
	const workers, times = 16, 10
	pool, key := freshTiDB(t, ""), txlock.Named("hot")
	var runs atomic.Int64
	each(t, workers, func(ctx context.Context, _ int) error {
		var errs []error
		for range times {
			errs = append(errs, locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
				runs.Add(1)
				return write(t, tx, read(t, tx)+1)
			}))
		}
		return errors.Join(errs...)
	})
	n := read(t, pool)
	testdb.ErrorIf(t, n != workers*times || runs.Load() != workers*times, "%d of %d increments in %d runs", n, workers*times, runs.Load())
}

// TestTiDBWaitsPastTheLimit: a wait at READ COMMITTED that others' COMMITs have ended again and again,
// until its limit, ends with ErrWaitTimeout as any other, and leaves the transaction open.
func TestTiDBWaitsPastTheLimit(t *testing.T) {
	t.Parallel()
	pool, key := onTiDB(t, nil), unused()
	var granted, refused atomic.Int32
	until := time.Now().Add(8 * time.Second)
	each(t, 12, func(ctx context.Context, _ int) error {
		for time.Now().Before(until) {
			tx, s := begin(t, pool, sql.LevelReadCommitted)
			_, err := s.WaitAtMost(time.Second).LockAll(ctx, key, beside(key))
			switch {
			case err == nil:
				granted.Add(1)
				time.Sleep(150 * time.Millisecond)
			case errors.Is(err, txlock.ErrWaitTimeout) && !errors.Is(err, txlock.ErrTxDoomed) && s.Verify(ctx) == nil:
				refused.Add(1)
			case !errors.Is(err, txlock.ErrDeadlock):
				t.Error(err)
			}
			err = tx.Commit()
			testdb.ErrorIf(t, err != nil && !errors.Is(err, txlock.ErrDeadlock), "%v", err)
		}
		return nil
	})
	testdb.ErrorIf(t, granted.Load() == 0 || refused.Load() == 0, "%d were granted, %d refused", granted.Load(), refused.Load())
}

// TestTiDBTokensRise: a token is greater than that of a holder who has rolled back while it was waited
// for. TiDB computes what a statement writes before it waits.
func TestTiDBTokensRise(t *testing.T) {
	t.Parallel()
	pool := freshTiDB(t, "")
	for kind, key := range map[string]txlock.Key{"named": txlock.Named("rises"), "hashed": txlock.NewFamily[int]("rises", txlock.Hashed()).Key(1)} {
		for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead} {
			var token uint64
			waiter := make(chan error, 1)
			tx, s := begin(t, pool, sql.LevelDefault)
			exec(t, tx, "SAVEPOINT s")
			lock(t, s, key)
			go func() {
				waiter <- runWith(t, pool, []txlock.Key{key}, func(s *txlock.Scope, _ *sql.Tx) error {
					grant, _ := s.Held(key)
					token = grant.Token()
					return nil
				}, &sql.TxOptions{Isolation: level})
			}()
			time.Sleep(300 * time.Millisecond) // it waits, or this proves nothing
			exec(t, tx, "ROLLBACK TO s")
			before := lock(t, s, key).Token()
			check(t, tx.Rollback())
			err := <-waiter
			testdb.ErrorIf(t, err != nil || token <= before, "%s, %v: %v, token %d after %d", kind, level, err, token, before)
		}
	}
}

// TestTiDBLevelIsNotLeftBehind: a transaction that can't begin leaves no level to the next.
func TestTiDBLevelIsNotLeftBehind(t *testing.T) {
	t.Parallel()
	pool := freshTiDB(t, "")
	pool.SetMaxIdleConns(1)
	increment := incrementing(t, pool, txlock.Named("other"))
	increment()
	for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted} {
		err := locksqlc.Run(t.Context(), pool, []txlock.Key{txlock.Named("read only")}, nothing, &sql.TxOptions{Isolation: level, ReadOnly: true})
		testdb.Fails(t, "a transaction that is read only", err)
		err = locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
			testdb.Equal(t, fmt.Sprintf("after %v: the second read is fresh", level), rereads(t, tx, increment), false)
			return nil
		})
		wants(t, "Run", err, nil)
	}
}

// TestTiDBChosenLevel: a level that SET TRANSACTION has chosen reaches the transaction, which any
// statement between them would use up, as the guard's questions for the session.
func TestTiDBChosenLevel(t *testing.T) {
	t.Parallel()
	pool := freshTiDB(t, "")
	increment := incrementing(t, pool, txlock.Named("other"))
	for _, before := range []string{"SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET @@transaction_isolation = 'READ-COMMITTED'"} {
		conn, _ := connection(t, pool)
		exec(t, conn, "SET @a = 1")
		exec(t, conn, before)
		tx, scope := begin(t, conn, sql.LevelDefault)
		lock(t, scope, txlock.Named("chosen"))
		testdb.Equal(t, before+": the second read is fresh", rereads(t, tx, increment), true)
		check(t, tx.Rollback())
	}
}

// TestTiDBVersionAfterRead: at the level that Run has chosen, a version may be newer than what was read before it.
func TestTiDBVersionAfterRead(t *testing.T) {
	t.Parallel()
	pool, key := freshTiDB(t, ""), txlock.Named("version")
	increment := incrementing(t, pool, key)
	var version uint64
	tries(t, "Version", pool, func(_ int, s *txlock.Scope, tx *sql.Tx) (err error) {
		read(t, tx)
		increment()
		version, err = s.Version(t.Context(), key)
		return err
	}, txlock.ErrStaleSnapshot, nil)
	err := runWith(t, pool, nil, func(s *txlock.Scope, _ *sql.Tx) error { return s.CompareAndBump(t.Context(), key, version) })
	wants(t, "CompareAndBump by the version that belongs to what was read", err, txlock.ErrConflict)
}

// TestTiDBVersionBeforeLock: a version that was read at that level belongs to a lock only if it is compared.
func TestTiDBVersionBeforeLock(t *testing.T) {
	t.Parallel()
	pool, key := freshTiDB(t, ""), txlock.Named("version")
	increment := incrementing(t, pool, key)
	increment()
	for name, lock := range map[string]func(s *txlock.Scope, version uint64) error{
		"Lock":           func(s *txlock.Scope, _ uint64) error { return testdb.Err(s.Lock(t.Context(), key)) },
		"TryLock":        func(s *txlock.Scope, _ uint64) error { return testdb.Err(s.TryLock(t.Context(), key)) },
		"LockAll":        func(s *txlock.Scope, _ uint64) error { return testdb.Err(s.LockAll(t.Context(), key)) },
		"CompareAndBump": func(s *txlock.Scope, version uint64) error { return s.CompareAndBump(t.Context(), key, version) },
	} {
		changes := 0 // of the version, in so many runs
		locks := func(run int, s *txlock.Scope, _ *sql.Tx) error {
			version, err := s.Version(t.Context(), key)
			if err != nil {
				return err
			}
			if run < changes {
				increment()
			}
			return lock(s, version)
		}
		unchanged, changed := []error{txlock.ErrStaleSnapshot, nil}, []error{txlock.ErrStaleSnapshot, txlock.ErrStaleSnapshot, nil}
		if name == "CompareAndBump" {
			unchanged, changed = []error{nil}, []error{txlock.ErrConflict, txlock.ErrConflict, nil}
		}
		tries(t, name, pool, locks, unchanged...)
		changes = 2
		tries(t, name+" of what changes", pool, locks, changed...)
	}
}

// TestTiDBLooks: what lockstep itself looks at before a try isn't read before a lock.
func TestTiDBLooks(t *testing.T) {
	t.Parallel()
	pool, held := freshTiDB(t, ""), []txlock.Key{txlock.Named("held 1"), txlock.Named("held 2")}
	tx, s := begin(t, pool, sql.LevelDefault)
	check(t, testdb.Err(s.LockAll(t.Context(), held...)))
	tries(t, "LockAny", pool, func(_ int, s *txlock.Scope, _ *sql.Tx) error {
		return testdb.Err(s.LockAny(t.Context(), held[0], held[1], txlock.Named("free")))
	}, nil)
	check(t, tx.Rollback())
}
