package txlock

import (
	"context"
	"fmt"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/guard"
)

// AnyRows lets CommitWith commit whatever number of rows the statement has changed.
const AnyRows = -1

// CommitWith returns a context for the last statement of the transaction, which commits it if it
// changes the given number of rows: the statement and COMMIT are one round trip, and the locks are
// released one round trip earlier. The server takes longer to parse the two together than
// separately, so it pays off if a round trip takes some tenths of a millisecond or more.
//
//	_, err = tx.ExecContext(scope.CommitWith(ctx, 1), "UPDATE stock SET n = n - 1 WHERE id = ? AND n > 0", id)
//
// The statement must be one INSERT, UPDATE, DELETE or REPLACE without RETURNING, sent with Exec on
// a guarded pool; any other returns an error, and nothing is sent. The rows are those of
// RowsAffected: an UPDATE that changes nothing counts none. If the number differs, the statement
// returns ErrRows, and the transaction stays open with the change. An insert id that the server
// did not generate is 0.
//
// After a success the transaction is committed: Commit and Rollback send nothing and return nil,
// and all else returns ErrNoTransaction or an error that names that. If the function of Run or
// Transaction returns an error afterwards, what it did stays, and it isn't retried. The functions
// of Optimistic, Once, ticks and the like can't commit, because something follows them, nor can
// those of a nested Transaction. If COMMIT isn't answered, the statement returns
// ErrUnknownOutcome. If the statement is interrupted, for example by KILL QUERY, it returns
// ErrTxDoomed, and nothing is committed.
//
// Without interpolateParams, the driver's default, each connection prepares each text once. A pool
// sends the two separately until it knows whether its driver does so.
//
// The two are sent separately where they can't share a text: through wrappers of the driver, on a
// Galera Cluster without interpolateParams, on MySQL without the procedures of package schema or
// with more than 16 arguments, with sql_auto_is_null, and if the text of the statement isn't ASCII,
// exceeds 64 KiB with its arguments, or contains LAST_INSERT_ID() or the like. Where they share one,
// its arguments are bound as those of a prepared statement, which is also the case without
// interpolateParams: in expressions such as ? / 3 their type differs from a literal's, and MySQL returns
// error 1292 for a string that is compared with numbers and isn't one. With interpolateParams they are
// literals if all are numbers, except in a write on MariaDB; on MySQL, also if some are bytes, and the
// two are sent separately if some are floats or bytes and others are neither these nor numbers.
// SHOW WARNINGS doesn't show its warnings.
func (s *Scope) CommitWith(ctx context.Context, rows int64) context.Context {
	switch {
	case ctx == nil:
		return bridge.Unsent(context.Background(), errNoContext)
	case ctx.Err() != nil:
		return ctx
	case rows < AnyRows:
		return bridge.Unsent(ctx, fmt.Errorf("%w: CommitWith(%d): a statement changes 0 rows or more, AnyRows is any number", ErrInvalidOption, rows))
	case s.txState == nil:
		return bridge.Unsent(ctx, fmt.Errorf("CommitWith: %w", ErrUnguarded))
	}
	if why := s.whyNotLast(); why != nil {
		return bridge.Unsent(ctx, why)
	}
	if err := s.finishOnces(ctx); err != nil {
		return bridge.Unsent(ctx, err)
	}
	return guard.WithLast(ctx, guard.Last{Tx: s.txState, Rows: rows})
}

// whyNotLast returns why no statement of the transaction may commit it, or nil.
func (s *state) whyNotLast() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.followed {
		return fmt.Errorf("%w: CommitWith in a function of Optimistic, Once or a tick, which continue the transaction after it: leave the COMMIT to them", ErrInvalidOption)
	}
	return s.notUndone
}

// NotUndone notes that a part of the transaction could not be undone: CommitWith returns the
// error, and commits nothing.
func (internals) NotUndone(s *Scope, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notUndone = err
}

// Last sets whether the function that is called in the transaction may commit it by CommitWith,
// because nothing follows it, until restore is called.
func (internals) Last(s *Scope, may bool) (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.followed
	s.followed = !may
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.followed = before
	}
}

var errNoContext = fmt.Errorf("%w: a context is needed, got nil", ErrInvalidOption)
