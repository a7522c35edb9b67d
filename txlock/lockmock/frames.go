package lockmock

import (
	"context"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/internal/inside"
	"github.com/dca00107/lockstep/txlock"
)

// inner is what package txlock does for this one.
var inner = inside.LockOf[*txlock.Scope, txlock.Key, txlock.Grant, txlock.PoolOption]()

// ExpectRun expects locksqlc.Run, RunTx or lockgorm.Transaction up to the call of its
// function: begin, join, and where there are keys the locks of all. Where it says that
// they fail it expects the rollback, too. After Deadlocks and Stale the library runs the
// transaction again: queue another ExpectRun.
//
// What the function sends is expected next, and then Transaction.Commits or RollsBack.
func ExpectRun(mock sqlmock.Sqlmock, keys []txlock.Key, options ...Option) *ExpectedRun {
	locks := began(mock, options, naming("Run", keys...)).ExpectLockAll(keys...)
	locks.failed = func() { (&Transaction{locks.locks}).RollsBack() }
	return &ExpectedRun{locks.expected}
}

// began expects the beginning of a transaction and Join.
func began(mock sqlmock.Sqlmock, options []Option, what string) *Locks {
	s := settingsOf(mock, options)
	s.nothingRead = true
	newCall(mock, s, "Begin for "+what).add(mock.ExpectBegin())
	return joined(mock, s, "Join for "+what)
}

// ExpectedRun is the beginning of a Run that is expected.
type ExpectedRun struct{ expected }

// Granted gives the locks with a token for each key, in the order of the keys.
func (e *ExpectedRun) Granted(tokens ...uint64) *Transaction {
	if len(e.keys) > 0 || len(tokens) > 0 {
		e.granted(tokens...)
	}
	return &Transaction{e.locks}
}

// TimesOut lets the wait end without the locks: txlock.ErrWaitTimeout.
func (e *ExpectedRun) TimesOut() { e.timesOut() }

// Transaction is a transaction of Run that is expected to end.
type Transaction struct{ locks *Locks }

// Commits expects that the function has returned nil, and the transaction is asked for
// a last time and committed. The result may be given an error: WillReturnError.
func (t *Transaction) Commits() *sqlmock.ExpectedCommit {
	c := t.locks.rehearse("Commit", nil, nil, func() error {
		_, err := inner.Confirm(context.Background(), t.locks.scope)
		return err
	})
	commit := t.locks.mock.ExpectCommit()
	c.add(commit)
	return commit
}

// RollsBack expects that the function has returned an error.
func (t *Transaction) RollsBack() *sqlmock.ExpectedRollback {
	rollback := t.locks.mock.ExpectRollback()
	newCall(t.locks.mock, t.locks.settings, "Rollback").add(rollback)
	return rollback
}

// ExpectOptimistic expects locksqlc.Optimistic, OptimisticTx or lockgorm.Optimistic up to
// the call of its function: begin, join, and the version of the key. What the function
// sends is expected next, and then what becomes of it: one of the methods of the result.
// After Conflicts and Deadlocks the library runs the transaction again: queue another
// ExpectOptimistic.
func ExpectOptimistic(mock sqlmock.Sqlmock, key txlock.Key, version uint64, options ...Option) *ExpectedOptimistic {
	locks := began(mock, options, naming("Optimistic", key))
	locks.ExpectVersion(key, version)
	compare := locks.ExpectCompareAndBump(key, version)
	compare.failed = func() { (&Transaction{locks}).RollsBack() }
	return &ExpectedOptimistic{compare}
}

// ExpectedOptimistic is an Optimistic whose function runs. Its methods say what becomes
// of the comparison after the function, which has returned nil; where that fails they
// expect the rollback, too.
type ExpectedOptimistic struct{ *ExpectedCompare }

// Granted finds the version unchanged: the transaction is committed with a token, the new
// version. The result of Commits may be given an error.
func (e *ExpectedOptimistic) Granted(token uint64) *Transaction {
	e.granted(token)
	return &Transaction{e.locks}
}

// RollsBack expects that the function has returned an error, and nothing is compared.
func (e *ExpectedOptimistic) RollsBack() *sqlmock.ExpectedRollback {
	return (&Transaction{e.locks}).RollsBack()
}

// ExpectDo expects locksqlc.Do up to the call of its function: BEGIN, join and the
// lock. Where it says that the lock fails it expects the end, too. What the function
// sends is expected next, and then Work.Ends.
func ExpectDo(mock sqlmock.Sqlmock, key txlock.Key, options ...Option) *ExpectedDo {
	return &ExpectedDo{doing(mock, "Do", key, options, func(l *Locks) expected { return l.ExpectLock(key).expected })}
}

// ExpectTryDo expects locksqlc.TryDo, as ExpectDo expects Do.
func ExpectTryDo(mock sqlmock.Sqlmock, key txlock.Key, options ...Option) *ExpectedTryDo {
	return &ExpectedTryDo{doing(mock, "TryDo", key, options, func(l *Locks) expected { return l.ExpectTryLock(key).expected })}
}

func doing(mock sqlmock.Sqlmock, verb string, key txlock.Key, options []Option, lock func(*Locks) expected) work {
	s, what := settingsOf(mock, options), naming(verb, key)
	s.nothingRead = true
	newCall(mock, s, "Begin for "+what).expect([]note{{verb: exec, query: "BEGIN"}}, nil, false)
	locks := joined(mock, s, "Join for "+what)
	locks.rehearse(what, nil, nil, func() error { return inner.OnePrimary(context.Background(), locks.scope) })
	w := work{lock(locks), &Work{locks, what}}
	w.failed = w.then.Ends
	return w
}

// work is the beginning of a Do or TryDo.
type work struct {
	expected
	then *Work
}

// Granted gives the lock with a token.
func (w work) Granted(token uint64) *Work {
	w.granted(token)
	return w.then
}

// ExpectedDo is the beginning of a Do that is expected.
type ExpectedDo struct{ work }

// TimesOut lets the wait end without the lock: txlock.ErrWaitTimeout.
func (e *ExpectedDo) TimesOut() { e.timesOut() }

// ExpectedTryDo is the beginning of a TryDo that is expected.
type ExpectedTryDo struct{ work }

// Busy refuses the lock, which somebody else holds: txlock.ErrBusy.
func (e *ExpectedTryDo) Busy() { e.busy() }

// Work is a Do or TryDo whose function runs.
type Work struct {
	locks *Locks
	what  string
}

// Ends expects the COMMIT that gives the lock back when the function has returned.
func (w *Work) Ends() {
	newCall(w.locks.mock, w.locks.settings, "the end of "+w.what).expect([]note{{verb: exec, query: "COMMIT"}}, nil, false)
}
