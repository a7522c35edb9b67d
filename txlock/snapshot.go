package txlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
)

// guardsSnapshot tells whether the row must be as the snapshot shows it. For a
// version compareInSnapshot sees to it.
func (a *attempt) guardsSnapshot() bool { return a.snapshot && !a.compares }

// takeAndCompare is the way on servers that have no snapshot guard of their own: take the
// row as it is, read it from the snapshot, and only then write.
func (a *attempt) takeAndCompare(ctx context.Context, db gen.DBTX) (uint64, error) {
	current, err := a.touch(a.first(ctx), db)
	if err != nil {
		return 0, err
	}
	if err := a.compare(ctx, current); err != nil {
		return 0, err
	}
	return a.raiseToken(ctx, guard.Call{}, a.tx)
}

// takeShared takes the row shared, and compares it where that is the snapshot guard.
func (a *attempt) takeShared(ctx context.Context, db gen.DBTX, compare bool) (uint64, error) {
	token, err := a.shareRow(ctx, db)
	if err != nil || !compare {
		return token, err
	}
	return token, a.compare(ctx, token)
}

// shareRow takes the row shared. A locking read of a missing row would close
// the gap around it, so the row is made first, which takes an existing one shared
// and closes nothing.
func (a *attempt) shareRow(ctx context.Context, db gen.DBTX) (uint64, error) {
	if known.has(a.server.Name, a.record) {
		token, err := a.forShare(a.first(ctx), db)
		if !errors.Is(err, errMissing) {
			return token, err
		}
		known.drop(a.server.Name, a.record)
	}
	err := a.ensure(a.first(ctx), db)
	if err != nil && !errors.Is(fault.Interpret(err).Sentinel, ErrReadOnly) {
		return 0, err // a read-only transaction can't make the row, but lock it
	}
	token, shareErr := a.forShare(a.first(ctx), db)
	if errors.Is(shareErr, errMissing) && err != nil {
		return 0, fmt.Errorf("%w: make the row beforehand by txlock.Ensure: %w", errMissing, err)
	}
	return token, shareErr
}

// compare is the snapshot guard: the row that was taken must be in the snapshot
// as it is, else plain reads show data from before the last holder's commit.
func (a *attempt) compare(ctx context.Context, current uint64) error {
	old, err := a.read(a.own(ctx, guard.Call{Reads: true}), a.tx)
	if err != nil && !errors.Is(err, errMissing) {
		return err
	}
	if old != current {
		return fmt.Errorf("%w: token %d in the snapshot, %d in the row", ErrStaleSnapshot, old, current)
	}
	if a.ours == noToken && current > 0 {
		known.add(a.server.Name, a.record)
	}
	return nil
}
