package txlock

import (
	"context"
	"errors"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// Included is what Include hands to its function.
type Included struct {
	// Tx sends the statements.
	Tx gen.DBTX
	// Snapshot tells that plain reads of the transaction may show data from
	// before the statements' locks.
	Snapshot bool
	// Fenced tells that a lock of the same name was fenced before, and holds.
	Fenced bool
	// Session is the transaction's, on the server: CONNECTION_ID().
	Session uint64
	// Reading is the context for plain reads, which fix the snapshot.
	Reading context.Context
	// Fence is to be set where the transaction must not be committed without
	// what the statements have locked.
	Fence bool
}

// Include sends statements that are not the program's own in the transaction:
// package lease writes its rows by it. Where send succeeds and sets Fence, the
// transaction can't be committed without what they have locked: on a guarded pool
// Commit returns ErrTxDoomed where DDL or the like, or the rollback to a savepoint, may
// have freed it. The errors are those of Lock.
func (s *Scope) Include(ctx context.Context, verb string, key Key, send func(ctx context.Context, in *Included) error) error {
	if err := key.Validate(); err != nil {
		return err
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.stillOpen(ctx); err != nil {
		return s.failure(verb, key, err)
	}
	stamp := s.stamp()
	fence, err := s.include(ctx, key, send)
	if errors.Is(err, guard.ErrReads) {
		fence, err = s.include(ctx, key, send) // another goroutine has read meanwhile
	}
	if err != nil {
		return s.failure(verb, key, err)
	}
	if s.book != nil && fence {
		s.book.Fence(key.name, stamp)
	}
	return nil
}

// include calls send once.
func (s *Scope) include(ctx context.Context, key Key, send func(ctx context.Context, in *Included) error) (fence bool, err error) {
	in := &Included{Tx: s.tx, Snapshot: s.mayHaveSnapshot(), Session: s.server.Session, Reading: s.own(ctx, guard.Call{Reads: true})}
	if s.book != nil {
		if err := s.book.Err(); err != nil {
			return false, err
		}
		in.Fenced = s.book.Fenced(key.name)
	}
	if in.Snapshot && s.server.SnapshotIsolation {
		// The row of a lease is written by its renewals: a change since the
		// snapshot is no reason to roll the transaction back.
		prefix := rawsql.For(rawsql.AllowStale)
		in.Tx = rewritten{s.tx, func(query string) string { return prefix + query }}
	}
	err = send(s.own(ctx, guard.Call{Fresh: !in.Snapshot}), in)
	return in.Fence, err
}
