package locksuite

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// Locks is what txlock.Scope and its stand-ins do.
type Locks interface {
	Lock(ctx context.Context, key txlock.Key) (txlock.Grant, error)
	TryLock(ctx context.Context, key txlock.Key) (txlock.Grant, error)
	RLock(ctx context.Context, key txlock.Key) (txlock.Grant, error)
	TryRLock(ctx context.Context, key txlock.Key) (txlock.Grant, error)
	LockAll(ctx context.Context, keys ...txlock.Key) ([]txlock.Grant, error)
	RLockAll(ctx context.Context, keys ...txlock.Key) ([]txlock.Grant, error)
	LockAny(ctx context.Context, keys ...txlock.Key) (txlock.Grant, error)
	Held(key txlock.Key) (txlock.Grant, bool)
	Verify(ctx context.Context) error
	WaitAtMost(d time.Duration) Locks
	Version(ctx context.Context, key txlock.Key) (uint64, error)
	CompareAndBump(ctx context.Context, key txlock.Key, version uint64) error
	Once(ctx context.Context, key txlock.Key, options ...txlock.OnceOption) (bool, error)
}

// scope is a Scope as Locks.
type scope struct{ *txlock.Scope }

func (s scope) WaitAtMost(d time.Duration) Locks { return scope{s.Scope.WaitAtMost(d)} }

// Memory is a stand-in for a server.
type Memory interface {
	Begin() (Session, Locks)
	// AwaitWaiting returns when the session waits for a lock.
	AwaitWaiting(tb testing.TB, s Session)
	// ReadVersion and Holders stand in for those of txlock.
	ReadVersion(ctx context.Context, key txlock.Key) (uint64, error)
	Holders(ctx context.Context, keys ...txlock.Key) ([]txlock.Holder, error)
	// Numbers makes a table of one row with a number, 0, that sessions set, as in
	// "UPDATE name SET n = 7", and read by any query that ends with its name, which
	// makes a snapshot.
	Numbers() string
}

// beyondMemory are the behaviours that a stand-in can't show, and why. It shows all
// others.
var beyondMemory = map[string]string{
	"an implicit commit is named":       "it has no statements",
	"a refused compare changes nothing": "it has no tables",
	"open rows":                         "it has no rows",
}

// RunInMemory runs the behaviours that a stand-in can show.
func RunInMemory(t *testing.T, open func(tb testing.TB) Memory) {
	known := 0
	for _, b := range slices.Concat(behaviours, versions, onces) {
		if beyondMemory[b.name] != "" {
			known++
			continue
		}
		for _, kind := range kinds {
			if kind.ensure {
				continue // there is nothing to be made beforehand
			}
			t.Run(b.name+"/"+kind.name, func(t *testing.T) {
				t.Parallel()
				b.show(&env{T: t, kind: kind, memory: open(t), variant: variant{level: sql.LevelRepeatableRead}, adapter: Adapter{Name: "memory", Guarded: true}})
			})
		}
	}
	if known != len(beyondMemory) {
		t.Errorf("%d of the %d behaviours beyond a stand-in are in the suite", known, len(beyondMemory))
	}
}

// beginIn begins a transaction in memory.
func (e *env) beginIn(m Memory) *session {
	s := &session{e: e}
	s.Session, s.Locks = m.Begin()
	e.Cleanup(func() {
		if err := s.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
			e.Errorf("roll back at the end: %v", err)
		}
	})
	return s
}
