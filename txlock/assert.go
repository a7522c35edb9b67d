package txlock

import (
	"context"
	"fmt"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/session"
)

// AssertLocked returns ErrNotHeld unless the transaction holds the lock of the key exclusively.
// Call it in code that relies on a lock which its caller acquires. On a guarded pool it sends
// nothing and costs less than a microsecond, so it may stay in production. The transaction stays
// open as it was.
//
// It knows what Scope.Held knows: a lock from before a ROLLBACK TO SAVEPOINT doesn't count. For a
// transaction that has ended it returns ErrTxDoomed or ErrNoTransaction. An unguarded pool doesn't
// know what is held: there AssertLocked verifies with a harmless statement that the transaction is
// open, and returns ErrNotHeld with that reason. In tests the pool of a locktest.Kit knows what is
// held.
func AssertLocked(ctx context.Context, tx Tx, key Key) error {
	return assertHeld(ctx, tx, key, false)
}

// AssertRLocked is AssertLocked for code that only reads: the lock may be shared.
func AssertRLocked(ctx context.Context, tx Tx, key Key) error {
	return assertHeld(ctx, tx, key, true)
}

func assertHeld(ctx context.Context, tx Tx, key Key, shared bool) error {
	if err := key.Validate(); err != nil {
		return err
	}
	if err := fault.NilTx(tx); err != nil {
		return unasserted(key, err, session.Server{})
	}
	txState, guarded, reply := guard.Ask(ctx, tx)
	if txState == nil {
		open, err := openBy(tx, reply)
		switch {
		case guarded || err == nil && !open:
			err = ErrNoTransaction
		case err == nil:
			err = fmt.Errorf("%w, as far as is known: the pool is not guarded, open it by locksqlc.Open or lockgorm.Open, or ask Scope.Held", ErrNotHeld)
		}
		return unasserted(key, err, session.Server{})
	}
	if err := txState.Err(); err != nil {
		return unasserted(key, err, txState.Server())
	}
	kept := txState.Scope(func() guard.Scope { return newJoined(tx, txState, txState.Server()) })
	switch grant, held := kept.(*joined).scope.Held(key); {
	case !held:
		return unasserted(key, fmt.Errorf("%w: lock it before this call, and again after a ROLLBACK TO SAVEPOINT", ErrNotHeld), txState.Server())
	case grant.shared && !shared:
		return unasserted(key, fmt.Errorf("%w exclusively, but shared", ErrNotHeld), txState.Server())
	}
	return nil
}

func unasserted(key Key, err error, s session.Server) error {
	return fault.Of(fmt.Sprintf("assert that %q is locked", fault.Clipped(key.name)), err, s)
}
