package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// soon is how long what happens at once may take on a busy machine.
const soon = 5 * time.Minute

// counter makes a table whose row 1 counts what was committed.
func counter(t testing.TB, db *testdb.DB) (table string) {
	t.Helper()
	table = db.CreateTable(t, "counter", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL")
	exec(t, db, "INSERT INTO "+table+" VALUES (1, 0), (2, 0)")
	return table
}

// counted reads what was committed.
func counted(t testing.TB, db *testdb.DB, table string) int64 {
	t.Helper()
	return number(t, db, "SELECT n FROM "+table+" WHERE id = 1")
}

// counts checks what was committed.
func counts(t testing.TB, db *testdb.DB, table string, want int64) {
	t.Helper()
	equal(t, "the counter", counted(t, db, table), want)
}

// begin begins a transaction that is rolled back at the end of the test, if it is
// open then.
func begin(t testing.TB, pool *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := pool.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
	must(t, err)
	t.Cleanup(func() {
		if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
			t.Logf("roll back at the end: %v", err)
		}
	})
	return tx
}

// run executes a statement in a transaction.
func run(t testing.TB, tx *sql.Tx, query string) {
	t.Helper()
	if _, err := tx.ExecContext(context.Background(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// add raises the counter in a transaction, without reading it.
func add(t testing.TB, tx *sql.Tx, table string) {
	t.Helper()
	run(t, tx, "UPDATE "+table+" SET n = n + 1 WHERE id = 1")
}

// reads reads the counter in a transaction, which fixes its snapshot.
func reads(t testing.TB, tx *sql.Tx, table string) {
	t.Helper()
	must(t, tx.QueryRowContext(context.Background(), "SELECT n FROM "+table+" WHERE id = 1").Scan(new(int64)))
}

func guard(t testing.TB, l *lease.Lease, tx txlock.Tx) {
	t.Helper()
	must(t, l.Guard(context.Background(), tx))
}

func commit(t testing.TB, tx *sql.Tx) {
	t.Helper()
	must(t, tx.Commit())
}

func rollback(t testing.TB, tx *sql.Tx) {
	t.Helper()
	must(t, tx.Rollback())
}

// quickly fails where something that must not wait took long. It takes some
// milliseconds, and a tenth of a second where it looks again for a while; what waits by
// mistake takes five seconds or more.
func quickly(t testing.TB, what string, f func()) {
	t.Helper()
	delays, start := testdb.Delays(t), time.Now()
	f()
	if took := time.Since(start); took > 3*time.Second+delays() {
		t.Errorf("%s took %v", what, took)
	}
}

// within waits for a channel that is closed, or sent to, soon.
func within[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(soon):
		t.Errorf("%s didn't come in %v", what, soon)
	}
	return v
}

// free waits until another manager can take the lease, and releases it.
func free(t testing.TB, m *lease.Manager, key txlock.Key) uint64 {
	t.Helper()
	l := acquire(t, m, key, lease.WaitAtMost(soon))
	if err := l.Release(context.Background()); err != nil && !errors.Is(err, lease.ErrGuarded) { // by a manager that looks whether it is still its own
		t.Errorf("Release: %v", err)
	}
	return l.Token()
}

// TestGuardSnapshot proves that a transaction whose snapshot is older than the
// lease can't be guarded, and that one whose reads are newer can.
func TestGuardSnapshot(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, table := newManager(t, pool), counter(t, db)
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelReadCommitted} {
			for history, leased := range histories {
				t.Run(level.String()+"/"+history, func(t *testing.T) {
					key := keyOf(t, m, leased)
					tx := begin(t, pool, level)
					reads(t, tx, table)
					l := acquire(t, m, key)
					defer release(t, l)
					err := l.Guard(t.Context(), tx)
					if level == sql.LevelRepeatableRead {
						wants(t, "Guard after an old read", err, txlock.ErrStaleSnapshot)
						if !txlock.Retryable(err) {
							t.Errorf("not retryable: %v", err)
						}
						wantsNone(t, "the lease is lost by that", l.Err())
						rollback(t, tx)
					} else {
						wantsNone(t, "Guard", err)
						commit(t, tx)
					}

					tx = begin(t, pool, level)
					reads(t, tx, table)
					guard(t, l, tx)
					commit(t, tx)

					tx = begin(t, pool, level)
					guard(t, l, tx)
					reads(t, tx, table)
					guard(t, l, tx)
					commit(t, tx)
				})
			}
		}
	})
}

// TestGuardAfterRenewals proves that renewals, and other guarded transactions
// under the same lease, make no snapshot too old, also where MariaDB refuses to lock
// rows that have changed since, and that the session keeps that setting.
func TestGuardAfterRenewals(t *testing.T) {
	onKinds(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		strict := db.HasSnapshotIsolation(t)
		pool := newPool(t, db, guarded, func(c *mysql.Config) {
			if strict {
				c.Params = map[string]string{"innodb_snapshot_isolation": "ON"}
			}
		})
		m, table := newManager(t, pool), counter(t, db)
		l := acquire(t, m, named())
		defer release(t, l)

		tx := begin(t, pool, sql.LevelRepeatableRead)
		reads(t, tx, table)
		must(t, l.Renew(t.Context()))
		other := begin(t, pool, sql.LevelRepeatableRead)
		guard(t, l, other)
		commit(t, other)
		add(t, tx, table)
		guard(t, l, tx)
		if strict {
			var on bool
			if err := tx.QueryRowContext(t.Context(), "SELECT @@innodb_snapshot_isolation").Scan(&on); err != nil || !on {
				t.Errorf("the session's setting is %v after Guard (%v)", on, err)
			}
		}
		commit(t, tx)
		counts(t, db, table, 1)
	})
}

// TestGuardAndSavepoints proves that a transaction whose guard a savepoint may
// have taken away can't be committed on a guarded pool, unless it is guarded again.
func TestGuardAndSavepoints(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		m := newManager(t, pool)
		for name, c := range map[string]struct {
			before bool // guarded before the savepoint
			undo   string
			again  bool
			doomed bool
		}{
			"in the savepoint":                {false, "ROLLBACK TO SAVEPOINT s", false, true},
			"in the savepoint, guarded again": {false, "ROLLBACK TO SAVEPOINT s", true, false},
			"before it":                       {true, "ROLLBACK TO SAVEPOINT s", false, false},
			"before it, guarded again":        {true, "ROLLBACK TO SAVEPOINT s", true, false},
			"released":                        {false, "RELEASE SAVEPOINT s", false, false},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				table := counter(t, db)
				l := acquire(t, m, named())
				defer release(t, l)
				tx := begin(t, pool, sql.LevelDefault)
				add(t, tx, table)
				if c.before {
					guard(t, l, tx)
				}
				run(t, tx, "SAVEPOINT s")
				if !c.before {
					guard(t, l, tx)
				}
				run(t, tx, c.undo)
				if c.again {
					guard(t, l, tx)
				}
				err := tx.Commit()
				want := int64(1)
				if c.doomed {
					want = 0
					wants(t, "Commit", err, txlock.ErrTxDoomed)
					if txlock.Retryable(err) {
						t.Errorf("retryable, although it would end so again: %v", err)
					}
				} else if err != nil {
					t.Errorf("Commit: %v", err)
				}
				counts(t, db, table, want)
				wantsNone(t, "the lease", l.Err())
			})
		}
	})
}

// poolKind reports whether a pool is guarded.
func poolKind(pool *sql.DB) (guarded bool) {
	conn, err := pool.Conn(context.Background())
	if err != nil {
		return false
	}
	err = conn.Raw(func(c any) error {
		_, guarded = c.(interface{ OpenRows() int })
		return nil
	})
	return errors.Join(err, conn.Close()) == nil && guarded
}

// TestGuardOfNothing proves that only an open transaction can be guarded or take a
// lease, and be guarded only under one that is held.
func TestGuardOfNothing(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool)
		l := acquire(t, m, named())
		wants(t, "Guard of nil", l.Guard(t.Context(), nil), txlock.ErrNoTransaction)
		over := begin(t, pool, sql.LevelDefault)
		commit(t, over)
		wants(t, "Guard of a transaction that is over", l.Guard(t.Context(), over), txlock.ErrNoTransaction)
		wants(t, "AcquireTx in a transaction that is over", second(m.AcquireTx(t.Context(), over, named())), txlock.ErrNoTransaction)
		wants(t, "AcquireTx in nil", second(m.AcquireTx(t.Context(), nil, named())), txlock.ErrNoTransaction)
		readOnly, err := pool.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
		must(t, err)
		wants(t, "Guard of a read-only transaction", l.Guard(t.Context(), readOnly), txlock.ErrReadOnly)
		rollback(t, readOnly)
		wantsNone(t, "the lease", l.Err())
		release(t, l)
		tx := begin(t, pool, sql.LevelDefault)
		wants(t, "Guard after the release", l.Guard(t.Context(), tx), txlock.ErrNotHeld)
		commit(t, tx)
	})
}
