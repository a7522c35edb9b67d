// Package elect makes one of many processes the leader: it works while the others stand
// by, and when it resigns, dies, is stopped or is cut off, another one leads.
//
//	election, err := elect.New(leases, txlock.Named("scheduler"))
//	...
//	err = election.Run(ctx, func(ctx context.Context, term *elect.Term) error {
//		...
//	})
//
// # Terms
//
// A leader leads for a [Term], whose token is higher than that of every term before. The
// term is a lease, which the lease.Manager renews. A transaction of a leader that calls
// [Term.Guard] can be committed only while it leads, so a leader that was stopped or cut
// off can't write after its successor. A system outside of the database compares tokens.
//
// # The grace
//
// A term that is not renewed ends in two steps. First the context of the leader ends; a
// grace later, when the TTL is over by the server's clock, another process may lead. So
// who stops within the grace never works beside its successor. A function that doesn't is
// reported as [Overdue]. A process that is stopped learns of both at once, when it goes
// on: only Guard and the token protect from what it does then. A transaction that it has
// guarded and not committed is rolled back when its term is over: its successor ends that
// session by KILL, for which it needs the same database user or the privilege.
//
// # Those who stand by
//
// One leader and four processes that stand by have a seat. The first of these waits at
// the row of the lease, by the queue of lease.Fair: it looks every 20 ms, and the others
// wait in the queue of the server. All further processes look every 3.5 to 10.5 seconds
// whether a seat is free. So a thousand of them ask the server for little, and keep no
// connection. If all five that have a seat die at once, another process leads at the
// latest 10.5 seconds after the TTL.
//
// # For operators
//
// [Election.Leader] and [Election.Observe] tell who leads. [Observer] reports what this
// process does. The seats are a semaphore, whose key is that of the election with
// ":standby" behind it.
package elect
