// Package locktest is a test kit: a server in memory for the tests of programs that use
// lockstep. It needs no database.
//
// [Open] makes a [Kit], whose pool answers the statements of lockstep from memory and hands those
// of the program to a mock, or to any other database:
//
//	program, mock, err := sqlmock.New()
//	...
//	kit := locktest.Open(t, program)
//	mock.ExpectBegin()
//	mock.ExpectExec("UPDATE orders").WillReturnResult(sqlmock.NewResult(0, 1))
//	mock.ExpectCommit()
//	if err := pay(ctx, kit.DB(), 42); err != nil {
//		t.Error(err)
//	}
//	kit.Before(Orders.Key(42), "UPDATE orders")
//
// Everything else is real: txlock.Scope, lease.Manager, job.Jobs, elect.Election, locksqlc and
// the plugin of lockgorm run on [Kit.DB] as they do in production. So a test expects no
// statements of locks, and can't expect wrong ones.
//
// # What happened
//
// [Kit.Before] fails the test if a statement ran without a lock, [Kit.Locked] reports whether a
// key was locked, and [Kit.Log] lists all that happened in order.
//
// # Faults
//
// [Kit.FailLock] and [Kit.FailStatement] make a call fail with a [Fault]. The program gets the
// errors that the servers give.
//
// # Time
//
// The Kit has no other clock than package time. In the bubble of testing/synctest the TTLs of
// leases, the limits of waits and the schedules of jobs pass at once.
//
// # Limits
//
// A Kit does as MariaDB: a stale snapshot ends the transaction, and WaitAtMost has microseconds.
// It makes the row of a new key at once, as production does if a lock begins the transaction. It
// knows the program's data only from the statements: it neither waits for the rows of the
// program nor compares them. The program's database sees a transaction when its first statement
// comes there: one that only locks isn't sent. A statement of lockstep that the Kit doesn't
// know, such as those of packages schema and shards, fails the test with its text.
//
// The transactions of leases know no savepoints: after ROLLBACK TO SAVEPOINT what
// Manager.AcquireTx wrote before it stays.
package locktest
