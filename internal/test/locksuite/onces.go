package locksuite

import (
	"context"
	"errors"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// onces are the promises of Once.
var onces = []behaviour{
	{"Once is true for the first that commits, and false for all after it", oneIsFirst},
	{"Once waits for the first, and is the first after its ROLLBACK", waitsForFirst},
	{"Once tells another request by its fingerprint", tellsRequests},
	{"a key of Once is new when its time is over", expires},
	{"Once and the locks of a key don't exclude each other", apartFromLocks},
	{"Once asks again after a savepoint", onceAfterSavepoint},
	{"Once waits at most", onceAtMost},
	{"bad keys and options of Once are refused", refusesBadOnce},
}

// once asks and must get this answer.
func (s *session) once(key txlock.Key, want bool, options ...txlock.OnceOption) {
	s.e.Helper()
	first, err := s.Once(s.e.Context(), key, options...)
	if err != nil || first != want {
		s.e.Fatalf("Once(%v) = %t, %v, want %t", key, first, err, want)
	}
}

func oneIsFirst(e *env) {
	key := e.key()
	first := e.begin()
	first.once(key, true)
	first.once(key, false) // a message that comes twice in one transaction
	first.commit()
	later := e.begin()
	later.once(key, false)
	later.once(e.apart(), true)
	later.commit()
	e.begin().once(key, false)
}

func waitsForFirst(e *env) {
	for _, commits := range []bool{true, false} {
		key := e.key()
		err := afterFirst(e, key, commits)
		for !commits && errors.Is(err, txlock.ErrDeadlock) { // see TestOncesOfNeighbours
			err = afterFirst(e, key, commits)
		}
		e.wants(err, nil)
		third := e.begin()
		third.once(key, false)
		third.commit()
	}
}

// afterFirst lets a second transaction wait for the first, and returns the error of its Once.
func afterFirst(e *env, key txlock.Key, commits bool) error {
	e.Helper()
	first, second := e.begin(), e.begin()
	first.once(key, true)
	var isFirst bool
	answered := second.waiting(func() (_ txlock.Grant, err error) {
		isFirst, err = second.Once(e.Context(), key)
		return txlock.Grant{}, err
	})
	if commits {
		first.commit()
	} else {
		e.wants(first.Rollback(), nil)
	}
	if err := (<-answered).err; err != nil {
		return err
	}
	if isFirst == commits {
		e.Errorf("the second is told %t, the first has committed: %t", isFirst, commits)
	}
	second.commit()
	return nil
}

func tellsRequests(e *env) {
	key := e.key()
	pay := func(text string) txlock.OnceOption { return txlock.Fingerprint([]byte(text)) }
	first := e.begin()
	first.once(key, true, pay("10 to A"))
	first.commit()
	s := e.begin()
	s.once(key, false, pay("10 to A"))
	_, err := s.Once(e.Context(), key, pay("20 to A"))
	e.wants(err, txlock.ErrMismatch)
	if txlock.Retryable(err) {
		e.Errorf("retryable: %v", err)
	}
	s.once(key, false) // without a fingerprint nobody knows
	e.wants(s.Verify(e.Context()), nil)
	s.commit()
	e.begin().once(key, false, pay("10 to A"))

	none := e.apart()
	before := e.begin()
	before.once(none, true)
	before.commit()
	e.begin().once(none, false, pay(""))
}

func expires(e *env) {
	key, kept := e.key(), e.apart()
	const keep = 20 * time.Millisecond
	first := e.begin()
	first.once(key, true, txlock.Keep(keep), txlock.Fingerprint([]byte("one")))
	first.once(kept, true)
	first.commit()
	time.Sleep(2 * keep)
	second := e.begin()
	second.once(key, true, txlock.Fingerprint([]byte("two")))
	second.once(kept, false)
	e.wants(second.Rollback(), nil)
	third := e.begin()
	third.once(key, true, txlock.Fingerprint([]byte("three")))
	third.commit()
	last := e.begin()
	last.once(key, false, txlock.Fingerprint([]byte("three")))
	_, err := last.Once(e.Context(), key, txlock.Fingerprint([]byte("one")))
	e.wants(err, txlock.ErrMismatch)
}

func apartFromLocks(e *env) {
	key := e.key()
	holder, s := e.begin(), e.begin()
	holder.lock(key)
	s.once(key, true)
	e.busy(key)
	e.wants(holder.Rollback(), nil)
	e.free(key)
	if _, held := s.Held(key); held {
		e.Error("Held after Once")
	}
	s.commit()
}

func onceAfterSavepoint(e *env) {
	key, before := e.key(), e.apart()
	s := e.begin()
	s.once(before, true)
	e.wants(s.Savepoint(e.Context(), "before_once"), nil)
	s.once(key, true)
	e.wants(s.RollbackTo(e.Context(), "before_once"), nil)
	s.once(before, false)
	s.once(key, true)
	s.commit()
	again := e.begin()
	again.once(key, false)
	again.once(before, false)
	again.commit()

	undone := e.key()
	other := e.begin()
	other.once(before, false)
	e.wants(other.Savepoint(e.Context(), "before_once"), nil)
	other.once(undone, true)
	e.wants(other.RollbackTo(e.Context(), "before_once"), nil)
	other.commit()
	e.begin().once(undone, true)
}

func onceAtMost(e *env) {
	const limit = 50 * time.Millisecond
	key, table := e.key(), e.numbers()
	first, s := e.begin(), e.begin()
	first.once(key, true)
	e.wants(s.Exec(e.Context(), "UPDATE "+table+" SET n = 3"), nil)
	began := time.Now()
	_, err := s.WaitAtMost(limit).Once(e.Context(), key)
	e.wants(err, txlock.ErrWaitTimeout)
	if waited := time.Since(began); waited < limit {
		e.Errorf("gave up after %v", waited)
	}
	_, err = s.WaitAtMost(-limit).Once(e.Context(), key)
	e.wants(err, txlock.ErrInvalidOption)
	free, err := s.WaitAtMost(time.Minute).Once(e.Context(), e.apart())
	if !free || err != nil {
		e.Errorf("Once of a free key = %t, %v", free, err)
	}
	first.commit()
	told, err := s.WaitAtMost(time.Minute).Once(e.Context(), key)
	if told || err != nil {
		e.Errorf("Once after the first = %t, %v", told, err)
	}
	s.commit()
	if n := e.begin().read(table); n != 3 {
		e.Errorf("the write before the timeout is %d after COMMIT, want 3", n)
	}
}

func refusesBadOnce(e *env) {
	s := e.begin()
	for _, bad := range []txlock.Key{{}, txlock.Named(""), e.kind.family.Key(0)} {
		_, err := s.Once(e.Context(), bad)
		e.wants(err, txlock.ErrInvalidKey)
	}
	key := e.key()
	for _, d := range []time.Duration{0, -time.Second} {
		_, err := s.Once(e.Context(), key, txlock.Keep(d))
		e.wants(err, txlock.ErrInvalidOption)
	}
	ended, cancel := context.WithCancel(e.Context())
	cancel()
	_, err := e.begin().Once(ended, key)
	e.wants(err, context.Canceled)
	s.once(key, true)
	e.wants(s.Rollback(), nil)
	_, err = s.Once(e.Context(), key)
	e.wants(err, txlock.ErrNoTransaction)
}
