package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dca00107/lockstep/internal/fault"
)

// ErrOtherDatabase is returned by Guard if the lease is held, but the transaction's database
// doesn't have it: the transaction is in another database than the manager's, or on a cluster node
// that hasn't received the lease yet. The lease stays held, and the transaction is not guarded:
// roll it back.
var ErrOtherDatabase = errors.New("lease: the transaction is in another database than the lease, or on a node that hasn't received it yet; guard a transaction in the manager's own database")

// refused decides, by the lease's own database, why Guard has failed: the lease is lost
// only if that database says so too. If the pool has no connection left to ask, the next
// renewal finds out.
func (r *record) refused(ctx context.Context, err error) error {
	if r.m.store.Full() && !r.isPending() {
		r.m.waitFor(r)
		return err
	}
	ours, lookErr := r.isOurs(ctx)
	switch {
	case lookErr != nil:
		return errors.Join(err, fault.Explain("look whether the lease is lost", lookErr))
	case ours && r.err() == nil:
		return fmt.Errorf("guard lease %q, token %d: %w", r.key, r.token.Load(), ErrOtherDatabase)
	}
	r.lose(ErrReplaced)
	return errors.Join(err, r.err())
}

// isOurs reports whether the row, as it was committed last, still has the hold and the
// token of the record.
func (r *record) isOurs(ctx context.Context) (bool, error) {
	seen, err := r.m.store.Look(ctx, r.row())
	if err != nil || seen.Left == 0 {
		return false, err
	}
	row, err := r.m.store.Stored(ctx, r.row())
	return row.Token == r.token.Load() && strings.Contains(row.Holders, r.hold), err
}
