// Package memstore keeps leases in memory: the [store.Store] of tests. The managers of
// package lease run on it as they run on a database, without a server and, since it knows
// no other time than package time, also under testing/synctest.
//
// A [Server] stands in for the server: it has the rows, their locks and the clock. A
// [Store] is the way of one process to it, and may be down or faulty for itself: make one
// for each process that a test is about, or one for all. A [Tx] is a transaction of the
// program.
//
//	server := memstore.New()
//	a, b := server.Store(), server.Store()
//	m, err := lease.NewManager(a.Pool())
//
// Read package memdb first (the rows and their locks), then server.go and tx.go, then the
// statements: those that take and release in take.go, the others that write in session.go
// and ask.go, those that read in reads.go. What becomes of a row is decided in package
// rules.
//
// It differs from a server where nothing depends on it: all row locks are exclusive, no
// lock closes a gap, a reader's place whose row is locked is Absent instead of waited
// for, a transaction has no savepoints, and who has the turn and says nothing keeps it.
package memstore
