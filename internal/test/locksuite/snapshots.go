package locksuite

import (
	"database/sql"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// stale checks what a lock under an older snapshot returns at this level.
func (e *env) stale(err error) {
	e.Helper()
	if e.variant.level == sql.LevelRepeatableRead {
		e.wants(err, txlock.ErrStaleSnapshot)
	} else {
		e.wants(err, nil)
	}
}

func refusesStale(e *env) {
	table := e.numbers()
	verbs := []func(s *session, key txlock.Key) error{
		func(s *session, key txlock.Key) error { _, err := s.Lock(e.Context(), key); return err },
		func(s *session, key txlock.Key) error { _, err := s.TryLock(e.Context(), key); return err },
		func(s *session, key txlock.Key) error {
			_, err := s.WaitAtMost(10*time.Second).Lock(e.Context(), key)
			return err
		},
		func(s *session, key txlock.Key) error { _, err := s.RLock(e.Context(), key); return err },
		func(s *session, key txlock.Key) error { _, err := s.TryRLock(e.Context(), key); return err },
	}
	if e.cluster {
		verbs = verbs[:3]
	}
	for _, verb := range verbs {
		key := e.key()
		s := e.late(table)
		holder := e.begin()
		holder.lock(key)
		holder.commit()
		e.stale(verb(s, key))
		e.wants(unless(s.Rollback()), nil)
	}
}

// late begins a transaction and reads, so that its snapshot is fixed; joined again,
// since the first Join said that nothing was read.
func (e *env) late(table string) *session {
	e.Helper()
	s := e.begin()
	s.read(table)
	s.join()
	return s
}

func acceptsFresh(e *env) {
	table := e.numbers()
	key, never := e.key(), e.key()
	holder := e.begin()
	holder.lock(key)
	holder.commit()
	s := e.late(table)
	grant := s.lock(key)
	if grant.Token() < 1e15 {
		e.Errorf("grant %+v", grant)
	}
	s.lock(never)
	e.busy(key)
	s.commit()
}

func refusesStaleAll(e *env) {
	table := e.numbers()
	a, b, never := e.key(), e.key(), e.key()
	s := e.late(table)
	holder := e.begin()
	holder.lock(b)
	holder.commit()
	_, err := s.LockAll(e.Context(), a, b)
	e.stale(err)
	e.wants(unless(s.Rollback()), nil)
	s = e.late(table)
	_, err = s.LockAll(e.Context(), a, b, never)
	e.wants(err, nil)
	s.commit()
}

func refusesStaleMixed(e *env) {
	table := e.numbers()
	a, b, never := e.key(), e.key(), e.key()
	if e.cluster {
		e.refusesShared(a)
		return
	}
	for _, keys := range [][]txlock.Key{{a, txlock.Shared(b)}, {txlock.Shared(a), b}} {
		s := e.late(table)
		holder := e.begin()
		holder.lock(b)
		holder.commit()
		_, err := s.LockAll(e.Context(), keys...)
		e.stale(err)
		e.wants(unless(s.Rollback()), nil)
		s = e.late(table)
		_, err = s.LockAll(e.Context(), append(keys, never)...)
		e.wants(err, nil)
		e.wants(s.Rollback(), nil)
	}
}
