package locktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// LockAll is that of txlock.Scope.
func (s *Scope) LockAll(ctx context.Context, keys ...txlock.Key) ([]txlock.Grant, error) {
	plain := make([]txlock.Key, len(keys))
	exclusive := make(map[rowID]bool, len(keys))
	for i, key := range keys {
		var shared bool
		plain[i], shared = inner.Asked(key)
		exclusive[rowOf(key)] = exclusive[rowOf(key)] || !shared
	}
	if err := checkKeys(plain); err != nil {
		return nil, err
	}
	if s.bad != nil {
		return nil, s.bad
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	for _, key := range plain {
		if _, _, err := s.reenter(key, !exclusive[rowOf(key)]); err != nil {
			return nil, err
		}
	}
	given := make(map[rowID]txlock.Grant, len(keys))
	end := time.Now().Add(s.atMost)
	for part := range partsOf(plain, exclusive) {
		if exclusive[rowOf(part[0])] {
			if err := s.takeAll(ctx, part, end, given); err != nil {
				return nil, err
			}
			continue
		}
		q := ask{verb: "lock shared", shared: true}
		if s.atMost > 0 {
			q.atMost = max(1, time.Until(end))
		}
		grant, err := s.take(ctx, part[0], q)
		if err != nil {
			return nil, err
		}
		given[rowOf(part[0])] = grant
	}
	grants := make([]txlock.Grant, len(keys))
	for i, key := range plain {
		grant := given[rowOf(key)]
		s.keep(key, grant)
		grants[i] = inner.NewGrant(key, grant.Token(), grant.Shared())
	}
	return grants, nil
}

// RLockAll is that of txlock.Scope.
func (s *Scope) RLockAll(ctx context.Context, keys ...txlock.Key) ([]txlock.Grant, error) {
	shared := make([]txlock.Key, len(keys))
	for i, key := range keys {
		shared[i] = txlock.Shared(key)
	}
	return s.LockAll(ctx, shared...)
}

// partsOf cuts the keys, in the order in which they are locked, into exclusive ones of one
// table, and single shared ones.
func partsOf(keys []txlock.Key, exclusive map[rowID]bool) func(yield func([]txlock.Key) bool) {
	keys = slices.SortedFunc(slices.Values(keys), compareRows)
	return func(yield func([]txlock.Key) bool) {
		for len(keys) > 0 {
			n := 1
			for n < len(keys) && keys[n].Hashed() == keys[0].Hashed() && exclusive[rowOf(keys[n])] && exclusive[rowOf(keys[0])] {
				n++
			}
			if !yield(keys[:n]) {
				return
			}
			keys = keys[n:]
		}
	}
}

// takeAll locks the rows of exclusive keys of one table, in their order.
func (s *Scope) takeAll(ctx context.Context, keys []txlock.Key, end time.Time, given map[rowID]txlock.Grant) (err error) {
	s.memory.mu.Lock()
	before := s.mark()
	s.memory.mu.Unlock()
	defer func() {
		if err != nil {
			s.failedAll(before)
		}
	}()
	for _, key := range keys {
		if _, done := given[rowOf(key)]; done {
			continue
		}
		q := ask{verb: "lock all from", compares: s.looksLast(), inside: len(keys) > 1}
		if s.atMost > 0 {
			q.atMost = max(1, time.Until(end))
		}
		if given[rowOf(key)], err = s.take(ctx, key, q); err != nil {
			return err
		}
	}
	if s.looksLast() {
		for _, key := range keys {
			if err := s.write(key, given[rowOf(key)], "lock all from"); err != nil {
				return err
			}
		}
	}
	return nil
}

// looksLast tells whether all rows are locked before one is compared with the snapshot.
func (s *Scope) looksLast() bool { return s.memory.mysql && s.atMost == 0 && s.snapshot != nil }

// failedAll undoes what the statement has written: on MySQL there is one for each key where
// a limit is set.
func (s *Scope) failedAll(before savepoint) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	if s.over != nil || s.memory.mysql && s.atMost > 0 {
		return
	}
	s.raised = before.raised
	if !s.memory.mysql { // where the rows were made by a statement before
		s.opened, before.touched = before.opened, true
		s.undo(before)
	}
}

// LockAny is that of txlock.Scope.
func (s *Scope) LockAny(ctx context.Context, keys ...txlock.Key) (txlock.Grant, error) {
	if err := checkKeys(keys); err != nil {
		return txlock.Grant{}, err
	}
	for _, key := range keys {
		grant, err := s.TryLock(ctx, key)
		if !errors.Is(err, txlock.ErrBusy) {
			return grant, err
		}
	}
	return txlock.Grant{}, fmt.Errorf("lock any of %d keys: %w", len(keys), txlock.ErrBusy)
}

// checkKeys returns txlock.ErrInvalidKey for the first key that can't be locked.
func checkKeys(keys []txlock.Key) error {
	if len(keys) == 0 {
		return fmt.Errorf("%w: no key was given", txlock.ErrInvalidKey)
	}
	for _, key := range keys {
		if err := key.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// compareRows is the order in which LockAll takes keys.
func compareRows(a, b txlock.Key) int {
	return cmp.Or(cmp.Compare(rowOf(a).slot, rowOf(b).slot), cmp.Compare(rowOf(a).name, rowOf(b).name))
}
