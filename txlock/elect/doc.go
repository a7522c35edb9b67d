// Package elect elects one of many processes as the leader. The leader works while the others
// are on standby. If it resigns, crashes, is stopped or loses its network, another process
// becomes the leader.
//
//	election, err := elect.New(leases, txlock.Named("scheduler"))
//	...
//	err = election.Run(ctx, func(ctx context.Context, term *elect.Term) error {
//		...
//	})
//
// # Terms
//
// A leader leads for a [Term], whose token is higher than that of every earlier term. The term is a
// lease, which the lease.Manager renews. A transaction that calls [Term.Guard] can be committed
// only while its process leads, so a leader that was stopped or cut off can't write after its
// successor. A system outside of the database can compare tokens.
//
// # The grace period
//
// A term that is not renewed ends in two steps. First the context of the leader is canceled. A
// grace period later, when the TTL has expired by the server's clock, another process may lead. So
// a leader that stops within the grace period never works beside its successor. A function that
// misses it is reported as [Overdue]. A process that was stopped learns of both at once when it
// continues, and only Guard and the token protect against what it does then. If it has guarded a
// transaction and not committed it, its successor ends that session with KILL when the term has
// expired, which rolls the transaction back. KILL needs the same database user, or the privilege.
//
// # Standby processes
//
// The leader and four standby processes each hold a standby slot. The first standby process polls
// the row of the lease every 20 ms, and the others wait in the server's queue, as with lease.Fair.
// All further processes poll for a free slot every 3.5 to 10.5 seconds, so a thousand of them send
// few statements and keep no connection. If all five processes with a slot crash at once, another
// process leads at most 10.5 seconds after the TTL. On TiDB and Vitess there are no such
// slots: all processes poll for the lease.
//
// # For operators
//
// [Election.Leader] and [Election.Observe] return the leader. The option [Observe] reports what
// this process does. The standby slots are the permits of a semaphore, whose key is that of the
// election followed by ":standby".
package elect
