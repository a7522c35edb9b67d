package locktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// ask is how a lock is asked for.
type ask struct {
	verb   string
	shared bool
	try    bool
	atMost time.Duration
	// compares: an old snapshot is the caller's concern
	compares bool
	// inside: a row that is missing is made in the transaction, whatever has begun it
	inside bool
}

// one takes the lock of one key and keeps it.
func (s *Scope) one(ctx context.Context, key txlock.Key, q ask) (txlock.Grant, error) {
	if err := key.Validate(); err != nil {
		return txlock.Grant{}, err
	}
	if s.bad != nil {
		return txlock.Grant{}, s.bad
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	grant, err := s.take(ctx, key, q)
	if err == nil {
		s.keep(key, grant)
	}
	return grant, err
}

// keep notes what was granted.
func (t *transaction) keep(key txlock.Key, grant txlock.Grant) {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	if t.over == nil {
		t.grants[rowOf(key)] = grant
	}
}

// reenter answers a request for what is held already.
func (t *transaction) reenter(key txlock.Key, shared bool) (grant txlock.Grant, held bool, err error) {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	if t.over != nil {
		return txlock.Grant{}, false, fmt.Errorf("lock %q: %w", key, t.over)
	}
	grant, held = t.grants[rowOf(key)]
	if held && grant.Shared() && !shared {
		return txlock.Grant{}, false, fmt.Errorf("lock %q: %w: take it exclusively from the beginning", key, txlock.ErrUpgrade)
	}
	return grant, held, nil
}

// take locks the row of a key, and waits for it.
func (t *transaction) take(ctx context.Context, key txlock.Key, q ask) (txlock.Grant, error) {
	grant, held, err := t.reenter(key, q.shared)
	if held || err != nil {
		return grant, err
	}
	grant, err = t.lock(ctx, key, q)
	if err != nil || q.compares {
		return grant, err
	}
	if err := t.write(key, grant, q.verb); err != nil {
		return txlock.Grant{}, err
	}
	return grant, nil
}

// write writes the token of a grant into the row, where that is not newer than the snapshot.
func (t *transaction) write(key txlock.Key, grant txlock.Grant, verb string) error {
	if err := t.stale(key, verb); err != nil {
		return err
	}
	t.raise(key, grant)
	return nil
}

// raise writes the token of a grant into the row.
func (t *transaction) raise(key txlock.Key, grant txlock.Grant) {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	if r := t.memory.row(key); !grant.Shared() && t.over == nil {
		t.raised[r.id] = grant.Token()
		r.known = r.known || r.exists
	}
}

// lock locks the row of a key that is not held.
func (t *transaction) lock(ctx context.Context, key txlock.Key, q ask) (txlock.Grant, error) {
	grant, w, err := t.ask(ctx, key, q)
	if err == nil && w != nil {
		grant, err = w.await(ctx)
	}
	if err != nil {
		return txlock.Grant{}, fmt.Errorf("%s %q: %w", q.verb, key, err)
	}
	return grant, nil
}

// ask locks the row, or begins to wait for it.
func (t *transaction) ask(ctx context.Context, key txlock.Key, q ask) (txlock.Grant, *rowWait, error) {
	if err := ctx.Err(); err != nil {
		return txlock.Grant{}, nil, err
	}
	m := t.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := t.failure(); err != nil {
		return txlock.Grant{}, nil, err
	}
	r := m.row(key)
	// MySQL has limits for what reads a row only, and the library looks for it first.
	unknown := m.mysql && !r.known && (q.try || q.atMost > 0)
	r.exists = r.exists || !t.opened && !q.inside && !unknown && r.maker == nil
	t.touched, t.opened = true, t.opened || m.mysql // an error of MariaDB begins no transaction
	if unknown && (q.try || t.snapshot != nil) {
		t.read()
	}
	if !m.mysql && !q.compares && !r.written(t) {
		if err := t.older(r); err != nil {
			return txlock.Grant{}, nil, err
		}
	}
	if r.free(t, q.shared) {
		return r.give(t, key, inner.OwnerOf(ctx), q.shared), nil, nil
	}
	r.asked = true
	w := &rowWait{tx: t, key: key, owner: inner.OwnerOf(ctx), shared: q.shared, atMost: q.atMost, late: txlock.ErrWaitTimeout, done: make(chan error, 1)}
	if q.try {
		w.late = txlock.ErrBusy
	}
	switch {
	case unknown:
		w.atMost = max(time.Second, (q.atMost + time.Second - 1).Truncate(time.Second))
	case q.try:
		return txlock.Grant{}, nil, w.late
	}
	r.enqueue(w)
	for victim := m.deadlocked(t); victim != nil; victim = m.deadlocked(t) {
		victim.doom(txlock.ErrDeadlock)
	}
	return txlock.Grant{}, w, nil
}

// failure is the error of FailNext.
func (t *transaction) failure() error {
	err := t.next
	t.next = nil
	if errors.Is(err, txlock.ErrDeadlock) || errors.Is(err, txlock.ErrTxDoomed) {
		t.doom(err)
	}
	return err
}

// await returns the grant of the row, or why there is none.
func (w *rowWait) await(ctx context.Context) (txlock.Grant, error) {
	if err := w.outcome(ctx); err != nil {
		return txlock.Grant{}, err
	}
	m := w.tx.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.row(w.key)
	if w.shared {
		return inner.NewGrant(w.key, r.version(w.tx), true), nil
	}
	return inner.NewGrant(w.key, r.last, false), nil
}

// outcome waits for the row, until the limit or the end of the context.
func (w *rowWait) outcome(ctx context.Context) error {
	m := w.tx.memory
	if w.atMost > 0 {
		timer := time.AfterFunc(w.atMost, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.row(w.key).leave(w, w.late)
		})
		defer timer.Stop()
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.row(w.key).leave(w, ctx.Err()) {
		// As the connection is closed, on which somebody waits.
		w.tx.doom(fmt.Errorf("its connection was lost: %w", ctx.Err()))
	}
	return <-w.done
}

// doom ends the transaction on the server's side.
func (t *transaction) doom(why error) {
	if t.over != nil {
		return
	}
	t.over = why
	if !errors.Is(why, txlock.ErrTxDoomed) {
		t.over = fmt.Errorf("%w: %w", txlock.ErrTxDoomed, why)
	}
	for _, r := range t.memory.rows {
		for _, w := range r.queue {
			if w.tx == t {
				r.leave(w, why)
				break
			}
		}
	}
	t.free(false)
}

// free gives all rows to who waits for them. A commit keeps what the transaction has made
// of them.
func (t *transaction) free(commit bool) {
	rows := t.rows
	t.rows = nil
	if commit {
		maps.Copy(t.memory.onces, t.onces)
	}
	for _, r := range rows {
		if commit {
			r.commit(t)
		}
		r.lose(t)
	}
	t.held = held{}
}
