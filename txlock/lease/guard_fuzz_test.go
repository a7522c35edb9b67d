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

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

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
					f := newFuzz(t, db, pool, level, where)
					f.run(t, rounds)
					counted := number(t, db, "SELECT SUM(n) FROM "+f.table)
					commits := f.commits()
					t.Logf("%d rounds, %d pauses, %d commits, %d refused as lost and %d as stale, the counters show %d",
						f.rounds.Load(), f.pauses.Load(), commits, f.lost.Load(), f.stale.Load(), counted)
					if f.pauses.Load() < rounds/10 || commits < rounds/3 {
						t.Error("too few of them: this test can't tell")
					}
					if where == "nowhere" {
						if counted == commits {
							t.Error("no update was lost without the guard: this test can't tell")
						}
						return
					}
					if counted != commits {
						t.Errorf("%d updates were lost under the guard", commits-counted)
					}
					if f.lost.Load() == 0 {
						t.Error("no holder was refused: this test can't tell")
					}
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
	counters []*fuzzCounter

	rounds, pauses, lost, stale atomic.Int64
}

// fuzzCounter is a row and the lease that protects it.
type fuzzCounter struct {
	id      int
	key     txlock.Key
	commits atomic.Int64
}

const (
	fuzzCounters = 3
	fuzzWorkers  = 5
)

func newFuzz(t *testing.T, db *testdb.DB, pool *sql.DB, level sql.IsolationLevel, where string) *fuzz {
	t.Helper()
	f := &fuzz{db: db, pool: pool, level: level, where: where}
	f.table = db.CreateTable(t, "fuzz", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL")
	for id := range fuzzCounters {
		exec(t, db, "INSERT INTO "+f.table+" VALUES (?, 0)", id)
		f.counters = append(f.counters, &fuzzCounter{id: id, key: named()})
	}
	return f
}

func (f *fuzz) commits() (n int64) {
	for _, c := range f.counters {
		n += c.commits.Load()
	}
	return n
}

// run runs workers, each with a manager of its own, as processes have.
func (f *fuzz) run(t *testing.T, rounds int64) {
	t.Helper()
	var group sync.WaitGroup
	for range fuzzWorkers {
		m := newManager(t, f.pool)
		group.Go(func() {
			for f.rounds.Load() < rounds && !t.Failed() {
				wantsNone(t, "round", f.round(t.Context(), m, f.counters[rand.IntN(len(f.counters))]))
			}
		})
	}
	group.Wait()
}

// round raises one counter by read, add one, write, if its lease is free.
func (f *fuzz) round(ctx context.Context, m *lease.Manager, c *fuzzCounter) (err error) {
	early := rand.IntN(10) == 0 && f.level == sql.LevelRepeatableRead && f.where == "last"
	var tx *sql.Tx
	var l *lease.Lease
	defer func() { err = errors.Join(err, f.end(ctx, tx, l)) }()
	n := int64(0)
	if early { // reads before it has the lease, which the guard must find out
		if tx, n, err = f.read(ctx, c); err != nil {
			return err
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
	l, err = m.TryAcquire(ctx, c.key)
	if errors.Is(err, txlock.ErrBusy) {
		time.Sleep(time.Millisecond)
		return nil
	}
	if err != nil {
		return err
	}
	f.rounds.Add(1)
	stops := rand.IntN(3) == 0
	if f.where == "first" {
		if tx, err = f.pool.BeginTx(ctx, &sql.TxOptions{Isolation: f.level}); err != nil {
			return err
		}
		within := stops && rand.IntN(2) == 0
		switch {
		case within: // its time ends while the transaction is guarded
			f.pauses.Add(1)
			err = f.expire(ctx, l, 5*time.Millisecond)
		case stops:
			err = f.pause(ctx, l, c)
		}
		if err == nil {
			err = l.Guard(ctx, tx)
		}
		if err != nil {
			return f.refused(err)
		}
		if within {
			time.Sleep(8 * time.Millisecond)
		}
		stops = false
	}
	if !early {
		reading := tx
		if reading == nil {
			tx, n, err = f.read(ctx, c)
		} else {
			n, err = f.readIn(ctx, reading, c)
		}
		if err != nil {
			return err
		}
	}
	if stops {
		if err := f.pause(ctx, l, c); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, "UPDATE "+f.table+" SET n = ? WHERE id = ?", n+1, c.id); err != nil {
		return f.refused(err)
	}
	if f.where == "last" {
		if err := l.Guard(ctx, tx); err != nil {
			return f.refused(err)
		}
	}
	if err := tx.Commit(); err != nil {
		return f.refused(err)
	}
	c.commits.Add(1)
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

// read begins a transaction and reads the counter.
func (f *fuzz) read(ctx context.Context, c *fuzzCounter) (*sql.Tx, int64, error) {
	tx, err := f.pool.BeginTx(ctx, &sql.TxOptions{Isolation: f.level})
	if err != nil {
		return nil, 0, err
	}
	n, err := f.readIn(ctx, tx, c)
	return tx, n, err
}

func (f *fuzz) readIn(ctx context.Context, tx *sql.Tx, c *fuzzCounter) (n int64, err error) {
	err = tx.QueryRowContext(ctx, "SELECT n FROM "+f.table+" WHERE id = ?", c.id).Scan(&n)
	return n, err
}

// expire ends the time of a lease behind its holder's back.
func (f *fuzz) expire(ctx context.Context, l *lease.Lease, in time.Duration) error {
	_, err := f.db.Admin().ExecContext(ctx, "UPDATE lockstep_leases SET expires_us = CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED) + ? WHERE name = ? AND slot = 0 AND token = ?",
		in.Microseconds(), l.Key().String(), l.Token())
	return err
}

// pause stops the holder until its time is over and, in most cases, a successor
// has committed.
func (f *fuzz) pause(ctx context.Context, l *lease.Lease, c *fuzzCounter) error {
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
