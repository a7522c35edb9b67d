package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/holderlookup"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// sight is the last reason why a request was not granted.
type sight struct {
	what   string
	held   *txlock.HeldError // who held it, if that was seen
	unsure bool              // held may be a writer that only waits for readers
	old    bool              // the request has queued behind others since, without a look
	mute   bool              // the server has not answered in time
}

var rowLocked = sight{what: "its row was locked"}

// why returns the reason as an error.
func (s sight) why() error {
	switch {
	case s.unsure:
		return fmt.Errorf("%w, or waited for readers", s.held)
	case s.held != nil:
		return s.held
	case s.what != "":
		return errors.New(s.what)
	}
	return errors.New("other waiters of this manager were first")
}

// look notes what a look has shown.
func (s *sight) look(q *request, seen store.Glance) {
	switch _, permits := q.target.(permit); {
	case seen.Left <= 0:
		*s = rowLocked
	case permits:
		*s = sight{what: "no permit was free"}
	default:
		*s = sight{held: &txlock.HeldError{Key: q.key, Owner: seen.Owner, Label: seen.Label, Since: grantedAt(seen.Token)}, unsure: seen.Use == store.Shared && store.WaitsFor(seen.Owner, "")}
		if seen.Owner != q.owner {
			q.met = s.held
		}
	}
}

// named adds to an error who has the lease, if a look has shown that, or that the server
// has not answered.
func (s sight) named(err error) error {
	if s.held == nil && !s.mute {
		return err
	}
	return fmt.Errorf("%w: %w", err, s.why())
}

// busy is the refusal of a lease that a look has shown held. With NameHolders a better look follows where
// that look may have shown a waiter.
func (q *request) busy() error {
	if q.seen.unsure && q.names {
		return txlock.ErrBusy
	}
	return q.seen.named(txlock.ErrBusy)
}

// leastSilence is how long an attempt that the end of the wait cuts short must have been
// under way to be the reason why nothing was granted.
const leastSilence = time.Second

// heard notes whether the server has answered in time what was sent at a moment.
func (m *Manager) heard(ctx context.Context, q *request, o outcome, begun instant) {
	now, cut := m.store.Now(), ctx.Err() != nil
	if o != outOverdue && !cut {
		q.silent = 0
		if o == outLate {
			q.seen = sight{what: "the server answered too late", mute: true}
		}
		return
	}
	if q.silent == 0 {
		q.silent = begun
	}
	if took := q.silence(now); !cut || took >= leastSilence {
		q.seen = sight{what: m.silentFor(took), mute: true}
	}
}

// silentFor says that nothing was answered for a time, which may be the pool's fault.
func (m *Manager) silentFor(took time.Duration) string {
	text := fmt.Sprintf("the server has not answered for %v", took.Round(time.Millisecond))
	if m.store.Full() {
		text += ", and the pool has no connection left"
	}
	return text
}

// silence is for how long the server has answered no attempt, 0 if it has answered the last.
func (q *request) silence(now instant) time.Duration {
	if q.silent == 0 {
		return 0
	}
	return q.silent.Until(now)
}

// grantedAt returns when a token was granted, by the server's clock, unless it was raised
// above an earlier token.
func grantedAt(token uint64) (at time.Time) {
	if token > 0 {
		at = time.UnixMicro(int64(token))
	}
	return at
}

// named adds to the error of a refusal who holds something under the key, if NameHolders
// asks for it and the request hasn't seen that.
func (m *Manager) named(ctx context.Context, q *request, err error) error {
	refused := errors.Is(err, txlock.ErrBusy) || errors.Is(err, txlock.ErrWaitTimeout)
	var known *txlock.HeldError
	if !refused || !q.names || errors.As(err, &known) {
		return err
	}
	if held := m.lookFor(q.key, q.owner)(ctx); held != nil {
		q.seen, q.met = sight{held: held}, held
	} else if !q.seen.unsure {
		return err
	}
	return q.seen.named(err)
}

// slowly begins a wait, at whose end the observer may be told for whom it was.
func (m *Manager) slowly(ctx context.Context, q *request) *holderlookup.Later[*txlock.HeldError] {
	if !q.names || q.slow <= 0 || m.options.observer == nil {
		return nil
	}
	return holderlookup.After(ctx, q.slow, m.lookFor(q.key, q.owner))
}

// lookFor looks who holds something under a key, together with others who look for the same.
// It finds nobody if it can't look at once.
func (m *Manager) lookFor(key txlock.Key, owner string) func(ctx context.Context) *txlock.HeldError {
	return func(ctx context.Context) *txlock.HeldError {
		for _, info := range infosOf(m.looks.Now(ctx, key, m.rowsOf(key))) {
			own := info.Slot == store.LeaseSlot && info.Owner == owner // of a writer that has found readers
			if info.Held && !own {
				return &txlock.HeldError{Key: key, Owner: info.Owner, Label: info.Label, Since: info.Since}
			}
		}
		return nil
	}
}

func (m *Manager) rowsOf(key txlock.Key) func(ctx context.Context) []store.Info {
	return func(ctx context.Context) []store.Info {
		if m.store.Full() {
			return nil
		}
		found, err := m.store.Inspect(ctx, key.String())
		if err != nil {
			return nil
		}
		return found
	}
}

// inTheWay returns who had what the request has waited for, if somebody has seen it.
func (q *request) inTheWay() *txlock.HeldError {
	if held := q.later.End(); held != nil {
		return held
	}
	return q.met
}
