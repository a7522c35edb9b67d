// Package locktest stands in for the server in the tests of programs that use lockstep.
// It needs no server, no mock and no SQL.
//
// # The stand-in
//
// A [Memory] has the locks and the leases that one test shares. [Memory.Begin] returns
// the [Scope] of a transaction, [Memory.Manager] a [Manager] of leases, and
// [Memory.Quorum] the leases over several databases. Their methods do and return what
// those of [txlock.Scope], [lease.Manager] and [quorum.Manager] do. The clock of a Memory
// stands still until [Memory.Advance] moves it.
//
// # Assertions
//
// [WithoutAssertions] switches [txlock.AssertLocked] off, for tests of code that is
// called without its lock.
//
// Production code doesn't import this package. For tests that say which statements must
// be sent see package [github.com/dca00107/lockstep/txlock/lockmock].
package locktest
