package job

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dca00107/lockstep/internal/whoami"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/underlease"
	"github.com/dca00107/lockstep/txlock/lease"
)

// The errors of ticks.
var (
	// ErrDone is returned by Claim for a tick that was done already.
	ErrDone = errors.New("job: the tick was done")
	// ErrPast is returned for a tick that can't be begun any more, because a later one of
	// the same key was begun. Whether it was done isn't known.
	ErrPast = errors.New("job: a later tick was begun")
	// ErrEarly is returned for an instant that is ahead of the server's clock: by more
	// than a minute from Tick and TickTx, at all from Claim.
	ErrEarly = errors.New("job: the instant has not come by the server's clock")
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

	mu      sync.Mutex
	closing chan struct{} // closed when Close is called
	closed  bool
	active  sync.WaitGroup
	working context.Context // of all functions; ends when Close gives up
	abandon context.CancelFunc
}

// Option is an option of New.
type Option func(*options)

type options struct {
	by       string
	observer func(ctx context.Context, e Event)
}

// InstanceName names the process in the table. The default is its host and its process number.
func InstanceName(name string) Option { return func(o *options) { o.by = name } }

// Observe sets a function that is told of all that happens. It is called from several
// goroutines, and should return soon. The default is none.
func Observe(observer func(ctx context.Context, e Event)) Option {
	return func(o *options) { o.observer = observer }
}

// Kind is what an Event tells of.
type Kind string

// The kinds of events.
const (
	Began    Kind = "began"     // this process has begun a tick
	Done     Kind = "done"      // it has done the tick, in Took
	Failed   Kind = "failed"    // it has failed with Err, after Took
	Skipped  Kind = "skipped"   // it has begun At, so no process does those from From to before At any more
	RunError Kind = "run_error" // Run has met Err, and goes on
)

// Event tells an observer of a tick.
type Event struct {
	Kind     Kind
	Key      txlock.Key
	At       time.Time // the instant
	Instance string    // the InstanceName of the process
	From     time.Time // of Skipped: the first instant that was skipped, or in which a process has died
	Took     time.Duration
	Err      error
}

// New returns jobs on the pool, whose leases the manager renews: a manager of the same
// database, whose TTL says how soon another process takes over from one that has died. It
// sends nothing yet. Close the jobs before the manager; both, and the pool, stay the
// caller's.
func New(db *sql.DB, leases *lease.Manager, opts ...Option) (*Jobs, error) {
	if db == nil || leases == nil {
		return nil, errors.New("job: New needs a *sql.DB and a *lease.Manager, got nil")
	}
	return newJobs(db, leases, sqlLedger{db}, opts...)
}

func newJobs(db *sql.DB, leases *lease.Manager, l ledger, opts ...Option) (*Jobs, error) {
	j := &Jobs{db: db, leases: leases, ledger: l, options: options{by: whoami.Process(":")}, closing: make(chan struct{})}
	for _, option := range opts {
		option(&j.options)
	}
	if n := len(j.by); n == 0 || n > maxBy {
		return nil, fmt.Errorf("%w: InstanceName: a name has 1 to %d bytes, this one has %d", txlock.ErrInvalidOption, maxBy, n)
	}
	j.working, j.abandon = context.WithCancel(context.Background())
	return j, nil
}

const maxBy = 255

// Close ends every Run and begins no further tick. It waits for the functions that run,
// until the context ends; then it ends their contexts, waits for them to return, and
// returns the context's error. Claims are the caller's to finish.
func (j *Jobs) Close(ctx context.Context) error {
	if ctx == nil {
		return errors.New("job: Close needs a context, got nil")
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
	err := underlease.Pause(ctx, d, j.closing)
	select {
	case <-j.closing: // also where the time is over, or the context
		return ErrClosed
	default:
		return err
	}
}

func (j *Jobs) tell(ctx context.Context, e Event) {
	if j.observer != nil {
		e.Instance = j.by
		j.observer(ctx, e)
	}
}
