// Package locksqlc brings the locks of package txlock to programs that use database/sql,
// by itself or under code that sqlc generates.
//
// # The pool
//
// [Open] and [Connector] give a guarded pool: an ordinary *sql.DB on which a lock costs
// the fewest statements, and a transaction that the server has ended is refused instead
// of going on without its locks. All other functions work on any pool of
// go-sql-driver/mysql.
//
// # A transaction with locks
//
// [Run] begins a transaction, takes locks, calls a function, commits, and runs the whole
// again after a deadlock. [Optimistic] does so without waiting: it compares a version at
// the end. [RunTx] and [OptimisticTx] take options for the transaction.
//
// # Locks in a transaction that is open
//
// [Join] returns the [txlock.Scope] of a *sql.Tx, and [JoinConn] that of a transaction
// which the program has begun as text. Its methods take locks.
//
// # Once
//
// [Once] calls its function in a transaction for the first of all who ask for a key, and
// [OnceValue] gives the first answer to all of them. [OnceHandler] does so for HTTP
// requests with the header Idempotency-Key; its handler finds the transaction by [TxOf].
//
// # Work that is no transaction
//
// [Do] holds a lock on a connection of its own while a function runs; [TryDo] does so only
// where the lock is free.
//
// # What it is not
//
// It has no locks of its own: keys, grants, errors and options are those of package
// txlock. It has no leases; see package lease. Nothing in it depends on sqlc.
package locksqlc
