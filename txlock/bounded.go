package txlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// bySelect takes the lock within a limit, which MySQL has for SELECT only:
// so the row must exist, else the locking read would close its gap. Of a row that
// this process has not seen the server is asked first where that does no harm; to
// ask would fix the snapshot before the wait, and what is read then would be older
// than the lock.
func (a *attempt) bySelect(ctx context.Context) (uint64, error) {
	before, err := a.snapshot, error(nil)
	switch a.look() {
	case lookForRow:
		_, err = a.read(a.own(ctx, guard.Call{Reads: a.txState == nil || !a.txState.ReadsCommitted()}), a.tx)
		if err != nil && !errors.Is(err, errMissing) {
			return 0, err
		}
		a.snapshot = a.mayHaveSnapshot()
	case leaveRow:
		err = errMissing
	}
	var token uint64
	if err == nil {
		token, err = a.selectBounded(ctx)
	}
	return a.afterTry(ctx, before, token, err)
}

// look says what to do about a row that may be missing.
func (a *attempt) look() int {
	switch {
	case known.has(a.server.Name, a.record):
		return knownRow
	case a.txState != nil && a.txState.MayBeSerializable():
		return leaveRow // to look would lock what it finds, and wait for it
	case a.snapshot, a.try, a.server.RollbackOnTimeout:
		return lookForRow
	}
	return leaveRow
}

// afterTry goes on if there was no row, and explains what a try has found.
func (a *attempt) afterTry(ctx context.Context, before bool, token uint64, err error) (uint64, error) {
	if errors.Is(err, errMissing) {
		known.drop(a.server.Name, a.record)
		token, err = a.takeInSeconds(ctx)
	}
	if errors.Is(err, ErrStaleSnapshot) && a.try && !before {
		// Taken and given back between our read and our try.
		return 0, fmt.Errorf("%w: it was granted to another transaction a moment ago", ErrBusy)
	}
	return token, err
}

// selectBounded takes an existing row by SELECT: by one that doesn't wait, and where
// the row is locked by another with the limit. So a lock that is free is granted,
// however short the limit and however slow the server.
func (a *attempt) selectBounded(ctx context.Context) (uint64, error) {
	current, err := a.selectRow(ctx, rawsql.HintNoWait)
	if !a.try && errors.Is(fault.Interpret(err).Sentinel, ErrBusy) {
		return a.selectAtMost(ctx)
	}
	return a.goOn(ctx, current, err)
}

// selectAtMost takes an existing row by SELECT with the limit.
func (a *attempt) selectAtMost(ctx context.Context) (uint64, error) {
	if a.server.WholeSeconds {
		return a.selectInSeconds(ctx)
	}
	began := time.Now()
	current, err := a.selectRow(ctx, func(query string) string { return rawsql.HintAtMost(query, a.atMost) })
	return a.goOn(ctx, current, fault.PastLimit(err, time.Since(began), a.atMost))
}

// selectInSeconds is selectAtMost with the limit rounded up to whole seconds.
func (a *attempt) selectInSeconds(ctx context.Context) (current uint64, err error) {
	err = a.inSeconds(ctx, a.atMost, func() error {
		current, err = a.selectRow(ctx, func(query string) string { return query })
		return err
	})
	return a.goOn(ctx, current, err)
}

// selectRow takes an existing row by a SELECT with a hint, and returns its token.
func (a *attempt) selectRow(ctx context.Context, hint func(query string) string) (uint64, error) {
	db := a.rewritten(rawsql.Edited(hint))
	if a.shared {
		return a.forShare(a.first(ctx), db)
	}
	return a.forUpdate(a.first(ctx), db)
}

// takeInSeconds takes the row, which the snapshot doesn't show if there is one, and makes it if
// need be.
func (a *attempt) takeInSeconds(ctx context.Context) (token uint64, err error) {
	a.absent = true
	err = a.inSeconds(ctx, a.atMost, func() error {
		token, err = a.takeRow(ctx)
		return err
	})
	return token, err
}

// inSeconds limits the waits of what do sends by the session's variable, in whole seconds,
// and puts it back afterwards.
func (s *state) inSeconds(ctx context.Context, atMost time.Duration, do func() error) (err error) {
	own := s.own(ctx, guard.Call{})
	var before int64
	if err := s.tx.DBTX.QueryRowContext(own, rawsql.LockWaitSeconds).Scan(&before); err != nil {
		return err
	}
	if seconds := rawsql.LockWait(atMost); seconds < before {
		if _, err := s.tx.DBTX.ExecContext(s.own(ctx, guard.Call{Borrows: true}), rawsql.SetLockWait(seconds)); err != nil {
			return err
		}
		defer func() {
			_, restoreErr := s.tx.DBTX.ExecContext(s.own(context.WithoutCancel(ctx), guard.Call{Restores: true}), rawsql.SetLockWait(before))
			if restoreErr != nil {
				restoreErr = cmp.Or(ctx.Err(), restoreErr) // whose end may have ended the transaction
			}
			err = cmp.Or(err, restoreErr)
		}()
	}
	return do()
}
