package txlock

import (
	"context"
	"errors"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// Include sends statements of lockstep's other packages in the transaction; package lease writes
// its rows with it. If send succeeds, Commit on a guarded pool returns ErrTxDoomed after DDL or the
// like has ended the transaction; and if it sets Fence, after the rollback to a savepoint that may
// have released what the statements have locked. The errors are those of Lock.
func (internals) Include(ctx context.Context, s *Scope, verb string, key Key, send func(ctx context.Context, in *bridge.Included) error) error {
	if err := key.Validate(); err != nil {
		return err
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.stillOpen(ctx); err != nil {
		return s.failure(verb, key, err)
	}
	stamp := s.stamp()
	fence, err := s.includeOnce(ctx, key, send)
	if errors.Is(err, guard.ErrReads) {
		fence, err = s.includeOnce(ctx, key, send) // another goroutine has read meanwhile
	}
	if err != nil {
		return s.failure(verb, key, err)
	}
	switch {
	case s.txState == nil:
	case fence:
		s.txState.Fence(key.name, stamp)
	default:
		s.txState.Hold()
	}
	return nil
}

// includeOnce calls send once.
func (s *state) includeOnce(ctx context.Context, key Key, send func(ctx context.Context, in *bridge.Included) error) (fence bool, err error) {
	snapshot := s.mayHaveSnapshot()
	if err := s.checked(snapshot); err != nil {
		return false, err
	}
	// The row of a lease is written by its renewals: a change since the snapshot is no
	// reason to roll the transaction back.
	in := &bridge.Included{Tx: s.noSkip(snapshot), Snapshot: snapshot, Session: s.server.Session, Reading: s.own(ctx, guard.Call{Reads: true})}
	if s.txState != nil {
		if err := s.txState.Err(); err != nil {
			return false, err
		}
		in.Fenced = s.txState.Fenced(key.name)
	}
	err = send(s.own(ctx, guard.Call{Fresh: !in.Snapshot}), in)
	return in.Fence, err
}

// noSkip is the transaction of statements that fail where they would skip a locked row. That
// a row has changed since a snapshot is no reason to refuse it.
func (s *state) noSkip(snapshot bool) gen.DBTX {
	return s.rewritten(func(q rawsql.Statement) rawsql.Statement {
		q.Query, q.Variables = s.server.Refuse(q.Query, s.server.RollbackOnTimeout)
		if s.mayBeRefused(snapshot) {
			q.Variables = append(q.Variables, rawsql.AllowStale)
		}
		return q
	})
}
