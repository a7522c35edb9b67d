package lockmock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/txlock"
)

// Locks is what a mock expects of one scope: the Join that its maker has queued, and
// the calls whose expectations its methods queue, in the order in which the program
// makes them. The methods are named as those of txlock.Scope. An expectation is queued
// when its outcome is said: ExpectLock(key).Granted(7).
//
// As sqlmock does, they panic on what is a mistake of the test: an outcome that the call
// can't have, or a key that can't be locked.
type Locks struct {
	settings
	mock  sqlmock.Sqlmock
	scope *txlock.Scope
	stage *stage
	rows  *rows
	tx    txlock.Tx

	limited bool // a view of WaitAtMost
}

// ExpectJoin expects locksqlc.Join, lockgorm.Join or txlock.Join on an open
// transaction. It is for scopes on which several calls are made.
func ExpectJoin(mock sqlmock.Sqlmock, options ...Option) *Locks {
	return joined(mock, settingsOf(mock, options), "Join")
}

// joinFor is ExpectJoin that says what it is for.
func joinFor(mock sqlmock.Sqlmock, options []Option, verb string, keys ...txlock.Key) *Locks {
	return joined(mock, settingsOf(mock, options), "Join for "+naming(verb, keys...))
}

func joined(mock sqlmock.Sqlmock, s settings, what string) *Locks {
	l := &Locks{settings: s, mock: mock, rows: &rows{tokens: make(map[rowID]uint64), settings: s}}
	l.stage = &stage{answer: l.rows.answer}
	var join []txlock.JoinOption
	if s.nothingRead {
		join = append(join, txlock.NothingRead())
	}
	l.rehearse(what, nil, nil, func() (err error) {
		if l.tx, err = l.stage.transaction(); err != nil {
			return err
		}
		l.scope, err = txlock.Join(context.Background(), l.tx, join...)
		return err
	})
	return l
}

// WaitAtMost returns the view of the scope that Scope.WaitAtMost returns. It needs no
// statement. Under sqlmock.QueryMatcherEqual its LockAll can't be expected, and panics:
// it sends what is left of the limit.
func (l *Locks) WaitAtMost(d time.Duration) *Locks {
	view := *l
	view.scope, view.limited = l.scope.WaitAtMost(d), true
	return &view
}

// ExpectLock expects Scope.Lock.
func (l *Locks) ExpectLock(key txlock.Key) *ExpectedLock {
	return &ExpectedLock{l.one("Lock", key, l.scope.Lock)}
}

// ExpectRLock expects Scope.RLock.
func (l *Locks) ExpectRLock(key txlock.Key) *ExpectedLock {
	return &ExpectedLock{l.one("RLock", key, l.scope.RLock)}
}

// ExpectTryLock expects Scope.TryLock.
func (l *Locks) ExpectTryLock(key txlock.Key) *ExpectedTry {
	return &ExpectedTry{l.one("TryLock", key, l.scope.TryLock)}
}

// ExpectTryRLock expects Scope.TryRLock.
func (l *Locks) ExpectTryRLock(key txlock.Key) *ExpectedTry {
	return &ExpectedTry{l.one("TryRLock", key, l.scope.TryRLock)}
}

// ExpectLockAll expects Scope.LockAll, and lockgorm's plugin, which locks so what the
// models name.
func (l *Locks) ExpectLockAll(keys ...txlock.Key) *ExpectedLocks {
	if l.limited && l.verbatim {
		panic("lockmock: LockAll under WaitAtMost sends what is left of the limit, which a matcher that compares can't match: use sqlmock.QueryMatcherRegexp")
	}
	return &ExpectedLocks{expected{locks: l, what: naming("LockAll", keys...), keys: keys, loose: true, call: func() error {
		_, err := l.scope.LockAll(context.Background(), keys...)
		return err
	}}}
}

// ExpectRLockAll expects Scope.RLockAll.
func (l *Locks) ExpectRLockAll(keys ...txlock.Key) *ExpectedLocks {
	shared := make([]txlock.Key, len(keys))
	for i, key := range keys {
		shared[i] = txlock.Shared(key)
	}
	return l.ExpectLockAll(shared...)
}

// ExpectLockAny expects Scope.LockAny.
func (l *Locks) ExpectLockAny(keys ...txlock.Key) *ExpectedAny {
	return &ExpectedAny{expected{locks: l, what: naming("LockAny", keys...), keys: keys, call: func() error {
		_, err := l.scope.LockAny(context.Background(), keys...)
		return err
	}}}
}

// ExpectVersion expects Scope.Version, which returns this version.
func (l *Locks) ExpectVersion(key txlock.Key, version uint64) {
	l.rows.about = &version
	l.rehearse(naming("Version", key), []txlock.Key{key}, nil, func() error {
		_, err := l.scope.Version(context.Background(), key)
		return err
	})
	l.rows.about = nil
}

// ExpectCompareAndBump expects Scope.CompareAndBump with this version.
func (l *Locks) ExpectCompareAndBump(key txlock.Key, version uint64) *ExpectedCompare {
	what := fmt.Sprintf("CompareAndBump(%q, %d)", key, version)
	return &ExpectedCompare{expected{locks: l, what: what, keys: []txlock.Key{key}, version: &version, call: func() error {
		return l.scope.CompareAndBump(context.Background(), key, version)
	}}}
}

// ExpectVerify expects Scope.Verify, which finds the transaction open or else returns
// txlock.ErrTxDoomed.
func (l *Locks) ExpectVerify(open bool) {
	var want error
	if l.rows.over = !open; !open {
		want = txlock.ErrTxDoomed
	}
	l.rehearse(naming("Verify"), nil, want, func() error { return l.scope.Verify(context.Background()) })
	l.rows.over = false
}

func (l *Locks) one(verb string, key txlock.Key, call func(context.Context, txlock.Key) (txlock.Grant, error)) expected {
	return expected{locks: l, what: naming(verb, key), keys: []txlock.Key{key}, call: func() error {
		_, err := call(context.Background(), key)
		return err
	}}
}

// rehearse makes a call on the stage, and the mock expect what it has sent.
func (l *Locks) rehearse(what string, keys []txlock.Key, want error, do func() error) *call {
	return l.perform(what, keys, false, want, do)
}

func (l *Locks) perform(what string, keys []txlock.Key, loose bool, want error, do func() error) *call {
	l.stage.take()
	l.rows.begin(what, keys)
	if err := do(); want == nil && err != nil || !errors.Is(err, want) {
		panic(fmt.Sprintf("lockmock: %s can't be expected to return %v: what it returns is %v", what, want, err))
	}
	notes := l.stage.take()
	for i, n := range notes {
		notes[i].reply = l.rows.published(n)
	}
	c := newCall(l.mock, l.settings, what)
	c.expect(notes, keys, loose)
	return c
}

// The package-level functions are for programs that join and take one lock: Join and
// the call of its scope, or the function of package lockgorm of the same name.

// ExpectLock expects Join and Lock, or lockgorm.Lock.
func ExpectLock(mock sqlmock.Sqlmock, key txlock.Key, options ...Option) *ExpectedLock {
	return joinFor(mock, options, "Lock", key).ExpectLock(key)
}

// ExpectRLock expects Join and RLock, or lockgorm.Lock of a shared key.
func ExpectRLock(mock sqlmock.Sqlmock, key txlock.Key, options ...Option) *ExpectedLock {
	return joinFor(mock, options, "RLock", key).ExpectRLock(key)
}

// ExpectTryLock expects Join and TryLock.
func ExpectTryLock(mock sqlmock.Sqlmock, key txlock.Key, options ...Option) *ExpectedTry {
	return joinFor(mock, options, "TryLock", key).ExpectTryLock(key)
}

// ExpectTryRLock expects Join and TryRLock.
func ExpectTryRLock(mock sqlmock.Sqlmock, key txlock.Key, options ...Option) *ExpectedTry {
	return joinFor(mock, options, "TryRLock", key).ExpectTryRLock(key)
}

// ExpectLockAll expects Join and LockAll, or a write under lockgorm's
// plugin.
func ExpectLockAll(mock sqlmock.Sqlmock, keys []txlock.Key, options ...Option) *ExpectedLocks {
	return joinFor(mock, options, "LockAll", keys...).ExpectLockAll(keys...)
}

// ExpectRLockAll expects Join and RLockAll.
func ExpectRLockAll(mock sqlmock.Sqlmock, keys []txlock.Key, options ...Option) *ExpectedLocks {
	return joinFor(mock, options, "RLockAll", keys...).ExpectRLockAll(keys...)
}

// ExpectLockAny expects Join and LockAny.
func ExpectLockAny(mock sqlmock.Sqlmock, keys []txlock.Key, options ...Option) *ExpectedAny {
	return joinFor(mock, options, "LockAny", keys...).ExpectLockAny(keys...)
}
