package locksuite

import (
	"time"

	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// refusesSharedAll tells that a set with a shared key is refused, and none of it granted.
func (e *env) refusesSharedAll(exclusive, shared txlock.Key) {
	e.Helper()
	s := e.begin()
	_, err := s.LockAll(e.Context(), exclusive, txlock.Shared(shared))
	e.wants(err, schema.ErrMultiPrimary)
	_, err = s.RLockAll(e.Context(), shared)
	e.wants(err, schema.ErrMultiPrimary)
	s.lock(shared)
	s.commit()
}

func locksMixed(e *env) {
	a, b, c := e.key(), e.key(), e.key()
	if e.cluster {
		e.refusesSharedAll(a, b)
		return
	}
	for _, key := range []txlock.Key{a, b, c} {
		e.made(key)
	}
	s := e.begin()
	grants, err := s.LockAll(e.Context(), txlock.Shared(c), b, txlock.Shared(a), txlock.Shared(b))
	e.wants(err, nil)
	for i, want := range []struct {
		key    txlock.Key
		shared bool
	}{{c, true}, {b, false}, {a, true}, {b, false}} {
		if grants[i].Key() != want.key || grants[i].Shared() != want.shared {
			e.Errorf("grant %d is %+v, want %v, shared %t", i, grants[i], want.key, want.shared)
		}
	}
	if grants[1] != grants[3] {
		e.Errorf("one key is granted as %+v and as %+v", grants[1], grants[3])
	}
	for _, key := range []txlock.Key{a, b, c} {
		e.busy(key)
	}
	other := e.begin()
	_, err = other.RLockAll(e.Context(), a, c)
	e.wants(err, nil)
	_, err = other.TryRLock(e.Context(), b)
	e.wants(err, txlock.ErrBusy)
	e.wants(other.Rollback(), nil)
	_, err = s.LockAll(e.Context(), txlock.Shared(b), a)
	e.wants(err, txlock.ErrUpgrade)
	grants, err = s.LockAll(e.Context(), txlock.Shared(b), txlock.Shared(a))
	e.wants(err, nil)
	if grants[0].Shared() || !grants[1].Shared() {
		e.Errorf("taken again as %+v", grants)
	}
	_, err = s.Lock(e.Context(), txlock.Shared(a))
	e.wants(err, txlock.ErrInvalidKey)
	s.commit()
	for _, key := range []txlock.Key{a, b, c} {
		e.free(key)
	}
}

func locksMixedAtMost(e *env) {
	a, b := e.key(), e.apart()
	if e.cluster {
		e.refusesSharedAll(a, b)
		return
	}
	e.made(a)
	for _, keys := range [][]txlock.Key{{a, txlock.Shared(b)}, {txlock.Shared(a), b}} {
		holder, waiter := e.begin(), e.begin()
		holder.lock(b)
		_, err := waiter.WaitAtMost(100*time.Millisecond).LockAll(e.Context(), keys...)
		e.wants(err, txlock.ErrWaitTimeout)
		if _, held := waiter.Held(a); held {
			e.Error("a part of the keys is granted")
		}
		e.wants(waiter.Verify(e.Context()), nil)
		e.wants(waiter.Rollback(), nil)
		e.wants(holder.Rollback(), nil)
	}
	e.free(a)
}

func sharesAll(e *env) {
	a, b := e.key(), e.key()
	if e.cluster {
		e.refusesSharedAll(a, b)
		return
	}
	e.made(a)
	e.made(b)
	one, other := e.begin(), e.begin()
	for _, s := range []*session{one, other} {
		grants, err := s.RLockAll(e.Context(), b, txlock.Shared(a))
		e.wants(err, nil)
		if len(grants) != 2 || grants[0].Key() != b || grants[1].Key() != a || !grants[0].Shared() || !grants[1].Shared() {
			e.Fatalf("grants %+v", grants)
		}
	}
	one.commit()
	e.busy(a)
	e.busy(b)
	other.commit()
	e.free(a)
	_, err := e.begin().RLockAll(e.Context())
	e.wants(err, txlock.ErrInvalidKey)
}
