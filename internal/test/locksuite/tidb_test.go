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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// onTiDB is a guarded pool, with variables set by its data source name.
func onTiDB(t *testing.T, variables map[string]string) *sql.DB {
	t.Helper()
	return poolOf(t, testdb.Open(t, testdb.TiDB), true, func(cfg *mysql.Config) { cfg.Params = variables })
}

// TestTiDBRefusesVerbs: what TiDB hasn't is refused by its name, and the transaction goes on.
func TestTiDBRefusesVerbs(t *testing.T) {
	t.Parallel()
	pool, key := onTiDB(t, nil), txlock.Named("test:"+rand.Text())
	for name, c := range map[string]struct {
		call func(s *txlock.Scope) error
		says string
	}{
		"RLock":               {func(s *txlock.Scope) error { _, err := s.RLock(t.Context(), key); return err }, "no shared locks"},
		"TryRLock":            {func(s *txlock.Scope) error { _, err := s.TryRLock(t.Context(), key); return err }, "no shared locks"},
		"WaitAtMost, RLock":   {func(s *txlock.Scope) error { _, err := s.WaitAtMost(aWhile).RLock(t.Context(), key); return err }, "no shared locks"},
		"RLockAll":            {func(s *txlock.Scope) error { _, err := s.RLockAll(t.Context(), key, beside(key)); return err }, "no shared locks"},
		"LockAll, one shared": {func(s *txlock.Scope) error { return second(s.LockAll(t.Context(), key, txlock.Shared(beside(key)))) }, "no shared locks"},
	} {
		_, s := begin(t, pool, sql.LevelDefault)
		if err := c.call(s); !errors.Is(err, schema.ErrEngine) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want one with %q", name, err, c.says)
		}
		if _, held := s.Held(key); held && name != "LockAll, one shared" {
			t.Errorf("%s: the key is held", name)
		}
		if err := s.Verify(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, call := range map[string]func() error{
		"Do": func() error {
			return locksqlc.Do(t.Context(), pool, key, func(context.Context) error { return errRan })
		},
		"TryDo": func() error {
			return locksqlc.TryDo(t.Context(), pool, key, func(context.Context) error { return errRan })
		},
		"Holders": func() error { _, err := txlock.Holders(t.Context(), pool, key); return err },
		"Ensure":  func() error { return txlock.Ensure(t.Context(), pool, key) },
	} {
		if err := call(); !errors.Is(err, schema.ErrEngine) || errors.Is(err, errRan) {
			t.Errorf("%s: %v, want ErrEngine", name, err)
		}
	}
}

// TestTiDBRefusesTransactions: no lock is taken in a transaction of another kind than those that
// locks hold in.
func TestTiDBRefusesTransactions(t *testing.T) {
	t.Parallel()
	key := txlock.Named("test:" + rand.Text())
	for name, c := range map[string]struct {
		variables map[string]string
		options   sql.TxOptions
		set       string // by the program, in the transaction
		want      error
		says      string
	}{
		"SERIALIZABLE":     {nil, sql.TxOptions{Isolation: sql.LevelSerializable}, "", schema.ErrEngine, "READ COMMITTED or REPEATABLE READ"},
		"READ UNCOMMITTED": {nil, sql.TxOptions{Isolation: sql.LevelReadUncommitted}, "", schema.ErrEngine, "READ COMMITTED or REPEATABLE READ"},
		"SERIALIZABLE, accepted": {map[string]string{"tidb_skip_isolation_level_check": "1"}, sql.TxOptions{Isolation: sql.LevelSerializable}, "",
			schema.ErrSession, "tidb_skip_isolation_level_check"},
		"read only":       {nil, sql.TxOptions{ReadOnly: true}, "", txlock.ErrReadOnly, "READ ONLY"},
		"optimistic":      {map[string]string{"tidb_txn_mode": "'optimistic'"}, sql.TxOptions{}, "", schema.ErrSession, "set pessimistic"},
		"optimistic, set": {nil, sql.TxOptions{}, "SET tidb_txn_mode = 'optimistic'", schema.ErrSession, "set pessimistic"},
		"lazy uniqueness": {map[string]string{"tidb_constraint_check_in_place_pessimistic": "0"}, sql.TxOptions{}, "", schema.ErrSession, "new rows"},
		"stale reads":     {map[string]string{"tidb_read_staleness": "'-5'"}, sql.TxOptions{}, "", schema.ErrSession, "older than the lock"},
		"old timestamps":  {map[string]string{"tidb_low_resolution_tso": "1"}, sql.TxOptions{}, "", schema.ErrSession, "older than the lock"},
		"bulk":            {map[string]string{"tidb_dml_type": "'bulk'"}, sql.TxOptions{}, "", schema.ErrSession, "standard"},
		"autocommit":      {map[string]string{"autocommit": "0"}, sql.TxOptions{}, "", schema.ErrAutocommit, "autocommit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused := func() error {
				tx, err := onTiDB(t, c.variables).BeginTx(t.Context(), &c.options)
				if err != nil {
					return err
				}
				defer tx.Rollback() //nolint:errcheck // nothing was done in it
				if c.set != "" {
					if _, err := tx.ExecContext(t.Context(), c.set); err != nil {
						return err
					}
				}
				s, err := locksqlc.Join(t.Context(), tx)
				if err == nil {
					_, err = s.Lock(t.Context(), key)
				}
				return err
			}()
			if !errors.Is(refused, c.want) || !strings.Contains(refused.Error(), c.says) {
				t.Errorf("%v, want %v with %q", refused, c.want, c.says)
			}
		})
	}
	for _, begin := range []string{"BEGIN", "START TRANSACTION", "BEGIN PESSIMISTIC", "BEGIN OPTIMISTIC", "BEGIN /*T! OPTIMISTIC */"} {
		conn, err := onTiDB(t, nil).Conn(t.Context())
		check(t, err)
		exec(t, conn, begin)
		s, err := locksqlc.JoinConn(t.Context(), conn)
		if err == nil {
			_, err = s.Lock(t.Context(), key)
		}
		if !errors.Is(err, schema.ErrEngine) && !errors.Is(err, txlock.ErrNoTransaction) {
			t.Errorf("%s: %v, want ErrEngine", begin, err)
		}
		exec(t, conn, "ROLLBACK")
		_ = conn.Close()
	}
}

// TestTiDBLocks: a lock excludes until the end of its transaction, a wait is limited, and what was
// read before the lock is refused as old at REPEATABLE READ.
func TestTiDBLocks(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted} {
		for kind, key := range map[string]txlock.Key{"named": txlock.Named("test:" + rand.Text()), "hashed": txlock.NewFamily[string]("tidb", txlock.Hashed(), txlock.Exact()).Key(rand.Text())} {
			t.Run(level.String()+"/"+kind, func(t *testing.T) {
				t.Parallel()
				pool := onTiDB(t, nil)
				tx, s := begin(t, pool, level)
				first := lock(t, s, key)
				_, other := begin(t, pool, level)
				for name, err := range map[string]error{
					"TryLock":             second(other.TryLock(t.Context(), key)),
					"WaitAtMost, LockAll": second(other.WaitAtMost(aWhile).LockAll(t.Context(), key, beside(key))),
					"WaitAtMost, Lock":    second(other.WaitAtMost(aWhile).Lock(t.Context(), key)),
				} {
					if want := map[bool]error{true: txlock.ErrBusy, false: txlock.ErrWaitTimeout}[name == "TryLock"]; !errors.Is(err, want) {
						t.Errorf("%s: %v, want %v", name, err, want)
					}
				}
				if err := other.Verify(t.Context()); err != nil {
					t.Errorf("after the refusals: %v", err)
				}
				if again, err := s.Lock(t.Context(), key); err != nil || again.Token() != first.Token() {
					t.Errorf("again: %+v, %v", again, err)
				}
				check(t, tx.Commit())
				got, err := other.Lock(t.Context(), key) // its transaction has begun before
				switch {
				case level == sql.LevelDefault && !errors.Is(err, txlock.ErrStaleSnapshot):
					t.Errorf("with an older snapshot: %v", err)
				case level != sql.LevelDefault && (err != nil || got.Token() <= first.Token()):
					t.Errorf("%+v after %+v, %v", got, first, err)
				}
			})
		}
	}
}

// TestTiDBSavepoint: a lock that a savepoint has undone is asked for again.
func TestTiDBSavepoint(t *testing.T) {
	t.Parallel()
	key, pool := txlock.Named("test:"+rand.Text()), onTiDB(t, nil)
	tx, s := begin(t, pool, sql.LevelDefault)
	exec(t, tx, "SAVEPOINT a")
	lock(t, s, key)
	exec(t, tx, "ROLLBACK TO SAVEPOINT a")
	if _, held := s.Held(key); held {
		t.Error("it is held after the rollback")
	}
	lock(t, s, key)
	check(t, tx.Commit())
}

// TestTiDBVersion: who has raised a version is in its row, and a conflict changes nothing.
func TestTiDBVersion(t *testing.T) {
	t.Parallel()
	key, pool := txlock.Named("test:"+rand.Text()), onTiDB(t, nil)
	row := func(tx *sql.Tx) (token, holder uint64) {
		t.Helper()
		check(t, tx.QueryRowContext(t.Context(), "SELECT token, conn_id FROM lockstep_locks WHERE name = ? FOR UPDATE", key.String()).Scan(&token, &holder))
		return token, holder
	}
	var version, last uint64
	for range 2 { // the row is made, and then changed by another session
		tx, s := begin(t, onTiDB(t, nil), sql.LevelDefault)
		check(t, s.CompareAndBump(t.Context(), key, version))
		grant, held := s.Held(key)
		token, grantedTo := row(tx)
		if !held || token != grant.Token() || token <= version || grantedTo != uint64(testdb.ConnID(t, tx)) {
			t.Errorf("the row has the token %d of the session %d, want %d of this one, above %d", token, grantedTo, grant.Token(), version)
		}
		check(t, tx.Commit())
		version, last = grant.Token(), grantedTo
	}
	tx, s := begin(t, pool, sql.LevelReadCommitted) // where the row alone is compared
	if err := s.CompareAndBump(t.Context(), key, version-1); !errors.Is(err, txlock.ErrConflict) {
		t.Errorf("an old version: %v", err)
	}
	if token, holder := row(tx); token != version || holder != last {
		t.Errorf("a conflict has changed the version %d of %d to %d of %d", version, last, token, holder)
	}
}

// TestTiDBOnce: a key is given to the first transaction that commits, and to no other.
func TestTiDBOnce(t *testing.T) {
	t.Parallel()
	key, pool := txlock.Named("test:"+rand.Text()), onTiDB(t, nil)
	var firsts atomic.Int64
	each(t, 10, func(ctx context.Context, _ int) error {
		first, err := locksqlc.Once(ctx, pool, key, func(*sql.Tx) error { return nil })
		if first {
			firsts.Add(1)
		}
		return err
	})
	if n := firsts.Load(); n != 1 {
		t.Errorf("%d calls were the first", n)
	}
	result, err := locksqlc.Once(t.Context(), pool, key, func(*sql.Tx) error { return errRan }, txlock.Fingerprint([]byte("other")))
	if err != nil || result {
		t.Errorf("again: %t, %v", result, err)
	}
	for i, want := range []bool{true, false} {
		value, first, err := locksqlc.OnceValue(t.Context(), pool, beside(key), func(*sql.Tx) (int, error) { return i, nil })
		if err != nil || value != 0 || first != want {
			t.Errorf("call %d returns %d, %t, %v, want 0, %t", i, value, first, err, want)
		}
	}
}

// TestTiDBDoomed: what TiDB has ended is refused.
func TestTiDBDoomed(t *testing.T) {
	t.Parallel()
	pool := onTiDB(t, nil)
	keys := []txlock.Key{txlock.Named("test:" + rand.Text()), txlock.Named("test:" + rand.Text())}
	errs := make([]error, 2)
	var taken, done sync.WaitGroup
	taken.Add(len(errs))
	for i := range errs {
		tx, s := begin(t, pool, sql.LevelReadCommitted)
		done.Go(func() {
			_, errs[i] = s.Lock(t.Context(), keys[i])
			taken.Done()
			taken.Wait()
			if errs[i] == nil {
				_, errs[i] = s.Lock(t.Context(), keys[1-i])
			}
			if errs[i] == nil {
				errs[i] = tx.Commit()
				return
			}
			if _, err := tx.ExecContext(t.Context(), "SELECT 1"); !errors.Is(err, txlock.ErrTxDoomed) {
				t.Errorf("after the deadlock: %v", err)
			}
			if err := tx.Commit(); !errors.Is(err, txlock.ErrTxDoomed) {
				t.Errorf("Commit: %v", err)
			}
		})
	}
	done.Wait()
	if errors.Is(errs[0], txlock.ErrDeadlock) == errors.Is(errs[1], txlock.ErrDeadlock) {
		t.Errorf("want one deadlock: %v", errs)
	}
}

// TestTiDBEnded: a lock that a statement of the program has ended is lost, and Commit returns that.
func TestTiDBEnded(t *testing.T) {
	t.Parallel()
	pool := onTiDB(t, nil)
	for _, statement := range []string{"BEGIN OPTIMISTIC", "BEGIN", "COMMIT", "ROLLBACK", "PREPARE s FROM 'BEGIN'; EXECUTE s"} {
		tx, s := begin(t, pool, sql.LevelDefault)
		lock(t, s, txlock.Named("test:"+rand.Text()))
		for one := range strings.SplitSeq(statement, "; ") {
			_, _ = tx.ExecContext(t.Context(), one) // the guard may return what it has found
		}
		if _, err := s.Lock(t.Context(), txlock.Named("test:"+rand.Text())); !errors.Is(err, txlock.ErrTxDoomed) {
			t.Errorf("%s: Lock: %v, want ErrTxDoomed", statement, err)
		}
		if err := tx.Commit(); !errors.Is(err, txlock.ErrTxDoomed) {
			t.Errorf("%s: Commit: %v, want ErrTxDoomed", statement, err)
		}
	}
}

// TestTiDBPurge: Purge and PurgeOnce remove what is old, and neither wait for rows that are locked nor
// remove them.
func TestTiDBPurge(t *testing.T) {
	t.Parallel()
	const old = 1100
	db := testdb.Shared(t, testdb.TiDB).Open(t)
	guarded, err := locksqlc.Open(db.AdminDSN())
	check(t, err)
	defer func() { _ = guarded.Close() }()
	for i, pool := range []*sql.DB{db.Admin(), guarded} {
		for table, rest := range map[string]string{
			"lockstep_locks": "(name, token, owner, conn_id, locked_us) VALUES (?, 1, '-', 0, IF(?, UNIX_TIMESTAMP() * 1000000, 0))",
			"lockstep_once":  "(name, fingerprint, result, done_us, keep_us) VALUES (?, '-', '-', IF(?, UNIX_TIMESTAMP() * 1000000, 0), 3600000000)",
		} {
			tx, err := db.Admin().BeginTx(t.Context(), nil)
			check(t, err)
			for n := range old + 1 {
				exec(t, tx, "INSERT INTO "+table+" "+rest, fmt.Sprintf("%d:%04d", i, n), n == old)
			}
			check(t, tx.Commit())
			holder, err := db.Admin().BeginTx(t.Context(), nil)
			check(t, err)
			// The last row of a batch, and one within it.
			exec(t, holder, "SELECT name FROM "+table+" WHERE name IN (?, ?) FOR UPDATE", fmt.Sprintf("%d:0049", i), fmt.Sprintf("%d:0007", i))
			purge := func() (int, error) { return txlock.Purge(t.Context(), pool, time.Hour) }
			if table == "lockstep_once" {
				purge = func() (int, error) { return txlock.PurgeOnce(t.Context(), pool) }
			}
			if n, err := purge(); n != old-2 || err != nil {
				t.Fatalf("%s: %d rows are removed beside a holder of two, %v; want %d", table, n, err, old-2)
			}
			check(t, holder.Rollback())
			if n, err := purge(); n != 2 || err != nil {
				t.Errorf("%s: %d rows are removed, %v; want the two that were locked", table, n, err)
			}
			if left := count(t, db.Admin(), "SELECT COUNT(*) FROM "+table+" WHERE name LIKE ?", fmt.Sprintf("%d:%%", i)); left != 1 {
				t.Errorf("%s: %d rows are left, want the new one", table, left)
			}
		}
	}
}

// incrementing returns what increments the counter of freshTiDB under the lock of a key.
func incrementing(t *testing.T, pool *sql.DB, key txlock.Key) (increment func()) {
	return func() {
		t.Helper()
		if err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error { return write(t, tx, read(t, tx)+1) }); err != nil {
			t.Error(err)
		}
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
	if err := db.QueryRowContext(t.Context(), "SELECT n FROM counter WHERE id = 1").Scan(&n); err != nil {
		t.Error(err)
	}
	return n
}

func write(t *testing.T, tx *sql.Tx, n int) error {
	return second(tx.ExecContext(t.Context(), "UPDATE counter SET n = ? WHERE id = 1", n))
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
			if _, err := pool.ExecContext(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
		err := locksqlc.Run(t.Context(), pool, c.keys, func(tx *sql.Tx) error {
			first := read(t, tx)
			increment()
			if fresh := read(t, tx) > first; fresh != c.fresh {
				t.Errorf("%s: the second read is fresh: %t", name, fresh)
			}
			return nil
		}, c.options...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
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

// TestTiDBReadBeforeLock: where Run has chosen the level, a lock after a read is refused, and the
// transaction is run again at the session's, where the snapshot shows whether the read is too old.
func TestTiDBReadBeforeLock(t *testing.T) {
	t.Parallel()
	first, other := txlock.Named("first"), txlock.Named("other")
	for name, lock := range map[string]func(s *txlock.Scope, tx *sql.Tx) error{
		"Lock":       func(s *txlock.Scope, _ *sql.Tx) error { return second(s.Lock(t.Context(), other)) },
		"TryLock":    func(s *txlock.Scope, _ *sql.Tx) error { return second(s.TryLock(t.Context(), other)) },
		"LockAny":    func(s *txlock.Scope, _ *sql.Tx) error { return second(s.LockAny(t.Context(), other)) },
		"LockAll":    func(s *txlock.Scope, _ *sql.Tx) error { return second(s.LockAll(t.Context(), first, other)) },
		"WaitAtMost": func(s *txlock.Scope, _ *sql.Tx) error { return second(s.WaitAtMost(aWhile).Lock(t.Context(), other)) },
		"LockWith": func(s *txlock.Scope, tx *sql.Tx) error {
			return second(tx.ExecContext(s.LockWith(t.Context(), other), "DO 1"))
		},
	} {
		pool := freshTiDB(t, "")
		increment, runs := incrementing(t, pool, other), 0
		err := runWith(t, pool, []txlock.Key{first}, func(s *txlock.Scope, tx *sql.Tx) error {
			n := read(t, tx)
			if runs++; runs < 3 {
				increment()
			}
			if err := lock(s, tx); err != nil {
				if !errors.Is(err, txlock.ErrStaleSnapshot) {
					t.Errorf("%s: %v", name, err)
				}
				return err
			}
			return write(t, tx, n+1)
		})
		if n := read(t, pool); err != nil || n != 3 || runs != 3 {
			t.Errorf("%s: %d of 3 increments after %d runs, %v", name, n, runs, err)
		}
	}
}

// TestTiDBReadBeforeGuard: it is the same if a lease guards the transaction after a read.
func TestTiDBReadBeforeGuard(t *testing.T) {
	t.Parallel()
	pool := freshTiDB(t, "")
	m, err := lease.NewManager(pool)
	check(t, err)
	defer func() { _ = m.Close(context.WithoutCancel(t.Context())) }()
	l, err := m.Acquire(t.Context(), txlock.Named("lease"))
	check(t, err)
	var guarded []error
	err = locksqlc.Run(t.Context(), pool, []txlock.Key{l.Key()}, func(tx *sql.Tx) error {
		read(t, tx)
		err := l.Guard(t.Context(), tx)
		guarded = append(guarded, err)
		return err
	})
	if err != nil || len(guarded) != 2 || !errors.Is(guarded[0], txlock.ErrStaleSnapshot) || guarded[1] != nil {
		t.Errorf("Run: %v, Guard: %v", err, guarded)
	}
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
	if n := read(t, pool); n != workers*times || runs.Load() != workers*times {
		t.Errorf("%d of %d increments in %d runs", n, workers*times, runs.Load())
	}
}

// TestTiDBWaitsPastTheLimit: a wait at READ COMMITTED that others' COMMITs have ended again and again,
// until its limit, ends with ErrWaitTimeout as any other, and leaves the transaction open.
func TestTiDBWaitsPastTheLimit(t *testing.T) {
	t.Parallel()
	pool, key := onTiDB(t, nil), txlock.Named("test:"+rand.Text())
	var many sync.WaitGroup
	var granted, refused atomic.Int32
	until := time.Now().Add(8 * time.Second)
	for range 12 {
		many.Go(func() {
			for time.Now().Before(until) {
				tx, s := begin(t, pool, sql.LevelReadCommitted)
				_, err := s.WaitAtMost(time.Second).LockAll(t.Context(), key, beside(key))
				switch {
				case err == nil:
					granted.Add(1)
					time.Sleep(150 * time.Millisecond)
				case errors.Is(err, txlock.ErrWaitTimeout) && !errors.Is(err, txlock.ErrTxDoomed) && s.Verify(t.Context()) == nil:
					refused.Add(1)
				case !errors.Is(err, txlock.ErrDeadlock):
					t.Error(err)
				}
				if err := tx.Commit(); err != nil && !errors.Is(err, txlock.ErrDeadlock) {
					t.Error(err)
				}
			}
		})
	}
	many.Wait()
	t.Logf("%d granted, %d refused", granted.Load(), refused.Load())
	if granted.Load() == 0 || refused.Load() == 0 {
		t.Error("nothing was granted, or nothing was refused")
	}
}

// TestTiDBTokensRise: a token is greater than that of a holder who has rolled back while it was waited
// for. TiDB computes what a statement writes before it waits.
func TestTiDBTokensRise(t *testing.T) {
	t.Parallel()
	pool, undo := freshTiDB(t, ""), errors.New("undo")
	for kind, key := range map[string]txlock.Key{"named": txlock.Named("rises"), "hashed": txlock.NewFamily[int]("rises", txlock.Hashed()).Key(1)} {
		for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead} {
			var waiter error
			var before, token uint64
			var waits sync.WaitGroup
			err := runWith(t, pool, nil, func(s *txlock.Scope, tx *sql.Tx) error {
				if _, err := tx.ExecContext(t.Context(), "SAVEPOINT s"); err != nil {
					return err
				}
				if _, err := s.Lock(t.Context(), key); err != nil {
					return err
				}
				waits.Go(func() {
					waiter = runWith(t, pool, []txlock.Key{key}, func(s *txlock.Scope, _ *sql.Tx) error {
						grant, _ := s.Held(key)
						token = grant.Token()
						return nil
					}, &sql.TxOptions{Isolation: level})
				})
				time.Sleep(300 * time.Millisecond) // it waits, or this proves nothing
				if _, err := tx.ExecContext(t.Context(), "ROLLBACK TO s"); err != nil {
					return err
				}
				grant, err := s.Lock(t.Context(), key)
				if err != nil {
					return err
				}
				before = grant.Token()
				return undo
			})
			waits.Wait()
			if !errors.Is(err, undo) || waiter != nil || token <= before {
				t.Errorf("%s, %v: %v, token %d; then %v, token %d", kind, level, err, before, waiter, token)
			}
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
		err := locksqlc.Run(t.Context(), pool, []txlock.Key{txlock.Named("read only")}, func(*sql.Tx) error { return nil }, &sql.TxOptions{Isolation: level, ReadOnly: true})
		if err == nil {
			t.Error("TiDB begins a transaction that is read only")
		}
		err = locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
			first := read(t, tx)
			increment()
			if read(t, tx) > first {
				t.Errorf("after %v: the next transaction is at READ COMMITTED", level)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestTiDBChosenLevel: a level that SET TRANSACTION has chosen reaches the transaction, which any
// statement between them would use up, as the guard's questions for the session.
func TestTiDBChosenLevel(t *testing.T) {
	t.Parallel()
	pool := freshTiDB(t, "")
	increment := incrementing(t, pool, txlock.Named("other"))
	for _, before := range []string{"SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET @@transaction_isolation = 'READ-COMMITTED'"} {
		conn, err := pool.Conn(t.Context())
		check(t, err)
		defer func() { _ = conn.Close() }()
		exec(t, conn, "SET @a = 1")
		exec(t, conn, before)
		tx, scope := begin(t, conn, sql.LevelDefault)
		lock(t, scope, txlock.Named("chosen"))
		first := read(t, tx)
		increment()
		if read(t, tx) == first {
			t.Errorf("%s: the transaction is not at READ COMMITTED", before)
		}
		check(t, tx.Rollback())
	}
}

// TestTiDBVersionAfterRead: at the level that Run has chosen, a version may be newer than what was read
// before it.
func TestTiDBVersionAfterRead(t *testing.T) {
	t.Parallel()
	pool, key := freshTiDB(t, ""), txlock.Named("version")
	increment := incrementing(t, pool, key)
	var refused []error
	var n int
	var version uint64
	err := runWith(t, pool, []txlock.Key{txlock.Named("first")}, func(s *txlock.Scope, tx *sql.Tx) (err error) {
		n = read(t, tx)
		increment()
		version, err = s.Version(t.Context(), key)
		refused = append(refused, err)
		return err
	})
	if err != nil || len(refused) != 2 || !errors.Is(refused[0], txlock.ErrStaleSnapshot) {
		t.Errorf("Version: %v, Run: %v", refused, err)
	}
	err = runWith(t, pool, nil, func(s *txlock.Scope, _ *sql.Tx) error { return s.CompareAndBump(t.Context(), key, version) })
	if !errors.Is(err, txlock.ErrConflict) {
		t.Errorf("CompareAndBump by the version that belongs to %d: %v, want ErrConflict", n, err)
	}
}

// TestTiDBVersionBeforeLock: a version that was read at that level belongs to a lock only if it is
// compared.
func TestTiDBVersionBeforeLock(t *testing.T) {
	t.Parallel()
	pool, key := freshTiDB(t, ""), txlock.Named("version")
	increment := incrementing(t, pool, key)
	increment()
	for name, lock := range map[string]func(s *txlock.Scope, version uint64) error{
		"Lock":           func(s *txlock.Scope, _ uint64) error { _, err := s.Lock(t.Context(), key); return err },
		"TryLock":        func(s *txlock.Scope, _ uint64) error { _, err := s.TryLock(t.Context(), key); return err },
		"LockAll":        func(s *txlock.Scope, _ uint64) error { _, err := s.LockAll(t.Context(), key); return err },
		"CompareAndBump": func(s *txlock.Scope, version uint64) error { return s.CompareAndBump(t.Context(), key, version) },
	} {
		for _, changes := range []bool{false, true} {
			var locked []error
			err := runWith(t, pool, []txlock.Key{txlock.Named("first")}, func(s *txlock.Scope, _ *sql.Tx) error {
				version, err := s.Version(t.Context(), key)
				if err != nil {
					return err
				}
				if changes && len(locked) < 2 {
					increment()
				}
				err = lock(s, version)
				locked = append(locked, err)
				return err
			})
			want := []error{txlock.ErrStaleSnapshot, nil}
			switch {
			case name == "CompareAndBump" && changes:
				want = []error{txlock.ErrConflict, txlock.ErrConflict, nil}
			case name == "CompareAndBump":
				want = []error{nil}
			case changes:
				want = []error{txlock.ErrStaleSnapshot, txlock.ErrStaleSnapshot, nil}
			}
			if err != nil || !slices.EqualFunc(locked, want, errors.Is) {
				t.Errorf("%s, changes %t: %v, want %v; Run: %v", name, changes, locked, want, err)
			}
		}
	}
}

// TestTiDBLooks: what lockstep itself looks at before a try isn't read before a lock.
func TestTiDBLooks(t *testing.T) {
	t.Parallel()
	pool, held := freshTiDB(t, ""), []txlock.Key{txlock.Named("held 1"), txlock.Named("held 2")}
	tx, s := begin(t, pool, sql.LevelDefault)
	check(t, second(s.LockAll(t.Context(), held...)))
	runs := 0
	err := runWith(t, pool, []txlock.Key{txlock.Named("first")}, func(s *txlock.Scope, _ *sql.Tx) error {
		runs++
		_, err := s.LockAny(t.Context(), held[0], held[1], txlock.Named("free"))
		return err
	})
	if err != nil || runs != 1 {
		t.Errorf("%d runs, %v", runs, err)
	}
	check(t, tx.Rollback())
}
