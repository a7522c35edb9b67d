// Package lockgorm provides the locks of package txlock to programs that use GORM.
//
// Start with:
//
//	Open, Dialector   a *gorm.DB over a guarded pool
//	Transaction       begin, lock, call a function, commit, retry
//	New               a plugin that locks every write of models with a lockstep tag
//	Join              lock in a transaction that you already have
//	Version           a field that detects conflicting updates
//	Once, OnceHandler idempotency keys, also for HTTP
//
// Open and [Dialector], for gorm.Open and dbresolver, make guarded pools; everything else works
// with any pool of go-sql-driver/mysql.
//
// # Explicit locks
//
// [Transaction] begins a transaction, acquires its locks first, and retries it after a deadlock.
// [Optimistic] compares a version at the end instead. In a transaction, [Join] returns the
// txlock.Scope with all its methods. [Lock] acquires one lock, and [AssertLocked] checks that one
// is held; both take the *gorm.DB itself. [WaitAtMost] limits how long all of these wait. [SQLTx]
// returns the *sql.Tx, for lease.Lease.Guard and the like.
//
// # Locks by the plugin
//
// The plugin acquires locks before each create, update and delete of a model that names its keys,
// either as a [Locker] or with a tag. An update or delete with conditions locks the rows that these
// select. The clauses [On], [NoLock], [Loaded], [MaxWait], [AnyVersion], [KeepVersion], [CommitWith]
// and [Guard] are about one statement, also of gorm.G and of gorm.io/gen; pass UnderlyingDB() of a
// generated query to the functions. New has the options [In], [Check], [AtMostRows] and [Unlocked].
//
// The plugin sees only what goes through GORM's callbacks: no triggers, no procedures, and no
// statements of other programs. Writes by Exec, Raw and Table() without a model that names keys are
// not locked; lockvet's check bypass finds many of them.
package lockgorm
