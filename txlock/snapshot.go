package txlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
)

// guardsSnapshot reports whether the row must be compared with the snapshot. Where the server has
// a snapshot check of its own, that does it; of a version shownVersion does.
func (a *attempt) guardsSnapshot() bool {
	return a.snapshot && !a.compares && !a.server.SnapshotIsolation
}

// Choose has a transaction that has sent nothing begin at READ COMMITTED, if the program has chosen no
// level and each lock that waits would end as stale at the session's; see guard.Choose. A lock after
// a read returns ErrStaleSnapshot there: the caller retries without Choose.
func (internals) Choose(ctx context.Context, s *Scope) error {
	if s.txState == nil || !s.server.SnapshotAtBegin {
		return nil
	}
	return guard.Choose(ctx, s.tx.DBTX)
}

// checked returns an error if a snapshot counts and there is none to compare with; see Choose.
func (s *state) checked(snapshot bool) error {
	if !snapshot || s.txState == nil || !s.txState.Unchecked() {
		return nil
	}
	return fmt.Errorf("%w: something was read before it at READ COMMITTED, which Run and Transaction have chosen", ErrStaleSnapshot)
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

// compare is the snapshot check: the row that was taken must be in the snapshot
// as it is, else plain reads show data from before the last holder's commit.
func (a *attempt) compare(ctx context.Context, current uint64) error {
	var old uint64
	if !a.absent {
		var err error
		if old, err = a.tokenOrZero(a.own(ctx, guard.Call{Reads: true}), a.tx); err != nil {
			return err
		}
	}
	if old != current {
		return fmt.Errorf("%w: token %d in the snapshot, %d in the row", ErrStaleSnapshot, old, current)
	}
	if a.ours == noToken && current > 0 {
		known.add(a.server.Name, a.record)
	}
	return nil
}
