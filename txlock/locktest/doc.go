// Package locktest is a test kit: a server in memory for the tests of programs that use
// lockstep. It needs no database.
//
// [Open] makes a [Kit], whose pool answers the statements of lockstep from memory and hands those
// of the program to a mock of sqlmock, or to any other database. Everything else is the real code:
// txlock.Scope, lease.Manager, job.Jobs, elect.Election, locksqlc and the plugin of lockgorm run on
// [Kit.DB] as they do in production. So a test never has to expect lockstep's statements, and can't
// get them wrong.
//
// [Kit.Before] fails the test if a statement ran without a lock, [Kit.Locked] reports whether a key
// was locked, and [Kit.Log] lists everything that happened, in order. [Kit.FailLock] and
// [Kit.FailStatement] make a call fail with a [Fault]: the program gets the same errors as from a
// server. The Kit's only clock is package time. In the bubble of testing/synctest, TTLs of leases,
// limits of waits and schedules of jobs take no real time.
//
// # Limits
//
// A Kit behaves like MariaDB: a stale snapshot ends the transaction, and WaitAtMost is exact to the
// microsecond. It creates the row of a new key at once, as production does if a lock begins the
// transaction. It sees the program's data only in the statements: it neither waits for the
// program's rows nor compares them, and a statement takes the snapshot unless its text shows that it
// doesn't. A text of several statements isn't read. A statement with a table of lockstep that the Kit
// doesn't know, such as one of package schema, fails the test with its text.
//
// A transaction is begun in the program's database when its first statement gets there, so one that only
// locks is never begun there. BEGIN, COMMIT and ROLLBACK sent as statements reach it as BeginTx, Commit and
// Rollback, so WITH CONSISTENT SNAPSHOT has no effect on its rows. A connection of that database returns to
// its pool with the Kit's, or when the last statement prepared on it is closed. Its temporary tables and
// variables stay, also after a LostConnection, unless SetMaxIdleConns(0) of that pool closes it.
//
// In a Kit, leases don't support savepoints: what Manager.AcquireTx has written stays after a
// ROLLBACK TO SAVEPOINT. A circle of waits for a lock and for a lease isn't found, and ends with the
// limit of a wait. Scope.LockWith locks when it is called, so a test doesn't notice a statement that
// is sent without its context. Isolation levels and access modes are those of sql.TxOptions: SET
// isn't read, XA begins no transaction, and USE always chooses another database. LockAll of named,
// hashed and shared keys sends several statements: if one fails, the keys of those before it count
// as locked.
package locktest
