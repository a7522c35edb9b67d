// Package underlease is what the managers of leases have in common: the life of a lease
// around a function.
package underlease

import (
	"context"
	"errors"

	"github.com/dca00107/lockstep/internal/joined"
)

// Lease is a hold that was acquired.
type Lease interface {
	Err() error
	Context(ctx context.Context) (context.Context, context.CancelFunc)
	Release(ctx context.Context) error
}

// Do calls fn under the context of a lease and releases it, also when fn panics. It
// returns the error of fn, joined by why the lease was lost before fn returned, or else
// by that of the release; guarded, a release that goes on behind the call, is none.
func Do[L Lease](ctx context.Context, l L, guarded error, fn func(ctx context.Context, l L) error) (err error) {
	working, cancel := l.Context(ctx)
	defer func() {
		lost := l.Err()
		cancel()
		released := l.Release(ctx)
		switch {
		case lost != nil:
			err = joined.Errors(err, lost)
		case !errors.Is(released, guarded):
			err = joined.Errors(err, released)
		}
	}()
	return fn(working, l)
}
