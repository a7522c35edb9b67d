// Package leaseutil has what the managers of packages lease and quorum have in common:
// how to run a function under a lease and to wait for one (leaseutil.go), who owns what under a context
// (owner.go), and work in the background (tasks.go).
package leaseutil

import (
	"context"
	"errors"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
)

// Lease is a lease that was acquired.
type Lease interface {
	Err() error
	Context(ctx context.Context) (context.Context, context.CancelFunc)
	Release(ctx context.Context) error
}

// Pause waits for a time, or until there is news, and returns the error of the context.
func Pause(ctx context.Context, d time.Duration, news <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-news:
	case <-timer.C:
	}
	return nil
}

// Do calls fn under the context of a lease and releases the lease, also if fn panics. It
// returns the error of fn, joined by the reason if the lease was lost before fn returned,
// else by the error of the release. The error guarded, of a release that goes on in the
// background, is left out.
func Do[L Lease](ctx context.Context, l L, guarded error, fn func(ctx context.Context, l L) error) (err error) {
	working, cancel := l.Context(ctx)
	defer func() {
		lost := l.Err()
		cancel()
		released := l.Release(ctx)
		switch {
		case lost != nil:
			err = fault.Join(err, lost)
		case !errors.Is(released, guarded):
			err = fault.Join(err, released)
		}
	}()
	return fn(working, l)
}

// Terms are what an Acquire asks for.
type Terms struct {
	TTL         time.Duration
	MaxLifetime time.Duration // 0: no limit
	WaitAtMost  time.Duration // 0: as long as the context lives
	HoldAtLeast time.Duration
	Fair        bool
}

// Epoch identifies the data of a database. A database that comes back empty, without a
// restore, has another epoch.
type Epoch struct {
	ID  string        // empty: none was begun
	Age time.Duration // since it was begun, by the server's clock
}
