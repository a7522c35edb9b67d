package lease

import (
	"context"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// RequestRelease asks the current holders of a key to release it: the writer, every reader and
// every holder of a permit. It closes the channel of Lease.ReleaseRequested, and
// Lease.ReleaseReason returns the reason; each holder decides for itself. A holder sees the
// request at its next renewal, after a third of its TTL or RenewEvery at the latest.
// RequestRelease waits neither for that nor for the release: acquire the lease afterwards, or at
// the same time. The last reason counts. It is valid UTF-8 of at most 255 bytes.
//
// If a transaction has the row locked, for example because it guards the lease, RequestRelease
// polls until the transaction or the context ends. On a multi-primary cluster a transaction that
// guards the lease on another node may fail with txlock.ErrDeadlock then.
//
// It returns txlock.ErrNotHeld if the lease isn't held, ErrInvalidKey, ErrInvalidOption for a
// reason that is too long, ErrSchema, ErrReadOnly, ErrClosed, and the errors of the driver and of
// the context, after which some holders may have received the request.
func (m *Manager) RequestRelease(ctx context.Context, key txlock.Key, reason string) error {
	return m.requestRelease(ctx, key, reason, math.MaxInt64)
}

// requestRelease asks those who have held something under a key since before a moment.
func (m *Manager) requestRelease(ctx context.Context, key txlock.Key, reason string, since int64) (err error) {
	if err := key.Validate(); err != nil {
		return err
	}
	if err := checkText("RequestRelease: a reason", reason); err != nil {
		return err
	}
	ctx, end := m.untilClosed(ctx)
	defer end()
	defer func() { err = unlessClosed(ctx, err) }()
	what := fmt.Sprintf("ask the holder of lease %q", key)
	if err := m.ready(ctx); err != nil {
		return fault.Explain(what, err)
	}
	anybody := false
	for pause := leastLook; ; pause = min(2*pause, mostLook) {
		asked, err := m.store.AskHolders(ctx, key.String(), reason, since)
		switch {
		case err == nil:
			since, anybody = asked.At, anybody || asked.Holders > 0
		case !conflicted(err):
			return fault.Explain(what, err)
		}
		switch {
		case err == nil && asked.Left == 0 && anybody:
			return nil
		case err == nil && asked.Left == 0:
			return fmt.Errorf("%s: %w", what, txlock.ErrNotHeld)
		}
		if err := m.sleep(ctx, pause); err != nil {
			return fmt.Errorf("%s: its row is locked by a transaction: %w", what, err)
		}
	}
}

// checkText returns what is wrong with a text that others are to read, or nil.
func checkText(what, text string) error {
	switch {
	case len(text) > mostText:
		return fmt.Errorf("%w: %s has at most %d bytes, this one has %d", txlock.ErrInvalidOption, what, mostText, len(text))
	case !utf8.ValidString(text):
		return fmt.Errorf("%w: %s must be valid UTF-8, this one is %q", txlock.ErrInvalidOption, what, text)
	}
	return nil
}

const mostText = 255

// ReleaseRequested returns a channel that is closed when Manager.RequestRelease has requested the
// lease. The holder may keep it. All handles of the lease share the channel. Loss and release of
// the lease don't close it; see Done.
func (l *Lease) ReleaseRequested() <-chan struct{} {
	r := l.record
	r.mu.Lock()
	defer r.mu.Unlock()
	l.keep(l)
	if r.revoked == nil {
		r.revoked = make(chan struct{})
		if r.question != nil {
			close(r.revoked)
		}
	}
	return r.revoked
}

// ReleaseReason returns the reason of the last request to release the lease that this process has
// seen, and reports whether there was one.
func (l *Lease) ReleaseReason() (reason string, asked bool) {
	r := l.record
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.question == nil {
		return "", false
	}
	return r.question.Why, true
}

// ask notes a question.
func (r *record) ask(question store.Question) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.question == nil && r.revoked != nil {
		close(r.revoked)
	}
	if r.question == nil || r.question.At < question.At {
		r.question = &question
	}
}

// renewal is the claim of a renewal, which tells of questions.
func (r *record) renewal() store.Claim {
	c := r.claim()
	r.mu.Lock()
	defer r.mu.Unlock()
	c.Told = 0
	if r.question != nil {
		c.Told = r.question.At
	}
	return c
}
