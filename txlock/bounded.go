package txlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// boundedOnMySQL takes the lock within a limit, which MySQL has for SELECT only:
// so the row must exist, else the locking read would close its gap.
func (a *attempt) boundedOnMySQL(ctx context.Context) (uint64, error) {
	before := a.snapshot
	exists := known.has(a.server.Name, a.record)
	if !exists {
		_, err := a.read(a.own(ctx, guard.Call{Reads: true}), a.tx)
		if err != nil && !errors.Is(err, errMissing) {
			return 0, err
		}
		exists, a.snapshot = err == nil, true
	}
	var token uint64
	err := errMissing
	if exists {
		token, err = a.selectBounded(ctx)
		if errors.Is(err, errMissing) {
			known.drop(a.server.Name, a.record)
		}
	}
	if errors.Is(err, errMissing) {
		token, err = a.insertBounded(ctx)
	}
	if errors.Is(err, ErrStaleSnapshot) && a.try && !before {
		// Taken and given back between our read and our try.
		return 0, fmt.Errorf("%w: it was taken a moment ago", ErrBusy)
	}
	return token, err
}

// selectBounded takes an existing row by SELECT with a limit.
func (a *attempt) selectBounded(ctx context.Context) (uint64, error) {
	hint := rawsql.HintNoWait
	if !a.try {
		hint = func(query string) string { return rawsql.HintAtMost(query, a.atMost) }
	}
	db := rewritten{a.tx, hint}
	take := a.forUpdate
	if a.shared {
		take = a.forShare
	}
	began := time.Now()
	current, err := take(a.first(ctx), db)
	if err != nil {
		return 0, PastLimit(err, began, a.atMost)
	}
	if a.guardsSnapshot() {
		if err := a.compare(ctx, current); err != nil {
			return 0, err
		}
	}
	if a.shared {
		return current, nil
	}
	return a.lock(a.then(ctx), a.tx)
}

// insertBounded makes the row that the snapshot doesn't show. Only here the limit
// is the session's, in whole seconds, and is put back afterwards.
func (a *attempt) insertBounded(ctx context.Context) (token uint64, err error) {
	var before int64
	if err := a.tx.QueryRowContext(a.then(ctx), rawsql.LockWaitSeconds).Scan(&before); err != nil {
		return 0, err
	}
	seconds := max(1, int64((a.atMost+time.Second-1)/time.Second))
	if _, err := a.tx.ExecContext(a.then(ctx), rawsql.SetLockWait(seconds)); err != nil {
		return 0, err
	}
	defer func() {
		if _, restoreErr := a.tx.ExecContext(a.own(context.WithoutCancel(ctx), guard.Call{Restores: true}), rawsql.SetLockWait(before)); err == nil {
			err = restoreErr
		}
	}()
	if a.shared {
		if err := a.ensure(a.then(ctx), a.tx); err != nil {
			return 0, err
		}
		token, err := a.forShare(a.then(ctx), a.tx)
		if err == nil && token > 0 {
			err = fmt.Errorf("%w: no row in the snapshot, token %d in the row", ErrStaleSnapshot, token)
		}
		return token, err
	}
	if a.version != nil {
		return a.lock(a.then(ctx), a.tx)
	}
	token, err = a.insert(a.then(ctx), a.tx, a.owner)
	if err == nil && token == 0 {
		err = fmt.Errorf("%w: no row in the snapshot, but one by now", ErrStaleSnapshot)
	}
	return token, err
}
