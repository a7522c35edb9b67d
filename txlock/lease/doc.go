// Package lease provides named locks that outlive transactions, in the database that a program
// already uses. A lease is a lock with an owner, a TTL (time to live) and a fencing token. Its
// [Manager] renews it in the background while the process lives. If the holder crashes, the lease
// is free after one TTL.
//
//	m, err := lease.NewManager(db)
//	...
//	err = m.Do(ctx, key, func(ctx context.Context, l *lease.Lease) error {
//		...
//	})
//
// Start with:
//
//	Manager.Do, Manager.TryDo            hold a lease while a function runs
//	Manager.Acquire, Manager.TryAcquire  wait for a lease, or don't; release it yourself
//	Lease.Guard                          let a transaction commit only while the lease is held
//	Manager.AcquireShared                many readers or one writer
//	Manager.Semaphore                    a limited number of permits at a time
//	Manager.Close                        release everything when a program ends
//
// [Manager.AcquireAll] acquires several leases or none. [HoldAtLeast] keeps a key held after
// short work. An owner can re-enter its own lease: see [WithOwner].
//
// # Renewal and loss
//
// A lease is renewed when a third of its TTL has passed (see [RenewEvery]). It is lost if no
// renewal reaches the server in time, if its [MaxLifetime] has passed, if another process takes
// it over under the same owner's name, or if [Manager.ForceRelease] releases it. Then
// [Lease.Err] returns txlock.ErrLost, [Lease.Done] is closed, and the context of Do is
// canceled. The holder counts the TTL from before its request, so it stops before the server
// grants the lease to another holder.
//
// # Guard and fencing
//
// A holder that was paused may not know for a moment that its lease has expired. A write that must
// not come after that belongs in a transaction that calls [Lease.Guard]: that transaction can be
// committed only while the lease is held. A system outside of the database can compare
// [Lease.Token], which increases with every grant, and refuse a lower one.
//
// # Leases inside a transaction
//
// [Manager.AcquireTx] acquires a lease in the caller's transaction: the lease and the data are
// committed together, or neither is.
//
// # Shared leases
//
// Holders of [Manager.AcquireShared] exclude those of Acquire, but not each other.
// [Lease.Downgrade] turns an exclusive lease into a shared one.
//
// # The order of waiters
//
// The waiters of one manager queue for a key in the order of their arrival. Between processes
// there is no order, unless all of them use [Fair].
//
// # Requesting a release
//
// [Manager.RequestRelease] asks the holders of a key to give it up. [Lease.ReleaseRequested] is
// closed at their next renewal, and each holder decides for itself.
//
// # For operators
//
// [Manager.List] and [Manager.Inspect] return the holders and the labels that they have set with
// [WithLabel]. A txlock.HeldError in an error names the holder: see [NameHolders]. [Observe]
// reports grants, waits, renewals, losses, and handles that were dropped without a release.
//
// # Tests
//
// Module github.com/dca00107/lockstep/txlock/locktest provides a pool in memory, on which
// [NewManager] works without a server. Under testing/synctest, waits and TTLs take no time.
package lease
