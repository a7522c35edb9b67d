package txlock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// LockAll acquires the locks of all keys, exclusive ones except for keys that Shared has marked,
// in one order for every transaction, so that calls of LockAll and RLockAll don't deadlock among
// themselves on keys that have been locked before. It creates the rows of several new keys in the
// transaction: see Ensure. It waits for each in turn, in total at most for WaitAtMost, and
// acquires all or none of them: if it fails, locks that it has waited for may stay with the
// transaction until its end, but none is granted. The grants are in the order of the keys, and
// have them without the mark; a key given twice is granted twice and locked once, exclusively if
// it is given in both ways. LockAll returns the errors of Lock, and for a shared key those of
// RLock.
func (s *Scope) LockAll(ctx context.Context, keys ...Key) ([]Grant, error) {
	if err := checkKeys(unmarked(keys)); err != nil {
		return nil, err
	}
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	todo, err := s.missingOf(ctx, keys)
	if err != nil {
		return nil, err
	}
	if err := s.acquireAll(ctx, todo, s.atMost); err != nil {
		return nil, err
	}
	grants := make([]Grant, len(keys))
	for i, key := range unmarked(keys) {
		h, _ := s.holdOf(key.record())
		grants[i] = h.grant
		grants[i].key = key
	}
	return grants, nil
}

// RLockAll is LockAll with shared locks on all keys.
func (s *Scope) RLockAll(ctx context.Context, keys ...Key) ([]Grant, error) {
	shared := make([]Key, len(keys))
	for i, key := range keys {
		shared[i] = Shared(key)
	}
	return s.LockAll(ctx, shared...)
}

// checkKeys returns ErrInvalidKey for the first key that can't be locked.
func checkKeys(keys []Key) error {
	if len(keys) == 0 {
		return fmt.Errorf("%w: no key was given", ErrInvalidKey)
	}
	for _, key := range keys {
		if err := key.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// missingOf returns the keys that are not held for certain, sorted by the row
// that they lock, each row once.
func (s *state) missingOf(ctx context.Context, keys []Key) ([]Key, error) {
	var todo []Key
	for _, key := range keys {
		_, done, err := s.reenter(ctx, key, key.record(), key.shared)
		if err != nil {
			return nil, err
		}
		if !done {
			todo = append(todo, key)
		}
	}
	return sorted(todo), nil
}

// sorted returns the keys in the order in which they are locked, one for each row: an
// exclusive one where there is one.
func sorted(keys []Key) []Key {
	keys = slices.SortedFunc(slices.Values(keys), func(a, b Key) int {
		order := compareRecords(a.record(), b.record())
		if order == 0 && a.shared != b.shared {
			order = 1
			if b.shared {
				order = -1
			}
		}
		return order
	})
	return slices.CompactFunc(keys, func(a, b Key) bool { return a.record() == b.record() })
}

// compareRecords orders named rows by name, and behind them the center rows by
// slot: by key the transactions would meet the slots in different orders.
func compareRecords(a, b record) int {
	switch {
	case a.hashed != b.hashed && b.hashed:
		return -1
	case a.hashed != b.hashed:
		return 1
	case a.hashed:
		return cmp.Compare(a.slot, b.slot)
	}
	return strings.Compare(a.name, b.name)
}

// acquireAll takes the sorted keys within the limit in all: several exclusive ones in one
// statement where the server can do that.
func (s *state) acquireAll(ctx context.Context, keys []Key, atMost time.Duration) error {
	if len(keys) == 0 {
		return nil
	}
	most := chunk
	if atMost > 0 && !s.server.Compound || s.server.OneByOne {
		most = 1
	}
	end, asked := time.Now().Add(atMost), s.asked(ctx, false, keys...)
	if err := s.ownWait(false, keys...); err != nil {
		return s.refused(ctx, asked, s.failed(fmt.Sprintf("lock all %d keys", len(keys)), err), keys...)
	}
	slow := s.slowly(ctx, true, keys...)
	snapshot := s.mayHaveSnapshot()
	given := make([]hold, 0, len(keys))
	for part := range partsOf(keys, most) {
		q := request{verb: "lock", shared: part[0].shared, atMost: atMost}
		if atMost > 0 {
			q.atMost = max(1, time.Until(end))
		}
		switch {
		case q.shared:
			q.verb = "lock shared"
		case len(part) > 1:
			q.verb = fmt.Sprintf("lock all %d keys from", len(part))
		}
		r := part[0].record()
		old, _ := s.holdOf(r)
		a := s.newAttempt(ctx, r, q, old, snapshot)
		if len(part) > 1 {
			a.keys = part
		}
		h, err := a.run(ctx, part[0].unmarked())
		if err != nil {
			asked.held = slow.End()
			return s.refused(ctx, asked, s.named(ctx, err, part...), keys...)
		}
		snapshot = snapshot || a.snapshot
		if a.keys == nil {
			given = append(given, h)
		}
		for _, key := range a.keys {
			h.grant = Grant{key: key, token: a.tokens[key.record()]}
			given = append(given, h)
		}
	}
	asked.held = slow.End()
	for _, h := range given {
		s.keep(ctx, h.grant.key.record(), h, asked)
	}
	return nil
}

// partsOf cuts sorted keys into what one statement takes: exclusive ones of one table, and
// no more than most, or a shared one.
func partsOf(keys []Key, most int) func(yield func([]Key) bool) {
	return func(yield func([]Key) bool) {
		for len(keys) > 0 {
			n := 1
			for n < len(keys) && n < most && keys[n].hashed == keys[0].hashed && !keys[n].shared && !keys[0].shared {
				n++
			}
			if !yield(keys[:n]) {
				return
			}
			keys = keys[n:]
		}
	}
}
