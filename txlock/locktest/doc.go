// Package locktest stands in for the server in the tests of programs that use lockstep.
// It needs no server, no mock and no SQL.
//
// # Transaction locks
//
// A [Memory] is what one test has in place of a server. [Memory.Begin] returns the [Scope]
// of a transaction, whose methods do and return what those of [txlock.Scope] do. It has no
// data: what a program reads and writes belongs to the test, which may tell the Scope of it
// by [Scope.Snapshot] and [Scope.Savepoint].
//
// # Leases
//
// [Memory.DB] is a pool on which lease.NewManager makes a real manager, whose rows are in
// the Memory: it renews, waits, observes and loses leases as on a database, and so does a
// quorum.Manager over the managers of several memories. Code that is given a *sql.DB and
// makes its managers itself needs no change. A lease is kept while its manager lives. To
// lose one, take it away by ForceRelease of another manager, give it a MaxLifetime, or cut
// the managers off by [Memory.Disconnect] until its time is over.
//
// A Memory knows no other time than package time. In the bubble of testing/synctest that
// passes at once, and synctest.Wait returns when all who wait do:
//
//	func TestLost(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			memory := locktest.NewMemory()
//			defer memory.DB().Close()
//			leases, err := lease.NewManager(memory.DB())
//			if err != nil {
//				t.Fatal(err)
//			}
//			defer leases.Close(context.Background())
//
//			l, err := leases.Acquire(t.Context(), txlock.Named("job"))
//			if err != nil {
//				t.Fatal(err)
//			}
//			time.Sleep(time.Hour) // it is renewed
//			if !l.Valid() {
//				t.Error(l.Err())
//			}
//			memory.Disconnect()
//			<-l.Done()
//			if !errors.Is(l.Err(), txlock.ErrLost) {
//				t.Error(l.Err())
//			}
//		})
//	}
//
// # What it isn't
//
// The pool takes no SQL, so neither does the transaction that a lease guards. The Scope of
// [Memory.Begin] and the transactions of [Memory.DB] know nothing of each other. The pool
// is never used up, and there is one server, which loses nothing: what a program does when
// connections are few, or a server comes back without its data, is shown by a server.
//
// # Assertions
//
// [WithoutAssertions] switches [txlock.AssertLocked] off, for tests of code that is
// called without its lock.
//
// Production code doesn't import this package. For tests that say which statements must
// be sent see package [github.com/dca00107/lockstep/txlock/lockmock].
package locktest
