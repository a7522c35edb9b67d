package txlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
)

// Confirm prepares the Commit of Run and Transaction. On a plain pool it calls Verify; on a
// guarded one Commit itself verifies. It prolongs the keys of Once of which half the time to keep
// has passed. It reports whether CommitWith has committed the transaction, in which case Commit
// sends nothing.
func (i internals) Confirm(ctx context.Context, s *Scope) (committed bool, err error) {
	if s.txState != nil && s.txState.Finished() {
		return true, nil
	}
	if err := s.finishOnces(ctx); err != nil {
		return false, i.Final(ctx, s, err)
	}
	if s.txState != nil {
		return false, nil
	}
	return false, i.Final(ctx, s, s.ofItself(s.Verify(ctx)))
}

// CompareAndBump is Scope.CompareAndBump. With commits, as the last statement of a transaction, it
// commits the transaction if the server can do both in one round trip, and reports whether it has:
// then Commit sends nothing.
func (internals) CompareAndBump(ctx context.Context, s *Scope, key Key, version uint64, commits bool) (committed bool, err error) {
	if commits {
		err = s.finishOnces(ctx)
	}
	if err == nil {
		err = s.compareAndBump(ctx, key, version, commits && s.txState != nil)
	}
	return err == nil && s.txState != nil && s.txState.Finished(), err
}

// Commit commits the transaction of a guarded pool, and stops waiting for the answer when the
// context ends. After it the Commit of the transaction sends nothing.
func (internals) Commit(ctx context.Context, s *Scope) error {
	_, err := s.tx.DBTX.ExecContext(s.own(ctx, guard.Call{Commits: true}), "COMMIT")
	return err
}

// Outcome returns what Run and Transaction return for the error of Commit: ErrUnknownOutcome if
// the commit may have happened, and the error of the context if its end has rolled back.
func (internals) Outcome(ctx context.Context, s *Scope, err error) error {
	err = fault.OfContext(ctx, err)
	if s.txState == nil { // else the guarded connection has judged it
		err = fault.Outcome(err)
	}
	return s.ofItself(err)
}

// Final returns what Run and Transaction return for the error of their function; they call it
// before they roll the transaction back. The result is Retryable only if nothing of the
// transaction was committed before its end. The error alone doesn't show that, since a statement
// before the failed one may have committed. On a guarded pool the transaction state has that; for a
// plain one see mayHaveCommitted. A plain pool that has lost the connection knows nothing of the
// statement that was running, nor of those before it.
func (internals) Final(ctx context.Context, s *Scope, err error) error {
	err = fault.OfContext(ctx, err)
	switch {
	case err != nil && s.txState != nil && s.txState.Finished():
		return fmt.Errorf("the transaction was %w, by CommitWith, and what it did stays: %w", fault.ErrCommitted, err)
	case err != nil && s.over():
		return s.byItself(err)
	}
	if s.txState != nil && fault.LostConnection(err) && !errors.Is(err, ErrTxDoomed) && !errors.Is(err, ErrUnknownOutcome) {
		err = errors.Join(s.txState.Err(), err) // a statement of the program has lost it
	}
	if !Retryable(err) {
		return err
	}
	if s.txState != nil {
		if why := s.txState.Committed(); why != nil {
			return fmt.Errorf("%w: it is not retried: %w", why, err)
		}
		return err
	}
	if fault.LostConnection(err) || !s.ofLock(err) && s.mayHaveCommitted(ctx) {
		return fmt.Errorf("%w: it was %w, or may have been: it is not retried: %w", ErrTxDoomed, fault.ErrCommitted, err)
	}
	return err
}

// over reports whether the transaction is known to be committed.
func (s *state) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.committed
}

// ofItself says of the error of a transaction that its function has ended it itself, where
// that is the cause.
func (s *state) ofItself(err error) error {
	if errors.Is(err, sql.ErrTxDone) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return s.byItself(err)
	}
	return err
}

func (s *state) byItself(err error) error {
	if s.over() {
		return fmt.Errorf("the transaction was %w, by its own function, and what that did stays: leave Commit to the caller: %w", fault.ErrCommitted, err)
	}
	return fmt.Errorf("the transaction was ended by its own function, which called Commit or Rollback: leave both to the caller: %w", err)
}

// mayHaveCommitted looks for what a transaction of a plain pool has left that a statement of
// the program has ended: whether it was open at the last reply before, whether it still
// is, and the token of a lock, which is lower again where the server has rolled back. Where
// there is no lock, or somebody else has had it since, it doesn't know of a transaction that
// was ended and begun anew, and of a statement that had committed before it failed.
func (s *Scope) mayHaveCommitted(ctx context.Context) bool {
	s.sending.Lock()
	defer s.sending.Unlock()
	open, told := guard.OpenAtLastReply(s.tx.DBTX)
	if told && !open {
		return true
	}
	if s.probe(ctx) == nil {
		return false
	}
	if r, token := s.anExclusive(); token > 0 {
		now, err := r.tokenOrZero(ctx, s.tx)
		if err == nil && now <= token {
			return now == token
		}
	}
	return !told
}

// ofLock is the error of a lock in a transaction of a plain pool, where each Join has a scope of
// its own. None of the program's statements is asked about then.
type ofLock struct {
	error
	tx gen.DBTX
}

func (o ofLock) Unwrap() error { return o.error }

// ofLock reports whether an error is that of a lock in this transaction, and not of a statement of
// the program or of another transaction.
func (s *state) ofLock(err error) bool {
	var o ofLock
	return errors.As(err, &o) && reflect.TypeOf(o.tx).Comparable() && o.tx == s.tx.DBTX
}

// anExclusive returns an exclusive lock that was given, and its token; 0 where there is none.
func (s *state) anExclusive() (record, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, h := range s.held {
		if !h.grant.shared {
			return r, h.grant.token
		}
	}
	return record{}, 0
}
