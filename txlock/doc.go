// Package txlock provides named locks that are held by a MySQL or MariaDB transaction. A lock
// is acquired by one statement of the transaction and released by its COMMIT or ROLLBACK:
// there is no second connection, no TTL, and no unlock to forget.
//
// Start with:
//
//	locksqlc.Run, lockgorm.Transaction   begin, lock, run a function, commit, retry
//	NewFamily, Named                     define keys
//	Join                                 lock in a transaction that you already have
//	Scope.Lock, Scope.TryLock            wait for a lock, or don't
//	Scope.LockAll                        several locks without deadlocks
//	Scope.Version, Scope.CompareAndBump  save without waiting, and detect conflicts
//	Scope.Once                           idempotency keys
//	Retryable                            decide whether to retry a transaction
//
// A lock that outlives its transaction is a lease: see package txlock/lease.
//
// # Keys
//
// A [Key] names what is locked: [Named] returns the key of a single name, and a [Family] makes
// the keys of records of one kind. Each key has a row of its own in the database. Keys of a
// [Hashed] family share 65,536 rows and need no cleanup. [Purge] deletes unused rows of other
// keys, [Ensure] creates rows beforehand, and [Segments] divides one resource that many
// transactions use at once.
//
// # Locks
//
// [Join] returns the [Scope] of an open transaction. [Scope.Lock] waits for the lock,
// [Scope.TryLock] doesn't, and [Scope.WaitAtMost] limits the wait. [Scope.RLock] acquires a
// shared lock. [Scope.LockAll] acquires several locks in one order, so that its callers don't
// deadlock; keys that [Shared] marks are locked shared. [Scope.LockAny] acquires the first of
// several locks that is free. Each [Grant] has a fencing token, which increases with every
// exclusive lock of the key.
//
// # Versions
//
// A program that doesn't want to wait reads the version of a key with [Scope.Version] or
// [ReadVersion], and compares it when it saves, with [Scope.CompareAndBump].
//
// # Once
//
// [Scope.Once] reports whether the transaction is the first of all that request a key, including
// those that do so after it has committed. [Fingerprint] distinguishes requests, [Keep] sets how
// long a key is kept, and [PurgeOnce] deletes expired keys.
//
// # Guarded and unguarded pools
//
// A guarded pool, which locksqlc.Open and lockgorm.Open return, is a *sql.DB that tracks the state
// of its transactions. It refuses further statements and COMMIT if the server has ended the
// transaction. Any other pool of go-sql-driver/mysql is an unguarded one. Locks exclude on it as
// well, but need a few more statements. [CheckGuarded] and [RequireGuarded] require a guarded pool.
//
// # Errors
//
// An error matches one of the variables below with errors.Is, and its text says whether the
// transaction stays open. An error of the driver that means none of these, such as that of KILL
// QUERY, is returned with what was asked for, and leaves it open. [Retryable] reports whether retrying the whole transaction may
// succeed.
//
// # Observing
//
// [AssertLocked] checks that the caller holds a lock. [Holders] returns the holders, with the
// labels that [WithLabel] has set. An [Observer] receives an event for each acquisition, wait and
// release; [SlogObserver] writes them to a log, package lockotel turns them into metrics, and
// [MultiObserver] combines several. With [NameHolders], the error of a refused lock contains a
// [HeldError], which names the holder.
package txlock
