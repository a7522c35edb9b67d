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
// # The pool
//
// [Open] returns a *gorm.DB over a guarded pool; [Dialector] is for gorm.Open and for the plugin
// dbresolver. Everything else in this package works with any pool of go-sql-driver/mysql.
//
// # Explicit locks
//
// [Transaction] begins a transaction, acquires its locks first, and retries it after a deadlock.
// [Optimistic] compares a version at the end instead. In a transaction, [Join] returns the
// txlock.Scope with all its methods. [Lock] acquires one lock, and [AssertLocked] checks that one
// is held; both take the *gorm.DB itself. [WaitAtMost] limits how long all of these wait. [SQLTx]
// returns the *sql.Tx itself.
//
// # Locks by the plugin
//
// [New] returns the plugin, for db.Use. It acquires locks before each create, update and delete of
// a model that names its keys, either as a [Locker] or with a tag. [On] names the keys of one
// statement, and [NoLock] declares that none is needed. An update or delete with conditions locks
// the rows that these select, at most [AtMostRows] of them. [Check] compares models with their
// tables when the program starts, and [In] puts the keys of tags into a namespace. [Unlocked] is
// for unit tests on another database.
//
// # gorm.G and gorm.io/gen
//
// [On], [MaxWait], [Loaded], [AnyVersion] and [Guard] are clauses, for the options of gorm.G and
// for Clauses of generated queries. Loaded names the loaded model of an update or delete, so that
// its keys are locked and its [Version] is compared. To the functions, pass UnderlyingDB() of a
// generated query in a transaction.
//
// # Versions
//
// A field of type [Version] makes each update and delete of a loaded model fail with
// txlock.ErrConflict if another transaction has changed the row. [AnyVersion] and [KeepVersion]
// allow exceptions. A write whose version can't be compared is refused with [ErrVersion]. Versions
// need the plugin.
//
// # Once
//
// [Once], [OnceValue] and [OnceHandler] are those of package locksqlc, with GORM.
//
// # Leases
//
// lease.NewManager takes the pool that db.DB() returns. [Guard] lets a statement succeed only
// while a lease is held; [SQLTx] is for Lease.Guard and Manager.AcquireTx.
//
// # What the plugin can't see
//
// It sees only what goes through GORM's callbacks: no triggers, no procedures, and no statements of
// other programs. Locks exclude only programs that acquire them. Writes by Exec, Raw and Table()
// without a model that names keys are not locked; lockvet's check bypass finds many of them.
package lockgorm
