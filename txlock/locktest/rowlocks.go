package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	return grant, t.stale(key, q.verb)
}

// lock locks the row of a key that is not held.
func (t *transaction) lock(ctx context.Context, key txlock.Key, q ask) (txlock.Grant, error) {
	if err := ctx.Err(); err != nil {
		return txlock.Grant{}, fmt.Errorf("%s %q: %w", q.verb, key, err)
	}
	m := t.memory
	m.mu.Lock()
	if err := t.next; err != nil {
		t.next = nil
		if errors.Is(err, txlock.ErrDeadlock) || errors.Is(err, txlock.ErrTxDoomed) {
			t.doom(err)
		}
		m.mu.Unlock()
		return txlock.Grant{}, fmt.Errorf("%s %q: %w", q.verb, key, err)
	}
	r := m.row(key)
	t.touched = true
	bounded := q.try || q.atMost > 0
	if m.mysql && bounded && !r.known && (q.try || t.snapshot != nil) {
		t.read() // MySQL has no limit for what makes a row, so the library looks for it first
	}
	sharing, ours := r.holders[t] // locked by a LockAll that has failed
	if ours && (!sharing || q.shared) || r.admits(t, q.shared) && len(r.queue) == 0 {
		defer m.mu.Unlock()
		return r.give(t, key, txlock.OwnerOf(ctx), q.shared), nil
	}
	late := txlock.ErrWaitTimeout
	if q.try {
		late = txlock.ErrBusy
	}
	if m.mysql && bounded && !r.known {
		q.atMost = q.atMost.Truncate(time.Second) + time.Second // the limit of the session
	} else if q.try {
		m.mu.Unlock()
		return txlock.Grant{}, fmt.Errorf("%s %q: %w", q.verb, key, txlock.ErrBusy)
	}
	w := &rowWait{tx: t, key: key, owner: txlock.OwnerOf(ctx), shared: q.shared, done: make(chan error, 1)}
	r.queue = append(r.queue, w)
	m.wait(key, 1)
	for victim := m.deadlocked(t); victim != nil; victim = m.deadlocked(t) {
		victim.doom(txlock.ErrDeadlock)
	}
	m.mu.Unlock()
	if err := w.await(ctx, q.atMost, late); err != nil {
		return txlock.Grant{}, fmt.Errorf("%s %q: %w", q.verb, key, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	token := r.committed
	if !q.shared {
		token = r.last
	}
	return txlock.NewGrant(key, token, q.shared), nil
}

// await waits for the row, until the limit or the end of the context.
func (w *rowWait) await(ctx context.Context, atMost time.Duration, late error) error {
	m := w.tx.memory
	if atMost > 0 {
		stop := m.clock.after(atMost, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.row(w.key).leave(w, late)
		})
		defer stop()
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

// row returns the row of a key, under Memory.mu as all below.
func (m *Memory) row(key txlock.Key) *memoryRow {
	r := m.rows[rowOf(key)]
	if r == nil {
		r = &memoryRow{holders: make(map[*transaction]bool), exists: key.Hashed(), known: key.Hashed()}
		m.rows[rowOf(key)] = r
	}
	return r
}

// admits tells whether nobody holds the row who excludes this.
func (r *memoryRow) admits(t *transaction, shared bool) bool {
	for holder, sharing := range r.holders {
		if holder != t && (!shared || !sharing) {
			return false
		}
	}
	return true
}

// give locks the row.
func (r *memoryRow) give(t *transaction, key txlock.Key, owner string, shared bool) txlock.Grant {
	if !r.exists && r.maker == nil {
		r.maker = t
	}
	sharing, held := r.holders[t]
	r.holders[t] = shared && (sharing || !held) && r.maker != t
	t.rows[rowOf(key)] = r
	if shared {
		return txlock.NewGrant(key, r.committed, true)
	}
	r.last = t.memory.nextToken(r.last)
	r.owner, r.locked = owner, t.memory.clock.now()
	return txlock.NewGrant(key, r.last, false)
}

// leave takes a call out of the queue with its outcome, unless it has one.
func (r *memoryRow) leave(w *rowWait, outcome error) bool {
	i := slices.Index(r.queue, w)
	if i < 0 {
		return false
	}
	r.queue = slices.Delete(r.queue, i, i+1)
	w.tx.memory.wait(w.key, -1)
	w.done <- outcome
	r.serve()
	return true
}

// serve gives the row to the first who wait, as far as they don't exclude each other.
func (r *memoryRow) serve() {
	for len(r.queue) > 0 && r.admits(r.queue[0].tx, r.queue[0].shared) {
		w := r.queue[0]
		r.queue = r.queue[1:]
		w.tx.memory.wait(w.key, -1)
		r.give(w.tx, w.key, w.owner, w.shared)
		w.done <- nil
	}
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

// free gives all rows to who waits for them. A commit keeps the tokens that were
// granted.
func (t *transaction) free(commit bool) {
	rows, grants := t.rows, t.grants
	t.rows, t.grants = nil, nil
	for id, r := range rows {
		grant, granted := grants[id]
		if commit {
			r.commit(t, granted, grant)
		}
		r.lose(t)
	}
}

// commit keeps what a transaction has made of the row.
func (r *memoryRow) commit(t *transaction, granted bool, grant txlock.Grant) {
	raised := granted && !grant.Shared()
	if raised {
		r.committed = grant.Token()
	}
	if raised || r.maker == t {
		r.changes++
	}
	if r.maker == t {
		r.maker, r.exists = nil, true
	}
	r.known = r.known || granted
}

// lose gives the row to who waits for it.
func (r *memoryRow) lose(t *transaction) {
	if r.maker == t { // The row is gone.
		for r.collide() {
		}
		r.maker = nil
	}
	delete(r.holders, t)
	r.serve()
}

// collide dooms one of those who wait for a row that is gone: each keeps the others from
// making it, by the lock on the gap that the server has left them. It tells whether there
// were two.
func (r *memoryRow) collide() bool {
	if len(r.queue) < 2 {
		return false
	}
	var waiting []*transaction
	for _, w := range r.queue {
		waiting = append(waiting, w.tx)
	}
	waiting[0].memory.choose(waiting).doom(txlock.ErrDeadlock)
	return true
}

// deadlocked returns who is to be rolled back, because those wait for each other who
// wait for a transaction.
func (m *Memory) deadlocked(last *transaction) *transaction {
	return m.choose(m.circle(last, last, make(map[*transaction]bool))) // whose last is the last
}

// choose returns the victim: the one with the fewest locks, and of equals not the last.
func (m *Memory) choose(circle []*transaction) (victim *transaction) {
	if m.victim != nil && circle != nil {
		scopes := make([]*Scope, len(circle))
		for i, t := range circle {
			scopes[i] = t.begun
		}
		if chosen := m.victim(scopes); chosen != nil {
			return chosen.transaction
		}
	}
	for _, t := range circle {
		if victim == nil || len(t.rows) < len(victim.rows) {
			victim = t
		}
	}
	return victim
}

// circle returns the transactions on a way of waits from one to another, backwards. It
// goes through none twice.
func (m *Memory) circle(from, to *transaction, been map[*transaction]bool) []*transaction {
	been[from] = true
	for _, other := range m.blockers(from) {
		if other == to {
			return []*transaction{from}
		}
		if been[other] {
			continue
		}
		if way := m.circle(other, to, been); way != nil {
			return append(way, from)
		}
	}
	return nil
}

// blockers are those that a transaction waits for: who holds the row, and who has come
// before it.
func (m *Memory) blockers(t *transaction) (others []*transaction) {
	for _, r := range m.rows {
		i := slices.IndexFunc(r.queue, func(w *rowWait) bool { return w.tx == t })
		if i < 0 {
			continue
		}
		for holder, sharing := range r.holders {
			if holder != t && (!r.queue[i].shared || !sharing) {
				others = append(others, holder)
			}
		}
		for _, w := range r.queue[:i] {
			if !w.shared || !r.queue[i].shared {
				others = append(others, w.tx)
			}
		}
	}
	return others
}
