package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// What an acquire does is decided here, without a server: classify says what has become of
// a statement, next and nextOf say what to do then. Manager.try does it.

// outcome is what has become of the statement that takes a lease.
type outcome int

const (
	outGranted    outcome = iota
	outRefused            // for good: see request.refusal
	outAbsent             // the row, or the turnstile, is locked or missing
	outLate               // the server has seen it too late
	outConflicted         // a deadlock, or another primary of a cluster, was in the way
	outOverdue            // it had no answer within the time that the TTL leaves
	outFailed
)

// classify tells what has become of a statement, by its reply or its error.
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

// conflicted tells whether a statement of ours may be sent again that another primary of
// a cluster has overtaken, or a deadlock has ended: what it may have taken nevertheless was
// asked for with another hold.
func conflicted(err error) bool { return txlock.Retryable(err) || txlock.Overtaken(err) }

// answers are errors that lockstep makes of what it was asked for: asked again, it answers
// the same.
var answers = []error{
	txlock.ErrInvalidOption, txlock.ErrInvalidKey, txlock.ErrUpgrade, txlock.ErrTooManyHolds, ErrClosed,
	schema.ErrAutocommit, schema.ErrCharset, schema.ErrMultiPrimary,
}

// broken tells whether an error is that of a connection or of a server, after which a wait
// goes on.
func broken(err error) bool {
	own := slices.ContainsFunc(answers, func(answer error) bool { return errors.Is(err, answer) })
	return !own && (txlock.Unknown(err) || txlock.Retryable(err))
}

// step is what an acquire does next.
type step int

const (
	stepFail          step = iota // return the error of the outcome
	stepTake                      // make the handle of what was granted
	stepSend                      // send the statement
	stepReadClock                 // read the server's clock, then send
	stepLook                      // look what is there, then ask nextOf
	stepMakeRows                  // make the rows that are missing, then send
	stepMakeTurnstile             // make the turnstile, which may be missing, then send
	stepBusy                      // return ErrBusy: somebody holds it
	stepLocked                    // return store.ErrLocked: it is free, and its row locked
)

// progress is how far an acquire has come.
type progress struct {
	attempt        // how the statement is sent
	conflicts int  // how often it had to be sent again for others
	clockRead bool // the server's clock was read since it began
	tries     int  // how often it was sent for a row that was locked or missing
}

// maxConflicts is how often a statement is sent again that others were in the way of.
const maxConflicts = 5

// next decides by the outcome of a statement.
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

// wish is what nextOf needs to know of a request.
type wish struct {
	owner  string
	named  bool // the owner may hold the lease already
	shared bool // a reader's place
	lease  bool // the lease itself, not a reader's place or a permit
}

// nextOf decides by what a look has shown, where the row was locked or missing.
func (p progress) nextOf(seen store.Glance, w wish) (step, progress) {
	held := seen.Left > 0
	mine := held && seen.Owner == w.owner
	switch {
	case !seen.Exists:
		return stepMakeRows, p
	case p.inTurn && w.named && mine:
		p.inTurn = false // it enters again, for which nobody has to wait
		return stepSend, p
	case (w.named || w.shared) && mine && p.queued == 0:
		p.queued = guardPatience // it enters again, or the writer goes on to read: its own row
		return stepSend, p
	case !w.lease && !p.clockRead && (mine || !held && p.tries > 0):
		// A reader and a permit are not told that they come too late: the server's clock
		// may have been set forward.
		p.clockRead = true
		return stepReadClock, p
	case held:
		return stepBusy, p
	case p.tries == 0 && p.inTurn:
		p.tries++
		return stepMakeTurnstile, p
	case p.tries == 0:
		p.tries++ // it is free, and locked for a moment
		return stepSend, p
	case seen.Use == store.Shared && !w.shared && p.queued == 0:
		p.queued = mostLook // readers keep the row locked, each for a moment
		return stepSend, p
	}
	return stepLocked, p
}

// maxMakes is how often it is tried to make a row: for a quarter of a second.
const maxMakes = 16

// nextOfMake decides after an attempt to make rows that somebody makes, or those beside
// them, at the same time: after a pause, unless that is the longest already.
func (p progress) nextOfMake(err error) (pause time.Duration, again bool, _ progress) {
	if err == nil {
		return 0, true, p
	}
	if p.tries >= maxMakes || !errors.Is(err, store.ErrLocked) && !conflicted(err) {
		return 0, false, p
	}
	p.tries++
	return time.Duration(p.tries) * leastLook, true, p
}
