package job

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/procname"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// The errors of ticks.
var (
	// ErrDone is returned by Claim for a tick that is done already.
	ErrDone = errors.New("job: tick already done")
	// ErrPast is returned for a tick that can no longer be started, because a later one of
	// the same key was started. Whether it was done is unknown.
	ErrPast = errors.New("job: a later tick was started")
	// ErrEarly is returned for a scheduled time that is ahead of the server's clock: by more
	// than a minute in Tick and TickTx, by any time in Claim.
	ErrEarly = errors.New("job: scheduled time is ahead of the server's clock")
	// ErrPaused is returned for a tick of a job that is paused: see Pause.
	ErrPaused = errors.New("job: paused")
	// ErrClosed is returned by Jobs that were closed.
	ErrClosed = errors.New("job: closed")
)

// Jobs runs ticks on one database. Its methods may be called from any goroutine, and any
// number of processes may share the database.
type Jobs struct {
	db     *sql.DB
	leases *lease.Manager
	ledger ledger
	options
	seldom leaseutil.Seldom

	functions sync.Map // the *Claim of each function that runs, and those of observers

	mu      sync.Mutex
	closing chan struct{} // closed when Close is called
	closed  bool
	active  sync.WaitGroup
	working context.Context // of all functions; ends when Close gives up
	abandon context.CancelFunc
}

// An Option configures New.
type Option func(*options)

type options struct {
	instance string
	observer func(ctx context.Context, e Event)
	log      *slog.Logger
	keep     int
	age      time.Duration
	bad      error
}

// InstanceName sets the name of this process in the table: valid UTF-8 of 1 to 255 bytes. The
// default is the host and the process number.
func InstanceName(name string) Option { return func(o *options) { o.instance = name } }

// KeepRuns sets how many of the last runs of each job the table keeps, from 0 to 50, and how long
// Runs and List return them. They share 8,192 bytes, in which long instance names and errors leave
// room for fewer. The default is 20 runs, and 30 days.
func KeepRuns(n int, age time.Duration) Option {
	return func(o *options) {
		o.keep, o.age = n, age
		if n < 0 || n > jobrow.MaxKept || age <= 0 {
			o.bad = fmt.Errorf("%w: KeepRuns(%d, %v): it must be from 0 to %d runs, and the time positive", txlock.ErrInvalidOption, n, age, jobrow.MaxKept)
		}
	}
}

// New returns jobs on the pool. The manager, which must use the same database, renews their
// leases; its TTL is how soon another process takes over from one that has crashed. New sends
// nothing to the server. Close the jobs before the manager. Closing the manager and the pool
// remains the caller's task.
func New(db *sql.DB, leases *lease.Manager, opts ...Option) (*Jobs, error) {
	if db == nil || leases == nil {
		return nil, errors.New("job: New needs a *sql.DB and a *lease.Manager, got nil")
	}
	return newJobs(db, leases, &sqlLedger{db: db}, opts...)
}

func newJobs(db *sql.DB, leases *lease.Manager, l ledger, opts ...Option) (*Jobs, error) {
	j := &Jobs{db: db, leases: leases, ledger: patient{l}, options: options{instance: procname.Process(":"), keep: 20, age: 30 * 24 * time.Hour}, closing: make(chan struct{})}
	for _, option := range opts {
		option(&j.options)
	}
	if n := len(j.instance); n == 0 || n > maxInstance {
		return nil, fmt.Errorf("%w: InstanceName: a name has 1 to %d bytes, this one has %d", txlock.ErrInvalidOption, maxInstance, n)
	}
	if !utf8.ValidString(j.instance) {
		return nil, fmt.Errorf("%w: InstanceName: a name must be valid UTF-8, this one is %q", txlock.ErrInvalidOption, j.instance)
	}
	if j.bad != nil {
		return nil, j.bad
	}
	j.working, j.abandon = context.WithCancel(context.Background())
	return j, nil
}

const maxInstance = 255

// Close ends every Run and starts no further tick. It waits for running functions until the
// context ends; then it ends their contexts, waits for them to return, and returns the context's
// error. Claims must be finished by the caller. If a function that Close would wait for calls it, on
// its goroutine or with its context, Close returns an error and closes nothing.
func (j *Jobs) Close(ctx context.Context) error {
	if ctx == nil {
		return errors.New("job: Close needs a context, got nil")
	}
	if j.calledWithin(ctx) {
		return errors.New("job: Close was called by the function or the observer of a tick, which it waits for: call it when that has returned")
	}
	j.mu.Lock()
	if !j.closed {
		j.closed = true
		close(j.closing)
	}
	j.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		j.active.Wait()
		close(ended)
	}()
	var err error
	select {
	case <-ended:
	case <-ctx.Done():
		err = fmt.Errorf("job: close: %w", ctx.Err())
	}
	j.abandon()
	<-ended
	return err
}

// calledWithin reports whether the function of a tick has called, by its goroutine or with its
// context, or an observer.
func (j *Jobs) calledWithin(ctx context.Context) (within bool) {
	j.functions.Range(func(at, claim any) bool {
		within = at.(function).goroutine == procname.Goroutine() || ctx.Value(claim) != nil
		return !within
	})
	return within
}

// enter counts a call that Close waits for.
func (j *Jobs) enter() (leave func(), err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, ErrClosed
	}
	j.active.Add(1)
	return j.active.Done, nil
}

// untilAbandoned returns a context of a function, which ends when Close gives up.
func (j *Jobs) untilAbandoned(ctx context.Context) (context.Context, func()) {
	open, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(j.working, func() { end(ErrClosed) })
	return open, func() { stop(); end(nil) }
}

// pause waits for a time. It returns the context's error, or ErrClosed after Close.
func (j *Jobs) pause(ctx context.Context, d time.Duration) error {
	err := leaseutil.Pause(ctx, d, j.closing)
	select {
	case <-j.closing: // also where the time is over, or the context
		return ErrClosed
	default:
		return err
	}
}
