// Package locksqlc provides the locks of package txlock to programs that use database/sql,
// directly or through code that sqlc generates. Nothing in it depends on sqlc.
//
// Start with:
//
//	Open, Connector   a *sql.DB that tracks its locks: a guarded pool
//	DriverName        the same for libraries that open a pool by name
//	Run               begin, lock, call a function, commit, retry
//	Join              lock in a *sql.Tx that you already have
//	Optimistic        compare a version before COMMIT, and don't wait
//	Once, OnceHandler idempotency keys, also for HTTP
//	Do                hold a lock during work that is not a transaction
//
// # The pool
//
// [Open] and [Connector] return a guarded pool: an ordinary *sql.DB that tracks the state of its
// transactions. A lock costs the fewest statements on it, and a transaction that the server has
// ended gets an error instead of continuing without its locks. All other functions work on any
// pool of go-sql-driver/mysql.
//
// # A transaction with locks
//
// [Run] begins a transaction, acquires locks, calls a function and commits. After a deadlock it
// retries from the beginning. [Optimistic] compares a version at the end instead of waiting.
// Both take options for the transaction, such as its isolation level.
//
// # Locks in an open transaction
//
// [Join] returns the txlock.Scope of a *sql.Tx, and [JoinConn] that of a transaction that the
// program has begun by sending BEGIN as a statement. The methods of the Scope acquire the locks.
//
// # Once
//
// [Once] calls its function in a transaction for the first request of a key, and [OnceValue]
// returns the first result to all of them. [OnceHandler] does the same for HTTP requests with the
// header Idempotency-Key; the handler that it wraps gets the transaction from [TxOf].
//
// # Work that is not a transaction
//
// [Do] holds a lock on a connection of its own while a function runs; [TryDo] does so only if
// the lock is free.
//
// Keys, grants, errors and options are those of package txlock. For locks that outlive a
// transaction see package lease.
package locksqlc
