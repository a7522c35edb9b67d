package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
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
	_, err := tx.ExecContext(context.Background(), query)
	testdb.FatalIf(t, err != nil, "%s: %v", query, err)
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
	took := time.Since(start)
	testdb.ErrorIf(t, took > 3*time.Second+delays(), "%s took %v", what, took)
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
func free(t testing.TB, m *lease.Manager, key txlock.Key) {
	t.Helper()
	l := acquire(t, m, key, lease.WaitAtMost(soon))
	if err := l.Release(context.Background()); err != nil && !errors.Is(err, lease.ErrGuarded) { // by a manager that looks whether it is still its own
		t.Errorf("Release: %v", err)
	}
}

// TestGuardSnapshot proves that a transaction whose snapshot is older than the lease can't be guarded, and
// that one whose reads are newer can, also after renewals and other guarded transactions, and where MariaDB
// refuses to lock rows that have changed since; and that the session keeps that setting.
func TestGuardSnapshot(t *testing.T) {
	onKinds(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		strict := db.HasSnapshotIsolation(t)
		pool := newPool(t, db, guarded, func(c *mysql.Config) {
			if strict {
				c.Params = map[string]string{"innodb_snapshot_isolation": "ON"}
			}
		})
		m, table := newManager(t, pool), counter(t, db)
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelReadCommitted} {
			for history, leased := range histories {
				t.Run(level.String()+"/"+history, func(t *testing.T) {
					key := keyOf(t, m, leased)
					tx := begin(t, pool, level)
					reads(t, tx, table)
					l := acquire(t, m, key)
					defer release(t, l)
					if err := l.Guard(t.Context(), tx); level == sql.LevelReadCommitted {
						wantsNone(t, "Guard", err)
					} else if wants(t, "Guard after an old read", err, txlock.ErrStaleSnapshot); !txlock.Retryable(err) {
						t.Errorf("not retryable: %v", err)
					}
					rollback(t, tx)
					must(t, l.Err())

					tx = begin(t, pool, level)
					reads(t, tx, table)
					must(t, l.Renew(t.Context()))
					other := begin(t, pool, level)
					guard(t, l, other)
					commit(t, other)
					guard(t, l, tx)
					guard(t, l, tx)
					if on := true; strict {
						err := tx.QueryRowContext(t.Context(), "SELECT @@innodb_snapshot_isolation").Scan(&on)
						testdb.ErrorIf(t, err != nil || !on, "the session's setting is %v after Guard (%v)", on, err)
					}
					commit(t, tx)
				})
			}
		}
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
					testdb.ErrorIf(t, txlock.Retryable(err), "retryable, although it would end so again: %v", err)
				} else if err != nil {
					t.Errorf("Commit: %v", err)
				}
				counts(t, db, table, want)
				wantsNone(t, "the lease", l.Err())
			})
		}
	})
}

// TestLostUpdates has holders stop at random for longer than their TTL,
// between reading a counter and writing it, without knowing: the row expires while
// they stand still, and others take over. No update is lost of those that guard,
// first or last in the transaction; without the guard some are, so the test can tell.
// Any two of the kind of pool, the isolation level and the guard's place meet; all three,
// and 10,000 rounds for each server, with LOCKSTEP_LONG=1.
func TestLostUpdates(t *testing.T) {
	rounds := testdb.Long[int64](100, 1250) // in each of 8 cases
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		guarded := strings.HasSuffix(t.Name(), "/guarded")
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelReadCommitted} {
			for _, where := range []string{"first", "last", "nowhere"} {
				repeatable, first := level == sql.LevelRepeatableRead, where == "first"
				if skip := (guarded == repeatable) != first; where != "nowhere" && testdb.Long(skip, false) {
					continue
				}
				if where == "nowhere" && guarded != repeatable {
					continue // the kind of pool is no matter then
				}
				t.Run(level.String()+"/guarded "+where, func(t *testing.T) {
					t.Parallel()
					pool := pool
					if where == "nowhere" {
						pool = newPool(t, db, false, db.Overwriting(t))
					}
					f := fuzz{db: db, pool: pool, level: level, where: where}
					commits := f.run(t, rounds)
					counted := number(t, db, "SELECT SUM(n) FROM "+f.table)
					t.Logf("%d rounds, %d pauses, %d commits, %d refused as lost and %d as stale, the counters show %d",
						f.rounds.Load(), f.pauses.Load(), commits, f.lost.Load(), f.stale.Load(), counted)
					testdb.ErrorIf(t, f.pauses.Load() < rounds/10 || commits < rounds/3, "too few of them: this test can't tell")
					if where == "nowhere" {
						testdb.ErrorIf(t, counted == commits, "no update was lost without the guard: this test can't tell")
						return
					}
					testdb.ErrorIf(t, counted != commits, "%d updates were lost under the guard", commits-counted)
					testdb.ErrorIf(t, f.lost.Load() == 0, "no holder was refused: this test can't tell")
				})
			}
		}
	})
}

// fuzz is one case of TestLostUpdates.
type fuzz struct {
	db       *testdb.DB
	pool     *sql.DB
	level    sql.IsolationLevel
	where    string // the guard's place
	table    string
	counters [3]fuzzCounter

	rounds, pauses, lost, stale atomic.Int64
}

// fuzzCounter is a row and the lease that protects it.
type fuzzCounter struct {
	id      int
	key     txlock.Key
	commits atomic.Int64
}

// run has workers raise counters, each by a manager of its own, as processes have, and returns how many commits there were.
func (f *fuzz) run(t *testing.T, rounds int64) (commits int64) {
	t.Helper()
	f.table = f.db.CreateTable(t, "fuzz", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL")
	for id := range f.counters {
		exec(t, f.db, "INSERT INTO "+f.table+" VALUES (?, 0)", id)
		f.counters[id].id, f.counters[id].key = id, named()
	}
	var group sync.WaitGroup
	for range 5 {
		m := newManager(t, f.pool)
		group.Go(func() {
			for f.rounds.Load() < rounds && !t.Failed() {
				wantsNone(t, "round", f.round(t.Context(), m, &f.counters[rand.IntN(len(f.counters))]))
			}
		})
	}
	group.Wait()
	for i := range f.counters {
		commits += f.counters[i].commits.Load()
	}
	return commits
}

// round raises one counter by read, add one, write, if its lease is free.
func (f *fuzz) round(ctx context.Context, m *lease.Manager, c *fuzzCounter) (err error) {
	var tx *sql.Tx
	var l *lease.Lease
	var n int64
	begins := func() (err error) {
		tx, err = f.pool.BeginTx(ctx, &sql.TxOptions{Isolation: f.level})
		return err
	}
	reads := func() error { return tx.QueryRowContext(ctx, "SELECT n FROM "+f.table+" WHERE id = ?", c.id).Scan(&n) }
	takes := func() (err error) {
		if l, err = m.TryAcquire(ctx, c.key); err == nil {
			f.rounds.Add(1)
		}
		return err
	}
	stops := func() error { return f.pause(ctx, l, c) }
	guards := func() error { return l.Guard(ctx, tx) }
	guardsLong := func() error { // its time ends meanwhile in some
		if rand.IntN(6) > 0 {
			return guards()
		}
		f.pauses.Add(1)
		defer time.Sleep(8 * time.Millisecond)
		return errors.Join(f.expire(ctx, l, 5*time.Millisecond), guards())
	}
	writes := func() error {
		return second(tx.ExecContext(ctx, "UPDATE "+f.table+" SET n = ? WHERE id = ?", n+1, c.id))
	}
	steps := map[string][]func() error{
		"first":   {takes, begins, stops, guardsLong, reads, writes},
		"last":    {takes, begins, reads, stops, writes, guards},
		"nowhere": {takes, begins, reads, stops, writes},
	}[f.where]
	if f.where == "last" && f.level == sql.LevelRepeatableRead && rand.IntN(10) == 0 { // which the guard must find out
		steps = []func() error{begins, reads, dozes, takes, stops, writes, guards}
	}
	for _, step := range steps {
		if err = step(); err != nil {
			break
		}
	}
	if err == nil {
		err = tx.Commit()
	}
	if err == nil {
		c.commits.Add(1)
	}
	return errors.Join(f.refused(err), f.end(ctx, tx, l))
}

// dozes lets others come between.
func dozes() error {
	time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	return nil
}

// end ends a round: the transaction first, which may have the lease's row locked.
func (f *fuzz) end(ctx context.Context, tx *sql.Tx, l *lease.Lease) (err error) {
	if tx != nil {
		if err = tx.Rollback(); errors.Is(err, sql.ErrTxDone) {
			err = nil
		}
	}
	if l != nil {
		end := l.Release(ctx)
		if !errors.Is(end, txlock.ErrNotHeld) && !errors.Is(end, lease.ErrGuarded) { // lost, or locked by one that is refused
			err = errors.Join(err, end)
		}
	}
	return err
}

// expire ends the time of a lease behind its holder's back.
func (f *fuzz) expire(ctx context.Context, l *lease.Lease, in time.Duration) error {
	_, err := f.db.Admin().ExecContext(ctx, "UPDATE lockstep_leases SET expires_us = CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED) + ? WHERE name = ? AND slot = 0 AND token = ?",
		in.Microseconds(), l.Key().String(), l.Token())
	return err
}

// pause stops one in three holders until its time is over and, in most cases, a successor has committed.
func (f *fuzz) pause(ctx context.Context, l *lease.Lease, c *fuzzCounter) error {
	if rand.IntN(3) > 0 {
		return nil
	}
	f.pauses.Add(1)
	before := c.commits.Load()
	if err := f.expire(ctx, l, 0); err != nil {
		return err
	}
	limit := time.Duration(rand.IntN(100)) * time.Millisecond
	for end := time.Now().Add(limit); c.commits.Load() == before && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	return nil
}

// refused counts what the guard has prevented. Any other error is one of the test.
func (f *fuzz) refused(err error) error {
	switch {
	case err == nil:
	case errors.Is(err, txlock.ErrBusy):
		time.Sleep(time.Millisecond)
	case errors.Is(err, txlock.ErrLost):
		f.lost.Add(1)
	case errors.Is(err, txlock.ErrStaleSnapshot):
		f.stale.Add(1)
	case txlock.Retryable(err):
	default:
		return fmt.Errorf("neither lost nor to be started again: %w", err)
	}
	return nil
}
