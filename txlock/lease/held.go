package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// sight is the last reason why a request was not granted.
type sight struct {
	what string
	held *txlock.HeldError // who held it, if that was seen
	old  bool              // the request has queued behind others since, without a look
}

var rowLocked = sight{what: "its row was locked"}

// why returns the reason as an error.
func (s sight) why() error {
	switch {
	case s.held != nil:
		return s.held
	case s.what != "":
		return errors.New(s.what)
	}
	return errors.New("others of this manager were before it")
}

// look notes what a look has shown.
func (s *sight) look(q *request, seen store.Glance) {
	switch _, permits := q.target.(permit); {
	case seen.Left <= 0:
		*s = rowLocked
	case permits:
		*s = sight{what: "no permit was free"}
	default:
		*s = sight{held: &txlock.HeldError{Key: q.key, Owner: seen.Owner, Note: seen.Note, Since: grantedAt(seen.Token)}}
	}
}

// named adds to an error who has the lease, if a look has shown that.
func (s sight) named(err error) error {
	if s.held == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, s.held)
}

// grantedAt returns when a token was granted, by the server's clock, unless it was raised
// above an earlier token.
func grantedAt(token uint64) (at time.Time) {
	if token > 0 {
		at = time.UnixMicro(int64(token))
	}
	return at
}

// lookLimit is how long a look for who holds a lease may take.
const lookLimit = 100 * time.Millisecond

// named adds to the error of a refusal who holds something under the key, if NameHolders
// asks for it and the request hasn't seen that.
func (m *Manager) named(ctx context.Context, q *request, err error) error {
	refused := errors.Is(err, txlock.ErrBusy) || errors.Is(err, txlock.ErrWaitTimeout)
	var known *txlock.HeldError
	if !refused || !q.names || errors.As(err, &known) || m.store.Full() {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	found, lookErr := m.store.Inspect(ctx, q.key.String())
	if lookErr != nil {
		return err // without a name, but with what was answered
	}
	for _, row := range found {
		own := row.Slot == store.LeaseSlot && row.Owner == q.owner // of a writer that has found readers
		if info := infoOf(row); info.Held && !own {
			return sight{held: &txlock.HeldError{Key: q.key, Owner: info.Owner, Note: info.Note, Since: info.Since}}.named(err)
		}
	}
	return err
}
