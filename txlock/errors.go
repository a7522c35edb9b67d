package txlock

import "github.com/dca00107/lockstep/internal/fault"

// The errors of lockstep. errors.Is finds them in what a call returns, beside the
// error of the context and of the driver that caused them.
var (
	// ErrBusy is returned by TryLock, TryRLock and LockAny when the lock is not available. The
	// transaction stays open. A HeldError in it names the holder, if it is known: see NameHolders.
	ErrBusy = fault.ErrBusy
	// ErrWaitTimeout is returned when a wait for a lock reached its limit, WaitAtMost or the
	// server's innodb_lock_wait_timeout. The transaction stays open, unless the server runs with
	// innodb_rollback_on_timeout: then the error is ErrTxDoomed as well. A HeldError in it names
	// the holder, as in ErrBusy. For a lease it is also returned when the server has not answered
	// in time; its text names that.
	ErrWaitTimeout = fault.ErrWaitTimeout
	// ErrDeadlock is returned when the server chose the transaction as the victim of a
	// deadlock, or for a transaction of another primary of its cluster. The server has rolled
	// it back: retry it.
	ErrDeadlock = fault.ErrDeadlock
	// ErrStaleSnapshot is returned when the lock was free but the transaction's snapshot is older
	// than the last holder's commit, so that plain reads would show older data. Retry the
	// transaction, and lock first. On MariaDB the server has rolled it back.
	// Any call may return it if DDL has rebuilt a table since the snapshot; the transaction
	// stays open then.
	ErrStaleSnapshot = fault.ErrStaleSnapshot
	// ErrTxDoomed is returned when the transaction can't be committed as a whole: the server has
	// rolled it back, its connection is gone, or a statement such as DDL has committed it and so
	// released the locks. On a guarded pool a transaction that the server has rolled back takes
	// no more statements.
	ErrTxDoomed = fault.ErrTxDoomed
	// ErrUnknownOutcome is returned when a COMMIT was sent and no answer reports its outcome: the
	// transaction was committed, or rolled back, or the server is about to do one of them. It is
	// never Retryable, and not an ErrTxDoomed. Retry the transaction only if it can detect that
	// its work is done: under a key of Once, or by the Version of what it changes.
	ErrUnknownOutcome = fault.ErrUnknownOutcome
	// ErrRows is returned by a statement of CommitWith that has changed another number of rows
	// than CommitWith allows. The transaction stays open, with the changes of the statement.
	ErrRows = fault.ErrRows
	// ErrConflict is returned by an optimistic lock when the version has changed. The
	// transaction stays open, but should be rolled back.
	ErrConflict = fault.ErrConflict
	// ErrLost is returned when a lease, or another lock that outlives statements, was lost while
	// it was needed.
	ErrLost = fault.ErrLost
	// ErrNotHeld is returned when a lock is needed that isn't held.
	ErrNotHeld = fault.ErrNotHeld
	// ErrTooManyHolds is returned when an owner has entered a re-entrant lease
	// too many times.
	ErrTooManyHolds = fault.ErrTooManyHolds
	// ErrUpgrade is returned when a transaction that holds a shared lock requests it exclusively,
	// because two of them would wait for each other. Nothing was sent and the transaction stays
	// open.
	ErrUpgrade = fault.ErrUpgrade
	// ErrNoTransaction is returned when no transaction is open: the handle is a
	// pool, or its transaction has been committed or rolled back.
	ErrNoTransaction = fault.ErrNoTransaction
	// ErrInvalidKey is returned for a key that can't be locked, or where a key
	// is needed and none is given. Nothing was sent.
	ErrInvalidKey = fault.ErrInvalidKey
	// ErrInvalidOption is returned for an option out of its range. Nothing was
	// sent.
	ErrInvalidOption = fault.ErrInvalidOption
	// ErrOpenRows is returned when the caller's rows are still open on the transaction. On a guarded
	// pool nothing was sent and the transaction stays open; on an unguarded one the driver has closed
	// the connection.
	ErrOpenRows = fault.ErrOpenRows
	// ErrReadOnly is returned when the server or the transaction is read-only. The transaction
	// stays open.
	ErrReadOnly = fault.ErrReadOnly
	// ErrSchema is returned when a table of lockstep is missing or wrong. The transaction stays
	// open.
	ErrSchema = fault.ErrSchema
	// ErrUnguarded is returned by AfterCommit and CommitWith, and by Join with RequireGuarded, if
	// the pool is not guarded, and by the first two if XA or a procedure has begun the
	// transaction. The transaction stays open.
	ErrUnguarded = fault.ErrUnguarded
	// ErrPrivilege is returned when the user may not do what a lock needs. The message names
	// the table and the GRANT to run; schema.Check returns it, too. The transaction stays open.
	ErrPrivilege = fault.ErrPrivilege
	// ErrMismatch is returned by Once when the first call of the key had another fingerprint.
	// The transaction stays open.
	ErrMismatch = fault.ErrMismatch
	// ErrResult is returned by OnceValue for a result that is too large or not valid JSON; nothing
	// is stored. It is also returned for a stored result that is missing or of another type.
	ErrResult = fault.ErrResult
	// ErrNoQuorum is returned when a quorum of databases is not available.
	ErrNoQuorum = fault.ErrNoQuorum
)

// Retryable reports whether retrying the whole transaction may succeed: the server rolled it back
// for a transient reason, such as a deadlock, or its snapshot was stale.
//
// It returns false if a statement committed the transaction, the commit outcome is unknown
// (ErrUnknownOutcome), the context ended, the lock was busy, or the conflicting version was read
// before the transaction.
func Retryable(err error) bool { return fault.Retryable(err) }
