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
	if err := checkKeys(keys); err != nil {
		return nil, err
	}
	if s.bad != nil {
		return nil, s.bad
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	for _, key := range keys {
		if _, _, err := s.reenter(key, false); err != nil {
			return nil, err
		}
	}
	given := make(map[rowID]txlock.Grant, len(keys))
	end := s.memory.Now().Add(s.atMost)
	named := slices.DeleteFunc(slices.Clone(keys), txlock.Key.Hashed)
	centers := slices.DeleteFunc(slices.Clone(keys), func(key txlock.Key) bool { return !key.Hashed() })
	for _, part := range [][]txlock.Key{named, centers} {
		if err := s.takeAll(ctx, part, end, given); err != nil {
			return nil, err
		}
	}
	grants := make([]txlock.Grant, len(keys))
	for i, key := range keys {
		s.keep(key, given[rowOf(key)])
		grants[i] = txlock.NewGrant(key, given[rowOf(key)].Token(), false)
	}
	return grants, nil
}

// takeAll locks the rows of the keys of one table, in their order.
func (s *Scope) takeAll(ctx context.Context, keys []txlock.Key, end time.Time, given map[rowID]txlock.Grant) (err error) {
	s.memory.mu.Lock()
	before := s.mark()
	s.memory.mu.Unlock()
	defer func() {
		if err != nil {
			s.failedAll(before)
		}
	}()
	keys = slices.SortedFunc(slices.Values(keys), compareRows)
	for _, key := range keys {
		if _, done := given[rowOf(key)]; done {
			continue
		}
		q := ask{verb: "lock all from", compares: s.looksLast()}
		if s.atMost > 0 {
			q.atMost = max(1, end.Sub(s.memory.Now()))
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
		before.touched = true
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
