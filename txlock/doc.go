// Package txlock takes named locks inside the transaction that a program already has open
// on MySQL or MariaDB. A lock is one statement of that transaction, and ends with its
// COMMIT or ROLLBACK: there is no second connection, no time to live and no unlock.
//
// Programs reach it through package locksqlc (database/sql, sqlc) or package lockgorm
// (GORM), which open guarded pools, join transactions and hand out a [Scope]. A lock that
// outlives its transaction is a lease, see package txlock/lease.
//
// # Keys
//
// A [Key] names what is locked: [Named] for a single name, or a [Family] for records of
// one kind, made by [NewFamily]. Each key has a row of its own in the database. The keys of
// a family that is [Hashed] share 65,536 rows, and need no cleaning; [Clean] removes rows
// of the others, [Ensure] makes them beforehand, and [Segments] divides one resource that
// many use at once.
//
// # Locks
//
// [Join] returns the [Scope] of an open transaction. [Scope.Lock] waits for the lock,
// [Scope.TryLock] doesn't, and [Scope.WaitAtMost] limits the wait. [Scope.RLock] shares the
// lock with other readers. [Scope.LockAll] takes several locks without a deadlock among its
// callers, shared those that [Shared] marks, [Scope.RLockAll] takes all shared, and
// [Scope.LockAny] takes one of several. Each [Grant] has a fencing token, which rises
// with every exclusive lock of the key.
//
// # Versions
//
// A program that doesn't want to wait reads the version of a key, by [Scope.Version] or
// [ReadVersion], and compares it when it saves, by [Scope.CompareAndBump].
//
// # Once
//
// [Scope.Once] is a lock that stays: it tells whether the transaction is the first of all
// that ask for a key, those included that come after its COMMIT. [Fingerprint] tells one
// request from another, [Keep] says for how long, and [SweepOnce] removes what is over.
//
// # Guarded and plain pools
//
// A pool that locksqlc.Open or lockgorm.Open has opened is guarded: it knows what its
// transactions hold, and refuses statements and COMMIT where the server has ended the
// transaction. Any other pool of go-sql-driver/mysql is a plain one. Locks exclude there,
// too, but take some more statements. [CheckGuarded] and [OnlyGuarded] make sure that a pool
// is guarded.
//
// # Errors
//
// The errors of every call match one of the variables below by errors.Is, and each says
// what becomes of the transaction. [Retryable] tells whether the same transaction, started
// again, may succeed.
//
// # Who holds what
//
// [AssertLocked] checks that the caller holds a lock, [Holders] lists who holds some, by the
// labels that [WithLabel] gives, and an [Observer] is told of all that happens, for a log by
// [SlogObserver] and for metrics by package lockotel; [MultiObserver] joins several. With
// [NameHolders] the error of a lock that is refused has a [HeldError], which says who holds
// the key.
package txlock
