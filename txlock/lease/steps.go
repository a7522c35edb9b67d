package lease

import (
	"context"
	"errors"
	"slices"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// This file decides the steps of an acquire, without a server: classify tells the outcome
// of a statement, next and nextOf tell what to do then. Manager.try does it.

// outcome is what has become of the statement that takes a lease.
type outcome int

const (
	outGranted    outcome = iota
	outRefused            // the answer is final: see request.refusal
	outAbsent             // the row, or the queue row, is locked or missing
	outLate               // the server has seen it too late
	outConflicted         // ended by a deadlock or by another primary of a cluster
	outOverdue            // not answered within the time that the TTL leaves
	outFailed
)

// classify returns the outcome of a statement, by its reply or its error.
func classify(reply store.Reply, err error) outcome {
	switch {
	case err == nil && reply == store.Done:
		return outGranted
	case err == nil && reply == store.Late:
		return outLate
	case err == nil && reply == store.Absent:
		return outAbsent
	case err == nil:
		return outRefused
	case conflicted(err):
		return outConflicted
	case errors.Is(err, context.DeadlineExceeded): // a limit of our own
		return outOverdue
	}
	return outFailed
}

// conflicted reports whether a deadlock, or another primary of a cluster, has ended a
// statement, which may be sent again then.
func conflicted(err error) bool { return txlock.Retryable(err) || fault.Overtaken(err) }

// answers are errors of lockstep's own about what it was asked for: the same request gets
// the same answer again.
var answers = []error{
	txlock.ErrInvalidOption, txlock.ErrInvalidKey, txlock.ErrUpgrade, txlock.ErrTooManyHolds, ErrClosed,
	schema.ErrEngine, schema.ErrSession, schema.ErrMultiPrimary,
}

// broken reports whether an error is of the connection or of the server, so that a waiter
// goes on waiting.
func broken(err error) bool {
	own := slices.ContainsFunc(answers, func(answer error) bool { return errors.Is(err, answer) })
	return !own && (fault.Unknown(err) || txlock.Retryable(err))
}

// step is what an acquire does next.
type step int

const (
	stepFail         step = iota // return the error that belongs to the outcome
	stepTake                     // make the handle of what was granted
	stepSend                     // send the statement
	stepReadClock                // read the server's clock, then send
	stepLook                     // look at the row, then ask nextOf
	stepMakeRows                 // make the rows that are missing, then send
	stepMakeQueueRow             // make the queue row if it is missing, then send
	stepBusy                     // return ErrBusy: somebody holds it
	stepLocked                   // return store.ErrLocked: it is free, but its row is locked
)

// progress is how far an acquire has come.
type progress struct {
	attempt        // how the statement is sent
	conflicts int  // how often it was sent again after a conflict
	clockRead bool // the server's clock was read since the acquire began
	tries     int  // how often it found the row locked or missing, and was sent again
}

// maxConflicts is how often a statement is sent again after a conflict.
const maxConflicts = 5

// next decides the next step by the outcome of a statement.
func (p progress) next(o outcome) (step, progress) {
	switch {
	case o == outGranted:
		return stepTake, p
	case o == outAbsent:
		return stepLook, p
	case o == outConflicted && p.conflicts < maxConflicts:
		p.conflicts++
		return stepSend, p
	case o == outLate && !p.clockRead:
		p.clockRead = true
		return stepReadClock, p
	}
	return stepFail, p
}

// wish is the part of a request that nextOf needs.
type wish struct {
	owner  string
	named  bool // the owner may hold the lease already
	shared bool // a reader's place
	lease  bool // the exclusive lease, not a reader's place or a permit
}

// nextOf decides the next step by what a look has shown, after the row was found locked
// or missing.
func (p progress) nextOf(seen store.Glance, w wish) (step, progress) {
	held := seen.Left > 0
	mine := held && seen.Owner == w.owner
	switch {
	case !seen.Exists:
		return stepMakeRows, p
	case p.inTurn && w.named && mine:
		p.inTurn = false // an owner that re-enters need not queue
		return stepSend, p
	case (w.named || w.shared) && mine && p.queued == 0:
		p.queued = guardPatience // its own row: it re-enters, or a writer becomes a reader
		return stepSend, p
	case !w.lease && !p.clockRead && (mine || !held && p.tries > 0):
		// The reply to a reader or for a permit doesn't tell that it came too late, which
		// it does if the server's clock was set forward.
		p.clockRead = true
		return stepReadClock, p
	case held:
		return stepBusy, p
	case p.tries == 0 && p.inTurn:
		p.tries++
		return stepMakeQueueRow, p
	case p.tries == 0:
		p.tries++ // it is free, and locked for a moment
		return stepSend, p
	case seen.Use == store.Shared && !w.shared && p.queued == 0:
		p.queued = mostLook // readers keep the row locked, each for a moment
		return stepSend, p
	}
	return stepLocked, p
}
