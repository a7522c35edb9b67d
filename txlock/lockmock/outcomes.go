package lockmock

import (
	"fmt"

	"github.com/dca00107/lockstep/txlock"
)

// expected is a call that takes locks. One of its methods says what becomes of it, and
// queues its statements.
type expected struct {
	locks *Locks
	what  string
	keys  []txlock.Key
	loose bool
	call  func() error
	// version is what CompareAndBump compares with.
	version *uint64
	// failed queues what follows a failure, where that is not the program's own.
	failed func()
}

// Deadlocks makes the server roll the transaction back: txlock.ErrDeadlock.
func (e expected) Deadlocks() {
	e.fails(txlock.ErrDeadlock, func(rowID) error { return serverError(deadlock, e.what+" is the victim of a deadlock") })
}

// Stale makes the lock newer than what the transaction has read:
// txlock.ErrStaleSnapshot. It can't be where nothing was read.
func (e expected) Stale() {
	e.locks.rows.stale = true
	e.fails(txlock.ErrStaleSnapshot, nil)
	e.locks.rows.stale = false
}

// Fails makes the statement that takes the lock fail with an error of the driver,
// such as a *mysql.MySQLError: the call returns what it means.
func (e expected) Fails(err error) {
	e.fails(err, func(rowID) error { return err })
}

func (e expected) timesOut() {
	e.fails(txlock.ErrWaitTimeout, func(rowID) error { return e.locks.rows.timeout(e.what) })
}

func (e expected) busy() {
	e.fails(txlock.ErrBusy, func(rowID) error { return e.locks.rows.busy(e.what) })
}

func (e expected) fails(want error, refuse func(rowID) error) {
	e.locks.rows.refuse = refuse
	e.perform(want)
	e.locks.rows.refuse = nil
	if e.failed != nil {
		e.failed()
	}
}

func (e expected) granted(tokens ...uint64) {
	if len(tokens) != len(e.keys) {
		panic(fmt.Sprintf("lockmock: %s is granted %d tokens: it takes one for each of its %d keys", e.what, len(tokens), len(e.keys)))
	}
	for i, key := range e.keys {
		e.locks.rows.next(key, tokens[i])
	}
	e.perform(nil)
	for i, key := range e.keys {
		e.locks.rows.tokens[rowOf(key)] = tokens[i]
	}
}

func (e expected) perform(want error) {
	e.locks.rows.about = e.version
	defer func() { e.locks.rows.about = nil }()
	e.locks.perform(e.what, e.keys, e.loose, want, e.call)
}

// ExpectedLock is a Lock or RLock that is expected.
type ExpectedLock struct{ expected }

// Granted gives the lock with a token: for RLock that of the last exclusive grant.
func (e *ExpectedLock) Granted(token uint64) { e.granted(token) }

// TimesOut lets the wait end without the lock: txlock.ErrWaitTimeout.
func (e *ExpectedLock) TimesOut() { e.timesOut() }

// ExpectedTry is a TryLock or TryRLock that is expected.
type ExpectedTry struct{ expected }

// Granted gives the lock with a token.
func (e *ExpectedTry) Granted(token uint64) { e.granted(token) }

// Busy refuses the lock, which somebody else holds: txlock.ErrBusy.
func (e *ExpectedTry) Busy() { e.busy() }

// ExpectedCompare is a CompareAndBump that is expected.
type ExpectedCompare struct{ expected }

// Granted finds the version unchanged, and gives the lock with a token, the new version.
func (e *ExpectedCompare) Granted(token uint64) { e.granted(token) }

// Conflicts finds another version: txlock.ErrConflict.
func (e *ExpectedCompare) Conflicts() {
	e.locks.rows.changed = true
	e.fails(txlock.ErrConflict, nil)
	e.locks.rows.changed = false
}

// TimesOut lets the wait end without the lock: txlock.ErrWaitTimeout.
func (e *ExpectedCompare) TimesOut() { e.timesOut() }

// ExpectedLocks is a LockAll or RLockAll that is expected.
type ExpectedLocks struct{ expected }

// Granted gives the locks with a token for each key, in the order of the keys.
func (e *ExpectedLocks) Granted(tokens ...uint64) { e.granted(tokens...) }

// TimesOut lets the wait end without the locks: txlock.ErrWaitTimeout.
func (e *ExpectedLocks) TimesOut() { e.timesOut() }

// ExpectedAny is a LockAny that is expected.
type ExpectedAny struct{ expected }

// Granted gives the lock of one of the keys with a token. Those before it are busy.
func (e *ExpectedAny) Granted(key txlock.Key, token uint64) {
	e.locks.rows.next(key, token)
	e.locks.rows.refuse = func(at rowID) error {
		if at == rowOf(key) {
			return nil
		}
		return e.locks.rows.busy(e.what)
	}
	e.perform(nil)
	e.locks.rows.refuse = nil
	e.locks.rows.tokens[rowOf(key)] = token
}

// Busy refuses all of them: txlock.ErrBusy.
func (e *ExpectedAny) Busy() { e.busy() }
