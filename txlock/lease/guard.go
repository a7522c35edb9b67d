package lease

import (
	"context"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// Guard makes the lease a condition of a transaction: the transaction can be committed only while
// the lease is held. It writes the row of the lease, so the next holder waits for the end of the
// transaction, or has already made Guard fail. A holder that was paused for longer than the TTL
// can't commit after its successor.
//
// Call Guard last in the transaction, because transactions under one lease run one after the other
// from Guard to their end. If it is called after other statements, it verifies that the
// transaction's snapshot is not older than the lease. At READ COMMITTED there is no snapshot, and
// the program must consider what it read before the lease was acquired. Verifying takes a snapshot
// if there was none, and an unguarded pool can't know that: if Guard is the first statement there,
// pass txlock.NothingRead. Otherwise the transaction may read data from before the end of the last
// transaction under the same lease.
//
// Guard always sends its statement, even if the manager has just renewed the lease. A renewal only
// determines until when the lease is held, but the process may be paused, and COMMIT delayed, for
// longer than that; the lock of the row lasts until the server has executed COMMIT. Guard skips
// the renewal before its statement while two thirds of the TTL are left, and the snapshot check if
// it is the first statement.
//
// A transaction may still be open 5 seconds after its lease has expired by the server's clock,
// because its process is stopped or its host is gone. Then the next caller that acquires the lease
// ends its session with KILL, which rolls the transaction back; GuardGrace changes the 5 seconds
// for that caller. KILL needs the same database user or the privilege; without it, the waiters'
// errors name the session. The server knows only sessions: if COMMIT arrives at the same moment,
// the next transaction of the session may be rolled back instead.
//
// Guard returns txlock.ErrLost if the lease is no longer held, ErrOtherDatabase if the
// transaction's database doesn't have it, and txlock.ErrStaleSnapshot if the transaction's snapshot
// is older than the lease: roll the transaction back then. It also returns the errors of
// Scope.Lock, which leave the transaction as described there. On a guarded pool, Commit returns
// txlock.ErrTxDoomed if a rollback to a savepoint, DDL or another statement may have undone the
// guard: call Guard again then. An unguarded pool doesn't notice that.
func (l *Lease) Guard(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) error {
	if err := l.Err(); err != nil {
		return err
	}
	joined, err := l.record.m.store.Join(ctx, tx, options...)
	if err != nil {
		return err
	}
	r := l.record
	outside := ctx // without the marks of the transaction's own statements
	err = joined.Include(ctx, "guard lease", r.key, func(ctx context.Context, in *store.In) error {
		if !in.Fenced {
			r.refresh(outside, in.ID)
		}
		in.Fence = true
		return r.guard(ctx, in)
	})
	if errors.Is(err, txlock.ErrLost) {
		return r.refused(ctx, err)
	}
	return err
}

// refresh renews the lease if less than two thirds of its time are left, because the row
// can't be renewed while the transaction is open. It takes at most three quarters of what
// is left and returns no error: Guard finds out what has become of the lease, and a lease
// that was not renewed is still held. It doesn't wait for a row that the same session has
// locked by an earlier Guard.
func (r *record) refresh(ctx context.Context, session uint64) {
	r.mu.Lock()
	again := r.guardedIn == session
	r.guardedIn = session
	r.mu.Unlock()
	left := r.left()
	if left >= r.ttl*2/3 || r.m.store.Full() || r.isPending() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), left*3/4)
	defer cancel()
	if !r.beginRenewal(cancel) {
		if !again {
			r.awaitRenewal(ctx)
		}
		return
	}
	defer r.endRenewal()
	if again {
		if b, err := r.m.blockerOf(ctx, r.row()); err != nil || b != nil && b.Session == session {
			return
		}
	}
	if err := r.m.renewOne(ctx, r, left/2); err != nil {
		r.setback(err)
	}
}

// guard sends the statements of Guard.
func (r *record) guard(ctx context.Context, in *store.In) error {
	claim := r.claim()
	shown := store.Stored{Token: claim.Token}
	if in.Snapshot {
		var err error
		if shown, err = in.Stored(ctx, claim.Row); err != nil {
			return err
		}
	}
	reply, err := in.Guard(ctx, claim)
	switch {
	case err != nil:
		return err
	case reply != store.Done:
		return fmt.Errorf("%w: token %d", txlock.ErrLost, claim.Token)
	case shown.Token < claim.Token:
		return fmt.Errorf("%w: the lease has token %d, the snapshot shows %d", txlock.ErrStaleSnapshot, claim.Token, shown.Token)
	}
	return nil
}
