package fault

import (
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/schema"
)

// The errors of lockstep. Package txlock hands them on by the same names, and says what
// each of them means.
var (
	ErrBusy           = errors.New("txlock: lock not available")
	ErrWaitTimeout    = errors.New("txlock: timed out waiting for the lock; retry later")
	ErrDeadlock       = errors.New("txlock: deadlock: the server rolled the transaction back; retry it, as Run does, and lock several keys with LockAll")
	ErrStaleSnapshot  = errors.New("txlock: the transaction's snapshot is older than the lock; roll back and retry, as Run does, and lock before the first SELECT")
	ErrTxDoomed       = errors.New("txlock: the transaction has ended on the server; roll back")
	ErrUnknownOutcome = errors.New("txlock: commit outcome unknown: no answer to COMMIT reports it; before a retry, check what the transaction wrote, or use a key of Once")
	ErrRows           = errors.New("txlock: the last statement changed another number of rows than CommitWith allows; nothing is committed, the change stays, and the transaction stays open")
	ErrConflict       = errors.New("txlock: the version has changed; roll back, then read and show the record again")
	ErrLost           = errors.New("txlock: the lock was lost")
	ErrNotHeld        = errors.New("txlock: the lock is not held")
	ErrTooManyHolds   = errors.New("txlock: too many holds of one owner")
	ErrUpgrade        = errors.New("txlock: a shared lock can't be made exclusive")
	ErrNoTransaction  = errors.New("txlock: no open transaction")
	ErrInvalidKey     = errors.New("txlock: invalid key")
	ErrInvalidOption  = errors.New("txlock: invalid option")
	ErrOpenRows       = errors.New("txlock: rows are open on the transaction; close them, or read them to the end, before a lock")
	ErrReadOnly       = errors.New("txlock: the server or the transaction is read-only; connect to the primary, and begin without ReadOnly; the transaction stays open")
	ErrSchema         = errors.New("txlock: tables missing or wrong; run schema.Install(ctx, db) or the DDL in schema.FS, and see schema.Check")
	ErrUnguarded      = errors.New("txlock: the pool is not guarded; open it with locksqlc.Open, locksqlc.Connector or lockgorm.Open; if it was, a wrapper drops the context of its statements, or XA or a procedure has begun the transaction")
	ErrPrivilege      = schema.ErrPrivilege
	ErrNoQuorum       = errors.New("txlock: no quorum")
	ErrMismatch       = errors.New("txlock: the key was used for another request; use a new key for a new request; the transaction stays open")
	ErrResult         = errors.New("txlock: the result can't be stored or read again")
)

// ErrReply says of a statement of lockstep's own that it was answered by something that is
// none of its replies: nobody knows what it has done.
var ErrReply = errors.New("unknown reply to the statement, whose effect is unknown")

// ErrEnded is returned for a lock statement whose transaction is over.
var ErrEnded = errors.New("the transaction has been committed or rolled back")

// The marks of what is not Retryable, though its sentinel is.
var (
	// ErrGiven marks an ErrConflict which another run of the transaction would find again.
	ErrGiven = errors.New("another run of this transaction would find the same again")
	// ErrCommitted marks an ErrTxDoomed where the work, or a part of it, was committed, or
	// may have been.
	ErrCommitted = errors.New("committed before its end")
	// ErrUnseen marks an ErrTxDoomed of which nobody knows whether it was committed.
	ErrUnseen = errors.New("the server ended it, by a statement that was not seen")

	// errCutOff is the ErrTxDoomed of a transaction whose connection is gone.
	errCutOff = fmt.Errorf("%w: it was rolled back with its connection; unless that was killed, the readTimeout of the data source name must be longer than the wait for a lock, or rejectReadOnly hides that a server is read-only", ErrTxDoomed)

	errLarge = errors.New("the connection was lost with a statement that may be larger than the server takes, and is not sent again")

	errUnfenced = errors.New("a savepoint may have been rolled back after the guard, and the guard with it: guard again, last in the transaction")
)
