// Package quorum provides leases on a majority of independent databases: such a lease works while
// any minority of them is down, cut off or comes back empty.
//
//	m, err := quorum.New([]*lease.Manager{a, b, c, d, e})
//	err = m.Do(ctx, key, func(ctx context.Context, l *quorum.Lease) error {
//		...
//	})
//
// # How it excludes
//
// The databases don't know about each other. Each holder has the lease of the key in more than half
// of them, which two can't have at the same time. The fencing token ([Lease.Token]) is made known
// to more than half of them before it is used.
//
// # Managers and leases
//
// [New] makes a [Manager] over the managers of the databases, each of package txlock/lease.
// [Manager.Do] holds a lease around a function; [Manager.Acquire] and [Manager.TryAcquire]
// return a [Lease], which is renewed until [Lease.Release]. [Lease.Err] and [Lease.Context]
// report when it is lost.
//
// # Guards
//
// There is no Guard for several databases: what is written to one of them is guarded there, by the
// lease that [Lease.Node] returns.
//
// # New and empty databases
//
// A database that is new, or comes back without its data, counts when [MaxTTL] and
// [ClockSkew] have passed. [Manager.Install] makes databases that are all new count at
// once.
//
// # Errors
//
// If a majority is not available, calls return txlock.ErrNoQuorum with the error of each database.
// The other errors are those of package txlock.
package quorum
