// Package lockgorm brings the locks of package txlock to programs that use GORM.
//
// # The pool
//
// [Open] gives a *gorm.DB over a guarded pool; [Dialector] is for gorm.Open and for the
// plugin dbresolver. All else in this package works on any pool of go-sql-driver/mysql.
//
// # Locks by hand
//
// [Transaction] begins a transaction, locks first, and runs it again after a deadlock.
// [Optimistic] compares a version at the end instead. In a transaction, [Join] returns the
// [txlock.Scope] that takes its locks, with all verbs; [Lock] takes one lock and [AssertLocked]
// checks that one is held, with the *gorm.DB that the code has at hand. [WaitAtMost] limits how
// long all of these wait. [SQLTx] returns the transaction itself.
//
// # Locks by the plugin
//
// [New] is the plugin, for db.Use. It locks before each create, update and delete of a
// model that names its keys as a [Locker], or by a tag. [On] names the keys of one statement, [NoLock]
// says that none is needed. An update or delete by conditions locks the rows that they select,
// [AtMostRows] of them. [Check] compares models with their tables when the program starts, and
// [In] puts the keys of tags into a namespace.
// [Unlocked] is for unit tests on another database.
//
// # gorm.G and gorm.io/gen
//
// [On], [AtMost], [Loaded], [AnyVersion] and [Guarded] are clauses, for the options of gorm.G
// and for Clauses of generated queries. [Loaded] says which loaded model an update or delete
// is of, so that its keys are locked and its Version is compared. The functions take
// UnderlyingDB() of a generated query in a transaction.
//
// # Versions
//
// A field of type [Version] makes each update and delete of a loaded model fail with
// txlock.ErrConflict if somebody else has changed the row. [AnyVersion] and [KeepVersion]
// are the exceptions, [ErrVersion] refuses what can't be compared. It needs the plugin.
//
// # Once
//
// [Once], [OnceValue] and [OnceHandler] do what those of package locksqlc do, with GORM.
//
// # Leases
//
// lease.NewManager takes the pool that db.DB() returns. [Guarded] lets a statement succeed only
// while a lease is held; [SQLTx] is for Lease.Guard and Manager.AcquireTx.
//
// # What it is not
//
// The plugin sees what passes GORM's callbacks and nothing else: no triggers, no
// procedures, and no statements that another program sends. Locks exclude only those who
// take them.
package lockgorm
