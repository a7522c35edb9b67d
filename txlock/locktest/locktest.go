package locktest

import (
	"context"

	"github.com/dca00107/lockstep/internal/asserts"
	"github.com/dca00107/lockstep/internal/inside"
	"github.com/dca00107/lockstep/txlock"
)

// inner is what package txlock does for this one.
var inner = inside.LockOf[*txlock.Scope, txlock.Key, txlock.Grant, txlock.PoolOption]()

// WithoutAssertions returns a context under which [txlock.AssertLocked] and
// [txlock.AssertRLocked] return nil. It is for tests of code that is called without
// its lock, and for tests on a pool that doesn't know what is held, such as a mock's.
// Only this package can switch the assertions off.
func WithoutAssertions(ctx context.Context) context.Context { return asserts.Off(ctx) }

// AssertLocked is [txlock.AssertLocked], for tests that import this package already.
// Production code calls that one.
func AssertLocked(ctx context.Context, tx txlock.Tx, key txlock.Key) error {
	return txlock.AssertLocked(ctx, tx, key)
}

// rowID is the row that a key locks.
type rowID struct {
	name string
	slot int64 // 1 and the slot of a hashed key, 0 for a named one
}

func rowOf(key txlock.Key) rowID {
	if key.Hashed() {
		return rowID{slot: int64(key.Slot()) + 1}
	}
	return rowID{name: key.String()}
}
