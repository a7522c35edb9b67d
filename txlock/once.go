package txlock

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
)

// defaultKeep is how long a key of Once is kept.
const defaultKeep = 24 * time.Hour

// noFingerprint is the fingerprint of a call without one. It matches all.
const noFingerprint = "-"

// A OnceOption configures Once.
type OnceOption interface{ toOnce(*onceCall) }

type onceOption func(*onceCall)

func (f onceOption) toOnce(c *onceCall) { f(c) }

// onceCall is what a call of Once asks for.
type onceCall struct {
	fingerprint []byte
	keep        time.Duration
	bad         error
}

// Fingerprint distinguishes requests: if the first call of a key had another fingerprint, Once
// returns ErrMismatch. It is any text of any length, such as the body of the request; its SHA-256
// is stored. A call without a fingerprint, the default, matches all.
func Fingerprint(request []byte) OnceOption {
	sum := sha256.Sum256(request)
	return onceOption(func(c *onceCall) { c.fingerprint = sum[:] })
}

// Keep sets how long a key is remembered, by the server's clock, from the call of Once. After
// that, the next call is the first again, and PurgeOnce deletes the row. Choose a time that is
// longer than any client repeats a request, and much longer than a transaction: see Scope.Once.
// The default is 24 hours.
func Keep(d time.Duration) OnceOption {
	return onceOption(func(c *onceCall) {
		c.keep = d
		if d <= 0 {
			c.bad = fmt.Errorf("%w: Keep(%v): the time must be positive", ErrInvalidOption, d)
		}
	})
}

// onceCallOf returns what the options ask for.
func onceCallOf(options []OnceOption) (onceCall, error) {
	c := onceCall{fingerprint: []byte(noFingerprint), keep: defaultKeep}
	for _, option := range options {
		option.toOnce(&c)
	}
	return c, c.bad
}

// OnceAsked returns what the options request: how long the key is kept, and the fingerprint, nil
// for none.
func (internals) OnceAsked(options []OnceOption) (keep time.Duration, fingerprint []byte, err error) {
	c, err := onceCallOf(options)
	if string(c.fingerprint) == noFingerprint {
		c.fingerprint = nil
	}
	return c.keep, c.fingerprint, err
}

// keepUs is the time to keep in microseconds, rounded up; the longest one, too.
func (c onceCall) keepUs() int64 { return (c.keep - 1).Microseconds() + 1 }

// Once reports whether the transaction is the first that requests a key: first is true for one
// transaction that commits, and false for all later calls, also in the same transaction. A call
// that is made while the first is still open waits until that one has ended, limited by WaitAtMost,
// and is the first if that one was rolled back. So a program that does something only if it is the
// first, in the same transaction, does it exactly once, for example for repeated requests and for
// messages that are delivered twice.
//
// It is one statement, an INSERT; a call that isn't the first sends a second one. Keys of Once are
// separate from those of locks: the two never exclude each other, and every key has a row of its
// own, also one of a hashed family. After a ROLLBACK TO SAVEPOINT to before the call, call Once
// again: it is then as if the key was never requested. Call it before the transaction reads: if
// another transaction was first, an older snapshot may not show what that one has written.
//
// A server without a binary log shows others what a transaction has written before its COMMIT is
// on disk, and loses it if it is killed at that moment. So a call that isn't the first must also
// write before the program answers: its COMMIT returns when both are on disk. Run, Transaction and
// Once do that; a transaction that the program commits itself must write something.
//
// The time of Keep begins with the call. Run, Transaction and Once restart it before they commit,
// if half of it has passed; in a transaction that the program commits itself it may end before the
// COMMIT, and then the next call is the first again.
//
// On a multi-primary cluster two transactions may both get the reply that they are the first; the COMMIT
// of all but one then fails with ErrDeadlock. Only the COMMIT counts.
//
// It may return ErrMismatch for the key of another request, ErrInvalidOption, and the errors of
// Lock, except ErrStaleSnapshot and ErrUpgrade. After ErrMismatch the transaction stays open. On
// MySQL WaitAtMost is rounded up to whole seconds here.
func (s *Scope) Once(ctx context.Context, key Key, options ...OnceOption) (first bool, err error) {
	if err := key.Validate(); err != nil {
		return false, err
	}
	call, err := onceCallOf(options)
	if err := errors.Join(err, s.usable(ctx)); err != nil {
		return false, err
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	const verb = "once"
	if err := s.mayTake(ctx); err != nil {
		return false, s.failure(verb, key, err)
	}
	s.asked(ctx, true, key)
	asked := time.Now()
	if err = s.ownWait(true, key); err == nil {
		first, err = s.askOnce(ctx, key, call)
	}
	if err != nil {
		err = s.failure(verb, key, err)
	}
	s.answered(ctx, key, first, asked, err)
	if err != nil || !first {
		return false, err
	}
	s.first(key.name, keptOnce{keep: call.keep, since: asked})
	s.settle(key, false, true)
	if s.txState != nil {
		s.txState.Hold()
	}
	return true, nil
}

// keptOnce is a key of which the transaction is the first.
type keptOnce struct {
	keep  time.Duration
	since time.Time
}

// mayTake makes sure that what is taken now would be committed with the transaction. Of one that
// database/sql has rolled back since its context has ended, that is the reason.
func (s *state) mayTake(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.txState != nil {
		return s.txState.Err()
	}
	return s.probe(ctx)
}

// askOnce asks within the limit, by what the server has for that.
func (s *Scope) askOnce(ctx context.Context, key Key, c onceCall) (first bool, err error) {
	ask := func(variables ...string) error {
		first, err = s.tryOnce(ctx, key, c, variables)
		return err
	}
	switch {
	case s.atMost <= 0:
		err = ask()
	case !s.server.Compound:
		err = s.inSeconds(ctx, s.atMost, func() error { return ask() })
	default:
		err = s.byVariables(s.atMost, ask)
	}
	return first, err
}

// tryOnce makes the row of the key, or reads it and makes it new if its time was over when
// it was asked for. A row that is gone meanwhile is asked for again.
func (s *state) tryOnce(ctx context.Context, key Key, c onceCall, variables []string) (first bool, err error) {
	const tries = 10
	name, asked := []byte(key.name), time.Now()
	for range tries {
		made, err := s.makeOnce(ctx, name, c, variables)
		if errors.Is(err, guard.ErrReads) {
			continue // another goroutine has read meanwhile
		}
		if made || err != nil {
			return made, err
		}
		own, db := s.own(ctx, guard.Call{}), s.regardless(true, variables)
		row, err := queries.OnceAgain(own, db, gen.OnceAgainParams{Name: name, WaitedUs: time.Since(asked).Microseconds()})
		switch {
		case errors.Is(err, sql.ErrNoRows):
			continue
		case err != nil:
			return false, fault.Read("OnceAgain", err)
		case row.Expired>>1 != 0, len(row.Fingerprint) == 0:
			return false, fault.UnknownReply("OnceAgain", fmt.Sprintf("the row (%d, %q)", row.Expired, row.Fingerprint))
		case row.Expired == 0:
			s.told = true
			return false, c.compare(row.Fingerprint)
		}
		anew, err := fault.Changed("OnceAnew")(queries.OnceAnew(own, db, gen.OnceAnewParams{Fingerprint: c.fingerprint, KeepUs: c.keepUs(), Name: name, DoneUs: row.DoneUs}))
		if anew || err != nil {
			return err == nil, err
		}
	}
	return false, fmt.Errorf("%w: the row was deleted again %d times", ErrBusy, tries)
}

// makeOnce makes the row of a key of Once, and reports whether there was none: by a
// procedure where there is one.
func (s *state) makeOnce(ctx context.Context, name []byte, c onceCall, variables []string) (made bool, err error) {
	snapshot := s.txState == nil || s.txState.MayHaveSnapshot()
	call := guard.Call{Fresh: !snapshot}
	if s.procedures() {
		first, err := s.callNumber(ctx, call, "lockstep_once_1", name, c.fingerprint, c.keepUs())
		if !s.without(err) {
			return first == 1, err
		}
	}
	made, err = fault.Changed("Once")(queries.Once(s.own(ctx, call), s.regardless(snapshot, variables), gen.OnceParams{Name: name, Fingerprint: c.fingerprint, KeepUs: c.keepUs()}))
	if fault.Duplicate(err) {
		return false, nil
	}
	if err == nil && !made {
		err = fault.UnknownReply("Once", "no new row")
	}
	return made, err
}

// compare returns ErrMismatch for the fingerprint of another request.
func (c onceCall) compare(fingerprint []byte) error {
	for _, one := range [][]byte{c.fingerprint, fingerprint} {
		if string(one) == noFingerprint {
			return nil
		}
	}
	if !bytes.Equal(c.fingerprint, fingerprint) {
		return ErrMismatch
	}
	return nil
}
