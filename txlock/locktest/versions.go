package locktest

import (
	"context"
	"fmt"

	"github.com/dca00107/lockstep/internal/marks"
	"github.com/dca00107/lockstep/txlock"
)

// Version is that of txlock.Scope at REPEATABLE READ, the default of the servers: it is
// a plain read, and makes the snapshot if there is none.
func (s *Scope) Version(ctx context.Context, key txlock.Key) (uint64, error) {
	if err := key.Validate(); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("read the version of %q: %w", key, err)
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	if err := s.sent(); err != nil {
		return 0, fmt.Errorf("read the version of %q: %w", key, err)
	}
	s.read()
	id := rowOf(key)
	version := s.snapshot[id].version
	if s.snapshot == nil {
		version = s.memory.row(key).committed
	}
	if raised, ok := s.raised[id]; ok {
		version = raised
	}
	s.seen[id] = version
	return version, nil
}

// CompareAndBump is that of txlock.Scope.
func (s *Scope) CompareAndBump(ctx context.Context, key txlock.Key, version uint64) error {
	if err := key.Validate(); err != nil {
		return err
	}
	if s.bad != nil {
		return s.bad
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	id := rowOf(key)
	seen, ok := s.seen[id] // written in calls only, one at a time
	saw := ok && seen == version
	conflict := fmt.Errorf("compare and bump %q: %w: it is not %d any more", key, txlock.ErrConflict, version)
	if !saw {
		conflict = fmt.Errorf("%w: %w", conflict, marks.ErrGiven)
	}
	grant, held, err := s.reenter(key, false)
	if err != nil {
		return err
	}
	if held {
		if base, compared := s.bases[id]; version != grant.Token() && (!compared || version != base) {
			return conflict
		}
		return nil
	}
	old, compares := s.seenVersion(key)
	compares = compares && !saw
	if compares && old > version {
		return conflict
	}
	if grant, err = s.lock(ctx, key, ask{verb: "compare and bump", atMost: s.atMost, compares: true}); err != nil {
		return err
	}
	if s.version(key) != version {
		return conflict // the row stays locked until the end of the transaction
	}
	s.raise(key, grant)
	if compares && old < version {
		return fmt.Errorf("compare and bump %q: %w", key, txlock.ErrStaleSnapshot)
	}
	s.keep(key, grant)
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	s.bases[id] = version
	return nil
}

// version returns the version of the row that the transaction has locked.
func (t *transaction) version(key txlock.Key) uint64 {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	return t.memory.row(key).version(t)
}

// seenVersion returns the version that plain reads of the transaction show, if it has read.
func (t *transaction) seenVersion(key txlock.Key) (version uint64, read bool) {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	if raised, ok := t.raised[rowOf(key)]; ok {
		return raised, t.snapshot != nil
	}
	return t.snapshot[rowOf(key)].version, t.snapshot != nil
}
