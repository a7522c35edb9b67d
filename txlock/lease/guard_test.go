package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
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
	db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0), (2, 0)")
	return table
}

// counts checks what was committed.
func counts(t testing.TB, db *testdb.DB, table string, want int64) {
	t.Helper()
	testdb.Equal(t, "the counter", db.Number(t, "SELECT n FROM "+table+" WHERE id = 1"), want)
}

// begin begins a transaction that is rolled back at the end of the test, if it is
// open then.
func begin(t testing.TB, pool *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	return testdb.Begin(t, pool, &sql.TxOptions{Isolation: level})
}

// run executes a statement in a transaction.
func run(t testing.TB, tx *sql.Tx, query string) {
	t.Helper()
	testdb.Exec(t, tx, query)
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
						wants(t, "Guard", err, nil)
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
				wants(t, "the lease", l.Err(), nil)
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
					counted := db.Number(t, "SELECT SUM(n) FROM "+f.table)
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
		f.db.Exec(t, "INSERT INTO "+f.table+" VALUES (?, 0)", id)
		f.counters[id].id, f.counters[id].key = id, named()
	}
	var group sync.WaitGroup
	for range 5 {
		m := newManager(t, f.pool)
		group.Go(func() {
			for f.rounds.Load() < rounds && !t.Failed() {
				wants(t, "round", f.round(t.Context(), m, &f.counters[rand.IntN(len(f.counters))]), nil)
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
		return testdb.Err(tx.ExecContext(ctx, "UPDATE "+f.table+" SET n = ? WHERE id = ?", n+1, c.id))
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

// TestGuardRenewsFirst proves that Guard extends a lease of which less than two thirds are
// left, since nothing can while the transaction is open, and says nothing of what becomes
// of that.
func TestGuardRenewsFirst(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		wire.fault("RenewMany", fails)
		l := acquire(t, m, job)
		guard := func() {
			tx := wire.guarding(t, l)
			must(t, tx.Commit())
		}
		// Never in the moment of a renewal that fails, each second from 10 s and from 22.5 s.
		const first, second = 12500 * time.Millisecond, 25200 * time.Millisecond
		for _, in := range []time.Duration{5 * time.Second, first, 20 * time.Second, second} {
			db.after(in)
			if in == second {
				wire.fault("Renew", hangs) // for half of what is left at most
			}
			guard()
		}
		sent := wire.times("Renew")
		testdb.ErrorIf(t, !slices.Equal(sent, []time.Duration{first, second}), "Renew was sent at %v, want %v and %v", sent, first, second)
		took := time.Since(db.begun) - second
		testdb.ErrorIf(t, took < 5*time.Second || took > 15*time.Second, "Guard took %v", took)
		release(t, l)
	})
}

// TestGuardOfALostLease proves that nothing is committed under a lease that is lost, known
// or not.
func TestGuardOfALostLease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		operator := db.manager()
		l := acquire(t, m, job)
		must(t, operator.ForceRelease(t.Context(), job))
		must(t, l.Err()) // nobody has told it
		tx := wire.Begin()
		wants(t, "Guard", l.Guard(t.Context(), tx), txlock.ErrLost)
		wants(t, "Err", l.Err(), txlock.ErrLost, lease.ErrReplaced)
		must(t, tx.Rollback())

		l = acquire(t, m, job)
		release(t, l)
		tx = wire.Begin()
		wants(t, "Guard after Release", l.Guard(t.Context(), tx), txlock.ErrNotHeld)
		must(t, tx.Rollback())

		tx = wire.Begin()
		tx.Read()
		l = acquire(t, m, job)
		wants(t, "Guard with an old snapshot", l.Guard(t.Context(), tx), txlock.ErrStaleSnapshot)
		must(t, tx.Rollback())
		must(t, l.Err())
		release(t, l)
	})
}

// TestGuardedLeaseIsRenewed proves that a lease is renewed which transactions guard one
// after the other, and lost where one of them is open for too long.
func TestGuardedLeaseIsRenewed(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process(lease.TTL(3 * time.Second))
		l := acquire(t, m, job)
		for range 10 {
			tx := wire.guarding(t, l)
			next := wire.Begin()
			guarded := later(func() error { return l.Guard(t.Context(), next) }) // without a gap
			time.Sleep(1700 * time.Millisecond)
			must(t, tx.Commit())
			must(t, <-guarded)
			must(t, next.Commit())
		}
		must(t, l.Err())
		tx := wire.guarding(t, l)
		<-l.Done()
		wants(t, "Err", l.Err(), txlock.ErrLost)
		must(t, tx.Commit()) // nobody else has wanted it
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
	})
}

// TestBlockerIsEnded proves that a transaction which guards a lease that is over is rolled
// back when the grace is over too, where somebody wants it in any way, and not before.
func TestBlockerIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		take    func(wire *wire) verb
		options []lease.AcquireOption
		grace   time.Duration
	}{
		"Acquire":        {func(*wire) verb { return exclusive }, nil, 5 * time.Second},
		"Acquire fairly": {func(*wire) verb { return fairly }, nil, 5 * time.Second},
		"a longer grace": {func(*wire) verb { return exclusive }, []lease.AcquireOption{lease.GuardGrace(time.Minute)}, time.Minute},
		"TryAcquire":     {func(*wire) verb { return tryExclusive.untilFree }, nil, 5 * time.Second},
		"AcquireTx":      {func(w *wire) verb { return w.commits().untilFree }, nil, 5 * time.Second},
	} {
		runInMemory(t, name, func(t *testing.T, db *memory) {
			a, wire := db.process(lease.TTL(3 * time.Second))
			l := acquire(t, a, job)
			tx := wire.guarding(t, l)
			wire.Down(nil)
			b, other := db.process()
			db.after(3*time.Second + time.Millisecond)
			_, err := b.TryAcquire(t.Context(), job)
			wants(t, "TryAcquire", err, txlock.ErrBusy)
			testdb.ErrorIf(t, heldBy(err) == nil || heldBy(err).Session == 0, "%v names no session", err)
			next := testdb.Got(c.take(other)(limited(t, 5*time.Minute), b, job, c.options...))(t)
			db.within("granted", 3*time.Second+c.grace, 4*time.Second+c.grace)
			wire.Up()
			wants(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
			wants(t, "Err", l.Err(), txlock.ErrLost)
			release(t, next)
		})
	}
}

// TestForceReleaseEnds proves that ForceRelease waits for 5 seconds for a transaction that
// guards the lease, before it is rolled back, and no longer than it needs to.
func TestForceReleaseEnds(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process(lease.TTL(time.Hour))
		operator := db.manager()
		wants(t, "nobody holds it", operator.ForceRelease(t.Context(), job), txlock.ErrNotHeld)
		l := acquire(t, m, job)
		tx := wire.guarding(t, l)
		time.AfterFunc(2*time.Second, func() { must(t, tx.Commit()) })
		must(t, operator.ForceRelease(t.Context(), job))
		db.at("after the commit", 2*time.Second)
		_ = l.Release(t.Context()) // ErrNotHeld

		l = acquire(t, m, job)
		tx = wire.guarding(t, l)
		must(t, operator.ForceRelease(t.Context(), job))
		db.within("after the grace", 7*time.Second, 7*time.Second+100*time.Millisecond)
		wants(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
		wants(t, "Renew", l.Renew(t.Context()), lease.ErrReplaced)

		l = acquire(t, m, job) // guarded for less than the grace by each, and for more by all of them
		var guards sync.WaitGroup
		commits := func(tx *memstore.Tx) {
			time.Sleep(2 * time.Second)
			wants(t, "Commit", tx.Commit(), nil)
		}
		tx = wire.guarding(t, l)
		guards.Go(func() { commits(tx) })
		for range 3 {
			next := wire.Begin()
			guards.Go(func() {
				wants(t, "Guard", l.Guard(t.Context(), next, txlock.NothingRead()), nil)
				commits(next)
			})
			synctest.Wait()
		}
		must(t, operator.ForceRelease(t.Context(), job))
		guards.Wait()
		wants(t, "a slot below 0", operator.ForceRelease(t.Context(), job, -1), txlock.ErrInvalidOption)
	})
}

// TestForceReleaseWakes proves that waiters are told of a ForceRelease in their manager,
// that the next token is higher, and that readers are released with the writers.
func TestForceReleaseWakes(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		held := acquire(t, a, job)
		waiter := fairAcquire(t, b, job)
		synctest.Wait()
		must(t, b.ForceRelease(t.Context(), job))
		next := waiter.lease(t)
		higher(t, next, held)
		db.at("granted", 0)
		release(t, next)

		for range 3 {
			share(t, a, job)
		}
		must(t, b.ForceRelease(t.Context(), job))
		nothingHeld(t, a)
	})
}

// TestAcquireTxCommits proves that a lease that is acquired in a transaction is there with
// its commit, is renewed afterwards, and is nobody else's meanwhile; that its owner has one hold however
// often it acquires it; and that one whose snapshot is from before a reader can't have it.
func TestAcquireTxCommits(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		other := db.manager()
		release(t, acquire(t, other, job))
		tx, me := wire.Begin(), lease.WithOwner(t.Context(), "me")
		l := got(m.AcquireTx(me, tx, job))(t)
		again := got(m.AcquireTx(me, tx, job))(t)
		entered(t, again, l)
		wants(t, "TryAcquire", testdb.Err(other.TryAcquire(t.Context(), job)), txlock.ErrBusy)
		nothingHeld(t, other)
		late := got(m.AcquireTx(lease.WithOwner(t.Context(), "other"), wire.Begin(), txlock.Named("other")))(t)
		db.after(15 * time.Second) // a renewal finds it locked
		must(t, tx.Commit())
		time.Sleep(time.Minute)
		release(t, again)
		must(t, l.Err())
		testdb.Equal(t, "holders", inspect(t, m, job).Holders, 1)
		wants(t, "one that is not committed in time", late.Err(), txlock.ErrLost)
		wants(t, "AcquireTx of what is held", testdb.Err(m.AcquireTx(t.Context(), wire.Begin(), job)), txlock.ErrBusy)
		release(t, l)

		read, old := txlock.Named("read"), wire.Begin()
		release(t, share(t, other, read))
		old.Read()
		release(t, share(t, other, read))
		wants(t, "AcquireTx by an old snapshot", testdb.Err(m.AcquireTx(t.Context(), old, read)), txlock.ErrStaleSnapshot)
	})
}

// TestAcquireTxRollsBack proves that a lease whose transaction was rolled back is found
// lost by its first renewal, and is not re-entered before.
func TestAcquireTxRollsBack(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		ctx := lease.WithOwner(t.Context(), "me")
		tx := wire.Begin()
		l := got(m.AcquireTx(ctx, tx, job))(t)
		must(t, tx.Rollback())
		must(t, l.Err())
		<-l.Done()
		db.within("found", 10*time.Second, 10*time.Second+100*time.Millisecond)
		wants(t, "Err", l.Err(), txlock.ErrLost, lease.ErrReplaced)

		tx = wire.Begin()
		l = got(m.AcquireTx(ctx, tx, job))(t)
		must(t, tx.Rollback())
		time.Sleep(time.Millisecond)       // a token is the time of its grant
		again := acquireIn(ctx, t, m, job) // the same owner
		higher(t, again, l)
		wants(t, "the handle of before", l.Err(), txlock.ErrLost, lease.ErrReplaced)
		must(t, again.Renew(ctx))
		release(t, again)
	})
}

// TestOneCleanup proves that idle rows are removed once per interval among all managers,
// and those that are used are not.
func TestOneCleanup(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		every := lease.PurgeEvery(time.Minute, time.Hour)
		var wires []*wire
		var held []*lease.Lease
		for n := range 3 {
			m, wire := db.process(every)
			wires = append(wires, wire)
			release(t, acquire(t, m, txlock.Named("idle "+string(rune('a'+n)))))
			held = append(held, acquire(t, m, txlock.Named("used "+string(rune('a'+n))))) // its manager cleans up from now on
			time.Sleep(time.Second)
		}
		db.after(61 * time.Minute)
		cleaned := 0
		for _, wire := range wires {
			cleaned += len(wire.calls("Clean"))
		}
		testdb.ErrorIf(t, cleaned < 59 || cleaned > 61, "cleaned %d times in an hour", cleaned)
		synctest.Wait()
		for key, exists := range map[string]bool{"idle a": false, "used a": true} {
			seen := testdb.Got(wires[0].Look(t.Context(), store.Row{Key: key}))(t)
			testdb.ErrorIf(t, seen.Exists != exists, "%s: %+v", key, seen)
		}
		runtime.KeepAlive(held)
	})
}

// TestCleanupEndsBeforeItsLease proves that a cleanup which is too slow for its lease ends with it,
// so that the next is not beside it, which the observer is told.
func TestCleanupEndsBeforeItsLease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		told := new(answers)
		m, wire := db.process(lease.PurgeEvery(time.Minute, time.Hour), lease.Observe(told.observe))
		release(t, acquire(t, m, job))
		wire.fault("Clean", hangs)
		db.after(time.Minute + 54*time.Second)
		synctest.Wait()
		testdb.ErrorIf(t, told.refused.Key.String() != "lockstep:cleanup" || !errors.Is(told.refused.Err, context.DeadlineExceeded), "told of %+v", told.refused)
		db.after(3 * time.Minute)
		wire.seconds(t, "Clean", 60, 174)
	})
}
