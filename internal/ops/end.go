package ops

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
)

// EndDetached says how a transaction without a session ends.
const EndDetached = "XA RECOVER lists the prepared ones, and XA COMMIT or XA ROLLBACK ends them"

// ErrDetached is returned for a lock whose transaction is prepared: ending its session has not
// rolled it back.
var ErrDetached = errors.New("the lock is still held, by a prepared transaction: " + EndDetached)

// ErrUnknown is returned if it is not known which session holds a lock, or whether one still does
// after End has ended its session.
var ErrUnknown = errors.New("it is not known which session holds the lock, because not all can be seen, or the server's list of transactions is old: try again")

// DeniedError is returned if the user may not end a session of another user.
type DeniedError struct {
	Session uint64
	Grant   string // the statement that allows it
	Err     error  // the server's
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("this user may not end session %d: %s", e.Session, e.Grant)
}

func (e *DeniedError) Unwrap() error { return e.Err }

// Endable reports whether ending the session of the lock releases it.
func (l Lock) Endable() bool { return l.Session != 0 && !l.Unsure }

// End looks again, ends the sessions that hold the locks for which picked returns true, and returns
// these locks. The server rolls back the transactions of the sessions. End waits for that for two
// seconds; a longer rollback continues on the server.
//
// Locks that aren't endable are left out. End returns a *DeniedError if the user lacks a privilege,
// ErrDetached if a prepared transaction still holds a lock, ErrUnknown if that is not known, and the
// errors of Look.
func (r *Room) End(ctx context.Context, picked func(Lock) bool) (ended []Lock, err error) {
	p, err := r.Look(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range p.Locks {
		if !l.Endable() || !picked(l) {
			continue
		}
		_, err := r.db.ExecContext(ctx, "KILL "+strconv.FormatUint(l.Session, 10))
		switch {
		case fault.NoSession(err): // it has ended meanwhile
			continue
		case fault.Is(err, 1095): // ER_KILL_DENIED_ERROR
			return ended, &DeniedError{l.Session, p.MayKill(), err}
		case err != nil:
			return ended, fault.Explain("end a session", err)
		}
		ended = append(ended, l)
	}
	if len(ended) == 0 && (p.unlisted || len(p.Hiding()) > 0) {
		return nil, ErrUnknown
	}
	return ended, r.released(ctx, ended)
}

// released waits until the locks are released.
func (r *Room) released(ctx context.Context, ended []Lock) error {
	for began := time.Now(); len(ended) > 0; {
		p, err := r.Look(ctx)
		if err != nil {
			return err
		}
		held, err := p.holds(ended)
		switch waited := time.Since(began); {
		case err != nil, !held && !p.unlisted:
			return err
		case p.unlisted && waited > 3*patience: // each of its looks has waited so long for a new list
			return ErrUnknown
		case !p.unlisted && waited > patience:
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// holds reports whether the picture has one of the locks still.
func (p *Picture) holds(ended []Lock) (held bool, err error) {
	for _, l := range p.Locks {
		for _, was := range ended {
			same := l.Row == was.Row && l.Token == was.Token
			if same && l.Detached {
				return true, ErrDetached
			}
			held = held || same && l.Session == was.Session
		}
	}
	return held, nil
}

// MayKill says what the user lacks to end sessions of others.
func (p *Picture) MayKill() string {
	if p.MariaDB() {
		return "GRANT CONNECTION ADMIN ON *.* TO " + Grantee(p.User)
	}
	return "GRANT CONNECTION_ADMIN ON *.* TO " + Grantee(p.User) + ", and SYSTEM_USER if the other has that"
}
