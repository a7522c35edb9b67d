package job

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/procname"
	"github.com/dca00107/lockstep/internal/retry"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// A Func does the work of a tick. Its context ends when the lease is lost, with txlock.ErrLost as
// its cause, and when the manager of leases is closed, with lease.ErrClosed. The scheduled time is
// in the zone of the Cron line, or in UTC, in every process; with Tick it is as the caller gave it.
type Func func(ctx context.Context, at time.Time) error

// A TxFunc does the work of a tick in the transaction that marks it.
type TxFunc func(ctx context.Context, tx *sql.Tx, at time.Time) error

// mostEarly is for how long Tick waits until an instant has come. Clocks differ.
const mostEarly = time.Minute

// The pauses of a process that waits for another one's tick.
const (
	leastTick = 20 * time.Millisecond
	mostTick  = 250 * time.Millisecond
)

// Tick calls fn for a scheduled time, unless the tick is done already, and reports whether it
// called fn. While another process runs a tick of the key, Tick waits. If that process fails or
// crashes, Tick calls fn itself: any process may retry a tick that has failed, until a later one
// is started. If fn returns an error after its context has ended, it was interrupted, which is not
// a failure. So fn is called at least once, and by one process at a time: the context of a process
// that has lost the lease ends, and fn must stop. Tick returns only after the mark of a tick that
// is done is on disk.
//
// The time is in microseconds. Tick waits for one that is ahead of the server's clock by at most a
// minute. It acquires the lease of the key, so leases.Do of the same key excludes it.
//
// It returns the error of fn, with txlock.ErrLost if the lease was lost and another process has
// started the tick; ErrPast if a later tick was started; ErrEarly, ErrClosed,
// txlock.ErrInvalidKey, txlock.ErrInvalidOption for a time before 1970 or after the year 9999,
// txlock.ErrSchema, txlock.ErrReadOnly, and the errors of the driver and of the context. If
// marking a tick that is done fails, the error reports that, and another process runs the tick
// again.
func (j *Jobs) Tick(ctx context.Context, key txlock.Key, at time.Time, fn Func) (ran bool, err error) {
	if fn == nil {
		return false, errors.New("job: Tick needs a function, got nil")
	}
	return j.tick(ctx, key, at, j.plainly(fn))
}

// TickTx is Tick with a transaction: fn writes in it, and TickTx marks the tick in it and commits.
// So what fn writes is committed exactly once, even if the process crashes or the lease or the
// connection is lost. TickTx retries a transaction that the server has rolled back
// (txlock.Retryable), as locksqlc.Run does, so fn may be called several times. It must not commit
// or roll back itself: TickTx returns an error then, and as the tick isn't marked, it is retried.
func (j *Jobs) TickTx(ctx context.Context, key txlock.Key, at time.Time, fn TxFunc) (ran bool, err error) {
	if fn == nil {
		return false, errors.New("job: TickTx needs a function, got nil")
	}
	return j.tick(ctx, key, at, j.inTransaction(fn))
}

// Tick is Jobs.Tick for a single call: it creates a manager of leases, and closes it.
func Tick(ctx context.Context, db *sql.DB, key txlock.Key, at time.Time, fn Func, opts ...lease.ManagerOption) (ran bool, err error) {
	err = single(ctx, db, opts, func(j *Jobs) (err error) {
		ran, err = j.Tick(ctx, key, at, fn)
		return err
	})
	return ran, err
}

// TickTx is Jobs.TickTx for a single call: it creates a manager of leases, and closes it.
func TickTx(ctx context.Context, db *sql.DB, key txlock.Key, at time.Time, fn TxFunc, opts ...lease.ManagerOption) (ran bool, err error) {
	err = single(ctx, db, opts, func(j *Jobs) (err error) {
		ran, err = j.TickTx(ctx, key, at, fn)
		return err
	})
	return ran, err
}

// single calls f with jobs of its own.
func single(ctx context.Context, db *sql.DB, opts []lease.ManagerOption, f func(j *Jobs) error) (err error) {
	if ctx == nil {
		return errors.New("job: the call needs a context, got nil")
	}
	leases, err := lease.NewManager(db, append([]lease.ManagerOption{lease.PurgeEvery(0, time.Hour)}, opts...)...)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTime)
		defer cancel()
		err = fault.Join(err, leases.Close(ctx))
	}()
	j, err := New(db, leases)
	if err != nil {
		return err
	}
	return f(j)
}

// work does the work of a tick that was begun, and marks its end.
type work func(ctx context.Context, c *Claim) error

// tick waits until the tick was done, or can be begun, and does it.
func (j *Jobs) tick(ctx context.Context, key txlock.Key, at time.Time, do work) (ran bool, err error) {
	if ctx == nil {
		return false, errors.New("job: the call needs a context, got nil")
	}
	leave, err := j.enter()
	if err != nil {
		return false, err
	}
	defer leave()
	at = at.Truncate(time.Microsecond)
	if err := j.check(ctx, key, at); err != nil {
		return false, err
	}
	for pause := leastTick; ; pause = min(2*pause, mostTick) {
		c, wait, err := j.tryTick(ctx, key, at)
		if c != nil {
			return true, do(ctx, c)
		}
		if errors.Is(err, ErrDone) {
			if err = j.ledger.seal(ctx, key.String()); err == nil {
				return false, nil
			}
		}
		switch {
		case errors.Is(err, txlock.ErrBusy), txlock.Retryable(err):
			wait = jittered(pause)
		case err != nil:
			return false, err
		}
		if err := j.pause(ctx, wait); err != nil {
			return false, err
		}
	}
}

// tryTick begins a tick, or returns for how long to wait until its instant has come.
func (j *Jobs) tryTick(ctx context.Context, key txlock.Key, at time.Time) (*Claim, time.Duration, error) {
	r, now, err := j.ledger.look(ctx, key.String())
	if err != nil {
		return nil, 0, err
	}
	if err := refused(key, r, at); err != nil {
		return nil, 0, err
	}
	switch ahead := at.Sub(now); {
	case ahead > mostEarly:
		return nil, 0, early(key, at, now)
	case ahead > 0:
		return nil, ahead, nil
	case r.runs() && now.Sub(time.UnixMicro(r.StartedUs)).Abs() < fresh:
		return nil, 0, txlock.ErrBusy // its lease says so, too
	}
	c, err := j.begin(ctx, key, at, coming{}, r, false)
	return c, 0, err
}

// jittered is a random time from a half of d to d.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// errUnreturned marks a tick whose function didn't return: it has panicked.
var errUnreturned = errors.New("the function has panicked, or has ended its goroutine")

// plainly is the work of Tick.
func (j *Jobs) plainly(fn Func) work {
	return j.under(func(ctx context.Context, c *Claim) error { return fn(ctx, c.tick.at) })
}

// under calls fn under the lease of a claim, and then Finish, also if fn panics.
func (j *Jobs) under(fn work) work {
	return func(ctx context.Context, c *Claim) (err error) {
		open, stop := j.untilAbandoned(ctx)
		defer stop()
		held, cancel := c.lease.Context(open)
		working, left, err := lease.Internal(bridge.Pass{}).Works(held, c.lease)
		if err != nil {
			c.interrupted = true
			return fault.Join(err, c.Finish(ctx, err))
		}
		defer left()
		why := errUnreturned
		defer func() {
			lost := c.lease.Err()
			c.interrupted = c.interrupted || why != nil && working.Err() != nil
			cancel()
			err = c.Finish(ctx, why)
			if why != nil && !c.committed {
				err = fault.Join(why, lost, err)
			}
		}()
		here := function{procname.Goroutine(), c.key.String()}
		j.functions.Store(here, c)
		defer j.functions.Delete(here)
		why = fn(context.WithValue(working, c, true), c) // see calledWithin
		return why
	}
}

var inner = txlock.Internal(bridge.Pass{})

// inTransaction is the work of TickTx. The transaction marks the tick; where its COMMIT was
// not answered, Finish finds out.
func (j *Jobs) inTransaction(fn TxFunc) work {
	return j.under(func(ctx context.Context, c *Claim) error {
		var last *txlock.Scope
		err := retry.Do(ctx, func() error { return j.transact(ctx, c, fn, &last) }, func(why error) {
			inner.Retried(ctx, last, []txlock.Key{c.key}, why)
		})
		inner.AfterCommit(last)
		// A transaction whose connection was lost has not failed by itself. The next one of
		// the tick waits for its row, if a COMMIT is still under way, and finds what has become
		// of it.
		c.interrupted = fault.LostConnection(err) || errors.Is(err, errUnanswered) || errors.Is(err, txlock.ErrUnknownOutcome) || fault.SessionEnded(err)
		return err
	})
}

// begun begins a transaction, unless the server doesn't answer. It lives until the context or end ends it.
func begun(ctx context.Context, conn *sql.Conn) (tx *sql.Tx, end context.CancelFunc, err error) {
	life, end := context.WithCancel(ctx)
	err = within(ctx, func(limited context.Context) error {
		answered := context.AfterFunc(limited, end)
		if tx, err = conn.BeginTx(life, nil); !answered() && err == nil {
			err = errors.Join(limited.Err(), tx.Rollback())
		}
		return err
	})
	return tx, end, err
}

// transact runs one transaction of a tick, whose scope it hands out. The mark comes last, as
// the lease can't be renewed while the transaction guards it.
func (j *Jobs) transact(ctx context.Context, c *Claim, fn TxFunc, last **txlock.Scope) (err error) {
	var conn *sql.Conn
	err = within(ctx, func(ctx context.Context) error {
		conn, err = j.db.Conn(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("job %q: get a connection: %w", c.key, err)
	}
	defer func() { err = fault.Join(err, fault.UnlessGone(conn.Close())) }()
	tx, end, err := begun(ctx, conn)
	defer end()
	if err != nil {
		return fmt.Errorf("job %q: begin: %w", c.key, err)
	}
	finished := false
	defer func() {
		if finished {
			return
		}
		if rollback := fault.UnlessGone(tx.Rollback()); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
			err = fault.Join(err, fmt.Errorf("job %q: roll back: %w", c.key, rollback))
		}
	}()
	scope, err := txlock.Join(ctx, tx, txlock.NothingRead())
	if err != nil {
		return err
	}
	*last = scope
	defer inner.Runs(scope)()
	if err := fn(ctx, tx, c.tick.at); err != nil {
		return inner.Final(ctx, scope, err)
	}
	if err := c.lease.Guard(ctx, tx); err != nil {
		return inner.Final(ctx, scope, err)
	}
	marked, err := doneIn(ctx, tx, c.tick, c.run(jobrow.Done, ""))
	if err != nil {
		return inner.Final(ctx, scope, err)
	}
	if !marked {
		return fmt.Errorf("job %q, token %d: %w: another process has started it", c.key, c.tick.token, txlock.ErrLost)
	}
	if _, err := inner.Confirm(ctx, scope); err != nil {
		return err
	}
	finished = true
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("job %q: commit: %w", c.key, inner.Outcome(ctx, scope, err))
	}
	c.committed = true
	return nil
}
