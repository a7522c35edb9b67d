// Package lockmock says what a mock must be sent, and how it answers, for the tests of
// programs that use lockstep. The mock is one of [github.com/DATA-DOG/go-sqlmock].
//
// Nobody has to know or to copy the SQL of lockstep. A test names the calls that its
// program makes, and what comes of them:
//
//	run := lockmock.ExpectRun(mock, nil).Granted()
//	lockmock.ExpectLock(mock, Orders.Key(42)).Granted(7)
//	mock.ExpectExec("UPDATE orders").WillReturnResult(sqlmock.NewResult(0, 1))
//	run.Commits()
//
// The library itself makes the statements, because each expectation rehearses its call.
// So they are always the statements that this version of the library sends on a plain
// pool, which the pool of a mock is.
//
// Production code doesn't import this package. For a stand-in without any SQL see
// package [github.com/dca00107/lockstep/txlock/locktest].
//
// # Locks
//
// [ExpectRun], [ExpectOptimistic], [ExpectDo] and [ExpectTryDo] are for whole transactions.
// [ExpectLock], [ExpectRLock], [ExpectTryLock], [ExpectTryRLock], [ExpectLockAll],
// [ExpectRLockAll] and [ExpectLockAny] are for a program that joins a transaction and takes one lock. For
// several calls on one scope begin with [ExpectJoin].
//
// [ExpectOnce] is for Once and OnceValue.
//
// An expectation is complete when its outcome is said: Granted, Busy, TimesOut,
// Deadlocks, and so on. An outcome that the call can't have is a mistake of the test, and
// panics, as wrong calls of sqlmock do.
//
// # Leases
//
// [ExpectLeases] is for the calls of one [lease.Manager]. [ExpectQuorum] is for those of
// one [github.com/dca00107/lockstep/txlock/quorum.Manager].
//
// # Servers and matchers
//
// The default is a MySQL server; [Server] chooses another. Expectations work with
// sqlmock's matchers QueryMatcherRegexp and QueryMatcherEqual, and in any order; for a
// matcher of your own see [Verbatim].
//
// # When a test fails
//
// [ExpectationsWereMet] names the calls that are expected and were not made. What came
// instead is in the error of the program, which begins with the call and its key, such
// as:
//
//	lock "order:8": ExecQuery ..., arguments do not match: matcher lockmock.expectedKey ...
//
// The mock's own messages show the statement that is expected. With QueryMatcherRegexp
// it begins with the call that sends it.
//
// The pool of a mock doesn't know which locks are held. Code that calls
// [txlock.AssertLocked] is tested under the context of
// [github.com/dca00107/lockstep/txlock/locktest.WithoutAssertions].
package lockmock
