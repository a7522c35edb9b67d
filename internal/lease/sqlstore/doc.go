// Package sqlstore is the store of leases in a database: the statements of package gen, the
// meaning of their replies, and the connections that they are sent on.
//
// # The order of reading
//
//  1. store.go: [Store], and the caller's transaction.
//  2. session.go and read.go: the statements that write and that read, in any transaction;
//     swap.go: what package rules decides is written.
//  3. tx.go: transactions of our own, and waiting for a row.
//  4. pool.go and nowait.go: statements that stay prepared, and those of MariaDB.
//  5. batch.go: one statement for several leases, where many calls meet.
//  6. renewconn.go, pooledconn.go and connbudget.go: the connection for renewals, and what may be taken
//     of the program's pool.
//  7. turn.go: the queue of all processes.
//  8. blockers.go, list.go, clean.go and clock.go: one subject each.
package sqlstore
