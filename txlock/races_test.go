package txlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// asking is a context that calls a function once, when the label is asked for: that is
// after a call has looked whether the transaction has read, and before it sends.
type asking struct {
	context.Context
	between func()
}

func (a *asking) Value(key any) any {
	if between := a.between; between != nil && fmt.Sprintf("%T", key) == "txlock.labelKey" {
		a.between = nil
		between()
	}
	return a.Context.Value(key)
}

// TestReadWhileLocking lets another goroutine read right before a lock is sent, and
// somebody else change the key behind that: the lock knows of the read, and is refused.
func TestReadWhileLocking(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "read", "n INT")
		for name, lock := range map[string]verb{
			"Lock": verbs["Lock"], "RLock": verbs["RLock"], "TryLock": verbs["TryLock"], "LockAll": verbs["LockAll"],
			"WaitAtMost": verbs["Lock"].within(time.Minute), "LockAll within a limit": verbs["LockAll"].within(time.Minute),
		} {
			for kind, key := range map[string]txlock.Key{"known": named(), "hashed": hashed()} {
				t.Run(name+"/"+kind, func(t *testing.T) {
					t.Parallel()
					committed(t, db, key)
					s := unread(t, newPool(t, db, true))
					ctx := &asking{Context: t.Context(), between: func() {
						var n int
						wants(t, "read", s.tx.QueryRowContext(context.WithoutCancel(t.Context()), "SELECT COUNT(*) FROM "+table).Scan(&n), nil)
						committed(t, db, key)
					}}
					wants(t, name, second(lock(s.Scope, ctx, key)), txlock.ErrStaleSnapshot)
					if ctx.between != nil {
						t.Error("nobody has read")
					}
				})
			}
		}
	})
}

// TestLockAllInOrderOfSlots proves that LockAll takes center rows in the order of their
// slots, whatever the order of the names that fall on them: the higher one is not taken
// before the lower one.
func TestLockAllInOrderOfSlots(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, limit := range []time.Duration{0, time.Minute} {
			for _, guarded := range []bool{false, true} {
				low, high := hashed(), hashed()
				for (low.Slot() < high.Slot()) == (low.String() < high.String()) {
					low, high = hashed(), hashed()
				}
				if low.Slot() > high.Slot() {
					low, high = high, low
				}
				for _, held := range []txlock.Key{low, high} {
					blocker, s := holder(t, db, held), unread(t, newPool(t, db, guarded))
					scope := s.Scope
					if limit > 0 {
						scope = s.WaitAtMost(limit)
					}
					answered := db.Waiting(t, s.id, func() error { return second(scope.LockAll(t.Context(), high, low)) })
					other := begin(t, newPool(t, db, true), nil)
					if held == low {
						wants(t, "the higher slot behind one that is waited for", second(other.TryLock(t.Context(), high)), nil)
					} else {
						wants(t, "the lower slot before one that is waited for", second(other.TryLock(t.Context(), low)), txlock.ErrBusy)
					}
					wants(t, "Rollback", other.tx.Rollback(), nil)
					wants(t, "Rollback", blocker.tx.Rollback(), nil)
					wants(t, "LockAll", <-answered, nil)
					s.commit(t)
				}
			}
		}
	})
}
