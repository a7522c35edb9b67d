package lease

import (
	"context"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// Guard makes the lease a condition of a transaction: it can be committed only
// while the lease is ours. It writes the row of the lease, so that whoever takes the
// lease over either waits for the end of the transaction or has made Guard fail. A
// holder that was paused for longer than the TTL can't commit over its successor.
//
// Guard belongs last in the transaction, since transactions under one lease follow
// one another from Guard to their end. Called after other statements it makes sure
// that the transaction's snapshot is not older than the lease; at READ COMMITTED there
// is none, and what was read before the lease was acquired is the program's concern.
// To look at the snapshot takes one where there was none, which a plain pool can't know:
// where it is the first statement there, say txlock.NothingRead. Else what the transaction
// reads afterwards is from before the wait for the last transaction under the same lease.
//
// A transaction that is still open 5 seconds after its lease has expired by the server's
// clock, since its process is stopped or its host gone, is rolled back as soon as somebody
// else wants the lease: that one ends its session by KILL, which a user may for sessions of
// his own; else the errors of who waits name the session. The server
// knows sessions only: where COMMIT comes in the same moment, what the session begins next
// may be rolled back in place of it.
//
// It returns txlock.ErrLost where the lease is not ours any more, ErrOtherDatabase where
// the transaction's database doesn't have it, and txlock.ErrStaleSnapshot where the transaction's snapshot is older than the lease:
// roll the transaction back then. It returns what Scope.Lock returns besides, and the
// transaction is left as that says. On a guarded pool Commit returns
// txlock.ErrTxDoomed where the rollback to a savepoint, DDL or the like may have taken
// the guard away: guard again then. On a plain pool it doesn't see that.
func (l *Lease) Guard(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) error {
	if err := l.Err(); err != nil {
		return err
	}
	joined, err := l.record.m.store.Join(ctx, tx, options...)
	if err != nil {
		return err
	}
	r := l.record
	outside := ctx // not that of the transaction's own statements
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

// refresh renews the lease where less than two thirds of it are left, since the
// row can't be renewed while the transaction is open. It is done with after
// half of what is left, and says nothing: Guard finds out what has become of the
// lease, and a lease that was not renewed is still held. It doesn't wait for a row
// that the session itself has locked, by the Guard before this one.
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

// guard sends the statements.
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
