package lockotel

import (
	"context"
	"errors"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// outcomes are the names of errors. An error that matches several has the name of the
// first: what has ended comes before why it has ended.
var outcomes = []struct {
	err  error
	name string
}{
	{txlock.ErrLost, "lost"},
	{txlock.ErrUnknownOutcome, "unknown_outcome"},
	{context.Canceled, "canceled"}, // also where that has ended a transaction: the caller knows
	{context.DeadlineExceeded, "deadline_exceeded"},
	{txlock.ErrTxDoomed, "tx_doomed"},
	{txlock.ErrDeadlock, "deadlock"},
	{txlock.ErrStaleSnapshot, "stale_snapshot"},
	{txlock.ErrConflict, "conflict"},
	{txlock.ErrRows, "rows"},
	{txlock.ErrWaitTimeout, "wait_timeout"},
	{txlock.ErrBusy, "busy"},
	{txlock.ErrNotHeld, "not_held"},
	{txlock.ErrTooManyHolds, "too_many_holds"},
	{txlock.ErrUpgrade, "upgrade"},
	{txlock.ErrNoTransaction, "no_transaction"},
	{txlock.ErrOpenRows, "open_rows"},
	{txlock.ErrReadOnly, "read_only"},
	{txlock.ErrPrivilege, "privilege"},
	{txlock.ErrSchema, "schema"},
	{txlock.ErrUnguarded, "unguarded"},
	{txlock.ErrNoQuorum, "no_quorum"},
	{txlock.ErrInvalidKey, "invalid_key"},
	{txlock.ErrInvalidOption, "invalid_option"},
	{txlock.ErrMismatch, "mismatch"},
	{txlock.ErrResult, "result"},
	{lease.ErrGuarded, "guarded"},
	{lease.ErrReplaced, "replaced"},
	{lease.ErrOtherDatabase, "other_database"},
	{lease.ErrNoConnection, "no_connection"},
	{lease.ErrClosed, "closed"},
}

// outcomeOf returns the name of an error, or none if there is no error.
func outcomeOf(err error, none string) string {
	if err == nil {
		return none
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.name
		}
	}
	return "error"
}

// typeOf returns the error.type of what has ended a transaction: the cause where it is
// known, and not that the transaction has ended.
func typeOf(err error) string {
	for _, cause := range []error{txlock.ErrDeadlock, txlock.ErrStaleSnapshot, txlock.ErrConflict} {
		if errors.Is(err, cause) {
			return outcomeOf(cause, "")
		}
	}
	return outcomeOf(err, "error")
}
