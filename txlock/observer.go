package txlock

import (
	"context"
	"log/slog"
	"time"

	"github.com/dca00107/lockstep/internal/guard"
)

// Observer is told what becomes of locks and leases, for metrics and logs. Its
// methods are called in line, from any goroutine: they must return at once and must
// not take or release locks.
type Observer interface {
	// Granted follows a lock or lease that was given; Took is how long that
	// took, the wait included.
	Granted(ctx context.Context, e Event)
	// Refused follows one that was asked for in vain: Err says why, and has the *HeldError
	// if that names who holds it; Took is how long that took.
	Refused(ctx context.Context, e Event)
	// Waited follows a wait in a queue of this process or by looking again, after
	// which comes Granted or Refused. A wait inside the server, as that of a
	// transaction lock, is a part of Took there.
	Waited(ctx context.Context, e Event)
	// Renewed follows the renewal of a lease. Took is what was left of it.
	Renewed(ctx context.Context, e Event)
	// Lost follows the loss of a lease, or of the locks of a transaction that
	// the server has ended: Err says why, and Took how long it was held.
	Lost(ctx context.Context, e Event)
	// Released follows a release, or the end of the transaction; Took is how
	// long it was held.
	Released(ctx context.Context, e Event)
	// Dropped follows a handle of a lease that is garbage and was not released: a mistake
	// of the program. Took is how long the lease was held. If it was the last handle, the
	// lease isn't renewed any more, and Lost follows when its time is over.
	Dropped(ctx context.Context, e Event)
}

// Event is what an Observer is told of.
type Event struct {
	Lease  bool // a lease, or else a lock of a transaction
	Key    Key
	Token  uint64 // 0 where none was given
	Owner  string
	Shared bool
	Again  bool // of Granted: the owner held it before, and it is released once
	Fair   bool // of Waited: in the queue of all processes
	Took   time.Duration
	Err    error
}

// SlogObserver writes what happens to locks and leases to a log: losses and dropped
// handles as warnings, all else on the level Debug, with the attributes key, token, owner, took,
// shared, again, fair and error, those of them that there are.
func SlogObserver(log *slog.Logger) Observer { return slogObserver{log} }

type slogObserver struct{ log *slog.Logger }

func (o slogObserver) Granted(ctx context.Context, e Event) {
	o.write(ctx, slog.LevelDebug, "granted", e)
}

func (o slogObserver) Refused(ctx context.Context, e Event) {
	o.write(ctx, slog.LevelDebug, "refused", e)
}

func (o slogObserver) Waited(ctx context.Context, e Event) {
	o.write(ctx, slog.LevelDebug, "waited", e)
}

func (o slogObserver) Renewed(ctx context.Context, e Event) {
	o.write(ctx, slog.LevelDebug, "renewed", e)
}

func (o slogObserver) Lost(ctx context.Context, e Event) { o.write(ctx, slog.LevelWarn, "lost", e) }

func (o slogObserver) Released(ctx context.Context, e Event) {
	o.write(ctx, slog.LevelDebug, "released", e)
}

func (o slogObserver) Dropped(ctx context.Context, e Event) {
	o.write(ctx, slog.LevelWarn, "dropped", e)
}

func (o slogObserver) write(ctx context.Context, level slog.Level, what string, e Event) {
	if !o.log.Enabled(ctx, level) {
		return
	}
	kind := "lock "
	if e.Lease {
		kind = "lease "
	}
	attributes := []slog.Attr{slog.String("key", e.Key.String()), slog.Duration("took", e.Took)}
	if e.Token > 0 {
		attributes = append(attributes, slog.Uint64("token", e.Token))
	}
	if e.Owner != "" {
		attributes = append(attributes, slog.String("owner", e.Owner))
	}
	if e.Shared {
		attributes = append(attributes, slog.Bool("shared", true))
	}
	if e.Again {
		attributes = append(attributes, slog.Bool("again", true))
	}
	if e.Fair {
		attributes = append(attributes, slog.Bool("fair", true))
	}
	if e.Err != nil {
		attributes = append(attributes, slog.Any("error", e.Err))
	}
	o.log.LogAttrs(ctx, level, kind+what, attributes...)
}

// Observe sets the observer of the locks that transactions take: as an option of
// locksqlc.Open, locksqlc.Connector and lockgorm.Dialector for all transactions of
// the pool, as one of Join on a plain pool for one scope, whose end it doesn't see.
// The default is none. The observer of leases is an option of their manager:
// lease.Observe.
func Observe(observer Observer) interface {
	PoolOption
	JoinOption
} {
	return observing{observer}
}

type observing struct{ observer Observer }

func (o observing) toPool(r *guard.Rules) { pooledBy(r).watch = o.observer }

func (o observing) toJoin(s *state) { s.watch = o.observer }

// asked is when a lock is asked for, where somebody watches.
func (s *state) asked() (t time.Time) {
	if s.watch != nil {
		t = time.Now()
	}
	return t
}

// granted tells the observer of a lock that was given, and returns when.
func (s *state) granted(ctx context.Context, g Grant, asked time.Time) time.Time {
	if s.watch == nil {
		return time.Time{}
	}
	at := time.Now()
	s.watch.Granted(ctx, Event{
		Key: g.key, Token: g.token, Shared: g.shared, Owner: string(ownerOf(ctx)), Took: at.Sub(asked),
	})
	return at
}

// refused tells the observer of a lock that was asked for in vain, and returns
// the error.
func (s *state) refused(ctx context.Context, key Key, shared bool, asked time.Time, err error) error {
	if s.watch != nil {
		s.watch.Refused(ctx, Event{Key: key, Shared: shared, Owner: string(ownerOf(ctx)), Took: time.Since(asked), Err: err})
	}
	return err
}

// ended tells the observer of the end of a transaction: its locks are released, or
// were lost before.
func (s *state) ended(why error) {
	if s.watch == nil {
		return
	}
	s.mu.Lock()
	held := make([]hold, 0, len(s.held))
	for _, h := range s.held {
		held = append(held, h)
	}
	s.mu.Unlock()
	for _, h := range held {
		e := Event{Key: h.grant.key, Token: h.grant.token, Shared: h.grant.shared, Took: time.Since(h.since), Err: why}
		if why != nil {
			s.watch.Lost(context.Background(), e)
		} else {
			s.watch.Released(context.Background(), e)
		}
	}
}
