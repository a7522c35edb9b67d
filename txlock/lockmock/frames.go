package lockmock

import (
	"context"
	"fmt"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/txlock"
)

// ExpectRun expects locksqlc.Run, RunTx or lockgorm.Transaction up to the call of its
// function: begin, join, and where there are keys the locks of all. Where it says that
// they fail it expects the rollback, too. After Deadlocks and Stale the library runs the
// transaction again: queue another ExpectRun.
//
// What the function sends is expected next, and then Transaction.Commits or RollsBack.
func ExpectRun(mock sqlmock.Sqlmock, keys []txlock.Key, options ...Option) *ExpectedRun {
	s := settingsOf(mock, options)
	s.nothingRead = true
	mock.ExpectBegin()
	locks := joined(mock, s, fmt.Sprintf("Run(%q)", keys)).ExpectLockAll(keys...)
	locks.failed = func() { mock.ExpectRollback() }
	return &ExpectedRun{locks.expected}
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
	t.locks.rehearse("Commit", nil, nil, func() error { return t.locks.scope.Confirm(context.Background()) })
	return t.locks.mock.ExpectCommit()
}

// RollsBack expects that the function has returned an error.
func (t *Transaction) RollsBack() *sqlmock.ExpectedRollback { return t.locks.mock.ExpectRollback() }

// ExpectOptimistic expects locksqlc.Optimistic, OptimisticTx or lockgorm.Optimistic up to
// the call of its function: begin, join, and the version of the key. What the function
// sends is expected next, and then what becomes of it: one of the methods of the result.
// After Conflicts and Deadlocks the library runs the transaction again: queue another
// ExpectOptimistic.
func ExpectOptimistic(mock sqlmock.Sqlmock, key txlock.Key, version uint64, options ...Option) *ExpectedOptimistic {
	s := settingsOf(mock, options)
	s.nothingRead = true
	mock.ExpectBegin()
	locks := joined(mock, s, fmt.Sprintf("Optimistic(%q)", key))
	locks.ExpectVersion(key, version)
	compare := locks.ExpectCompareAndBump(key, version)
	compare.failed = func() { mock.ExpectRollback() }
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
	return e.locks.mock.ExpectRollback()
}

// ExpectDo expects locksqlc.Do up to the call of its function: BEGIN, join and the
// lock. Where it says that the lock fails it expects the end, too. What the function
// sends is expected next, and then Work.Ends.
func ExpectDo(mock sqlmock.Sqlmock, key txlock.Key, options ...Option) *ExpectedDo {
	s := settingsOf(mock, options)
	s.nothingRead = true
	mock.ExpectExec(s.text("BEGIN", false)).WillReturnResult(sqlmock.NewResult(0, 0))
	locks := joined(mock, s, fmt.Sprintf("Do(%q)", key))
	locks.rehearse("Do", nil, nil, func() error { return locks.scope.OnePrimary(context.Background()) })
	e := &ExpectedDo{locks.ExpectLock(key).expected}
	e.failed = (&Work{e.locks}).Ends
	return e
}

// ExpectedDo is the beginning of a Do that is expected.
type ExpectedDo struct{ expected }

// Granted gives the lock with a token.
func (e *ExpectedDo) Granted(token uint64) *Work {
	e.granted(token)
	return &Work{e.locks}
}

// TimesOut lets the wait end without the lock: txlock.ErrWaitTimeout.
func (e *ExpectedDo) TimesOut() { e.timesOut() }

// Work is a Do whose function runs.
type Work struct{ locks *Locks }

// Ends expects the COMMIT that gives the lock back when the function has returned.
func (w *Work) Ends() {
	w.locks.mock.ExpectExec(w.locks.text("COMMIT", false)).WillReturnResult(sqlmock.NewResult(0, 0))
}
