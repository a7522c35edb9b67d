// Package lease takes named locks that outlive transactions, on the database that a
// program already has.
//
// # What a lease is
//
// A lease is a lock with an owner, a TTL (TTL) and a fencing token. While its
// holder lives, its [Manager] renews it in the background. When the holder has died, the
// lease is free after one TTL.
//
//	m, err := lease.NewManager(db)
//	...
//	err = m.Do(ctx, key, func(ctx context.Context, l *lease.Lease) error {
//		...
//	})
//
// [Manager.Do] acquires a lease, calls a function and releases the lease. For work that is
// not one function, [Manager.Acquire] waits for the lease and [Manager.TryAcquire] doesn't;
// both return a [Lease], which [Lease.Release] releases. [Manager.TryDo] is Do that doesn't
// wait, and [Manager.AcquireAll] takes several leases or none. [HoldAtLeast] keeps a key held
// when quick work is done. An owner can re-enter its own lease: see [WithOwner].
//
// # Renewal and loss
//
// A lease is renewed when a third of its TTL is over (see [RenewEvery]). It is lost if no
// renewal reaches the server in time, if its [MaxLifetime] is over, if another process takes
// it over under the same owner's name, or if [Manager.ForceRelease] releases it. Then
// [Lease.Err] returns txlock.ErrLost, [Lease.Done] is closed, and the context of Do ends. The
// holder counts the TTL from before its request, so it stops before the server lets
// anybody else in.
//
// # Guard and fencing
//
// A holder that was paused may not know for a moment that its lease is over. A write that
// must not come too late goes into a transaction that calls [Lease.Guard]: that can be
// committed only while the lease is held. A system outside of the database compares
// [Lease.Token], which rises with every grant, and refuses a lower one.
//
// # Leases inside a transaction
//
// [Manager.AcquireTx] takes a lease in the caller's transaction: the lease and the data are
// committed together, or neither is.
//
// # Shared leases and semaphores
//
// [Manager.AcquireShared] takes a lease together with other readers, and excludes those who
// call Acquire. [Lease.Downgrade] makes a writer a reader. [Manager.Semaphore] grants a
// number of permits at a time.
//
// # The order of waiters
//
// The waiters of one manager queue for a key in the order of their arrival. Between
// processes there is no order, unless all use [Fair].
//
// # Asking a holder
//
// [Manager.Ask] asks the holders of a key to give it up. [Lease.Revoked] tells them with the
// next renewal, and they decide.
//
// # For operators
//
// [Manager.List] and [Manager.Inspect] tell who holds what, and the notes of holders: see
// [WithNote]. A txlock.HeldError in an error says who had the lease: see [NameHolders].
// [Observe] reports grants, waits, renewals, losses and dropped handles. [Manager.Close] releases all leases when a program ends.
//
// # Tests
//
// Package [github.com/dca00107/lockstep/txlock/locktest] has a pool in memory, on which
// [NewManager] works without a server, and in no time under testing/synctest.
package lease
