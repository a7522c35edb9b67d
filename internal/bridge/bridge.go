// Package bridge is the door between the packages of lockstep, for what one of them does
// for the others and no program calls. The package that does it sets it when it is
// initialised, as every package that imports it finds it then. Its types are type
// parameters here, since this package is below them all.
package bridge

import (
	"context"
	"database/sql/driver"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// Lock is what package txlock does for the others: Scope is *txlock.Scope, Key is
// txlock.Key, Grant is txlock.Grant, and Option is txlock.PoolOption.
type Lock[Scope, Key, Grant, Option any] struct {
	// Guarded wraps the connector of go-sql-driver/mysql into that of a guarded pool.
	Guarded func(base driver.Connector, options ...Option) driver.Connector

	// Include sends statements that are not the program's own in the transaction: package
	// lease writes its rows by it. Where send succeeds and sets Fence, the transaction can't
	// be committed without what they have locked: on a guarded pool Commit returns
	// ErrTxDoomed where DDL or the like, or the rollback to a savepoint, may have freed it.
	// The errors are those of Lock.
	Include func(ctx context.Context, scope Scope, verb string, key Key, send func(ctx context.Context, in *Included) error) error

	// OnePrimary makes sure that the database is not on a multi-primary cluster,
	// where a lock that is never written doesn't exclude writers on other nodes, and one
	// that is excludes at the commit. It asks the server once per process and database,
	// and returns schema.ErrMultiPrimary or what the server says; the transaction goes on.
	OnePrimary func(ctx context.Context, scope Scope) error

	// Tested returns schema.ErrEngine on a server on which package lockgorm wasn't tried.
	Tested func(scope Scope) error

	// Runs notes that this goroutine runs a function in the transaction, inside of which a
	// wait for what it holds could not end. The function that it returns is to be called
	// when the transaction is over.
	Runs func(scope Scope) (ended func())

	// Last says whether a function that is called in the transaction may commit it by
	// CommitWith, as nothing follows it, until the function that it returns is called.
	Last func(scope Scope, may bool) (restore func())

	// NotUndone says that a part of the transaction that was to be undone could not be: CommitWith
	// returns the error, and commits nothing.
	NotUndone func(scope Scope, err error)

	// Confirm is what Run and Transaction ask before they commit: on a plain pool it is
	// Verify, on a guarded one nothing, since Commit itself sees to it. If a half of the
	// time of a key of Once is over, it lets that begin anew. It reports whether CommitWith has
	// committed the transaction: then the Commit of the transaction sends nothing.
	Confirm func(ctx context.Context, scope Scope) (committed bool, err error)

	// Final is what Run and Transaction make of the error of their function, before they
	// roll the transaction back. What it returns is Retryable only where nothing of the
	// transaction was committed before its end.
	Final func(ctx context.Context, scope Scope, err error) error

	// CompareAndBump does what that of the scope does. With commits, as the last statement
	// of a transaction, it commits the transaction where the server can do both in one round
	// trip, and says so: then the Commit of the transaction sends nothing.
	CompareAndBump func(ctx context.Context, scope Scope, key Key, version uint64, commits bool) (committed bool, err error)

	// Commit commits the transaction of a guarded pool, and stops waiting for the answer at
	// the end of the context. The Commit of the transaction sends nothing then.
	Commit func(ctx context.Context, scope Scope) error

	// Outcome is what Run and Transaction make of the error of Commit: ErrUnknownOutcome if
	// nobody knows whether it has committed.
	Outcome func(scope Scope, err error) error

	// AfterCommit calls the functions of Scope.AfterCommit if the transaction was committed,
	// unless that has started them: who calls Runs calls it too, when the transaction has ended
	// and its connection is back in the pool. The scope may be nil.
	AfterCommit func(scope Scope)

	// Asked returns a key without the mark of txlock.Shared, and whether it had it.
	Asked func(key Key) (plain Key, shared bool)

	// Retried tells the observer of a scope, which may be nil, that a transaction of these
	// keys is run again.
	Retried func(ctx context.Context, scope Scope, keys []Key, err error)
}

// Included is what Include hands to its function.
type Included struct {
	// Tx sends the statements. Those that skip a locked row fail there instead: ErrBusy or
	// ErrWaitTimeout.
	Tx rawsql.DBTX
	// Snapshot tells that plain reads of the transaction may show data from
	// before the statements' locks.
	Snapshot bool
	// Fenced tells that a lock of the same name was fenced before, and holds.
	Fenced bool
	// Session is the transaction's, on the server: CONNECTION_ID().
	Session uint64
	// Reading is the context for plain reads, which fix the snapshot.
	Reading context.Context
	// Fence is to be set where the transaction must not be committed without
	// what the statements have locked.
	Fence bool
}

var lock any

// SetLock is called by package txlock.
func SetLock[Scope, Key, Grant, Option any](l Lock[Scope, Key, Grant, Option]) { lock = l }

// LockOf returns what package txlock has set, to a package that imports it.
func LockOf[Scope, Key, Grant, Option any]() Lock[Scope, Key, Grant, Option] {
	return lock.(Lock[Scope, Key, Grant, Option])
}
