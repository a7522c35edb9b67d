package txlock

import (
	"context"
	"time"

	"github.com/dca00107/lockstep/internal/guard"
)

// ObserveOption is the option of a guarded pool, and of Join on a plain one.
type ObserveOption interface {
	PoolOption
	JoinOption
}

// Observe sets the observer of the locks that transactions take: as an option of
// locksqlc.Open, locksqlc.Connector and lockgorm.Dialector for all transactions of
// the pool, as one of Join on a plain pool for one scope, whose end it doesn't see.
// The default is none.
func Observe(observer Observer) ObserveOption { return observing{observer} }

type observing struct{ observer Observer }

func (o observing) toPool(r *guard.Rules) { r.Kept = o.observer }
func (o observing) toJoin(s *state)       { s.watch = o.observer }

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
