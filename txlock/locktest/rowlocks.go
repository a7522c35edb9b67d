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

// take locks the row of a key, and waits for it. As on MySQL a snapshot that is older
// than the lock leaves the row locked and the transaction alive.
func (t *transaction) take(ctx context.Context, key txlock.Key, q ask) (txlock.Grant, error) {
	grant, held, err := t.reenter(key, q.shared)
	if held || err != nil {
		return grant, err
	}
	grant, err = t.lock(ctx, key, q)
	if err != nil || q.compares {
		return grant, err
	}
	if current, old := t.versions(key); current != old {
		return txlock.Grant{}, fmt.Errorf("%s %q: %w: version %d in the snapshot, %d in the row", q.verb, key, txlock.ErrStaleSnapshot, old, current)
	}
	return grant, nil
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
	sharing, ours := r.holders[t] // locked by a LockAll that has failed
	if ours && !sharing || r.admits(t, q.shared) && len(r.queue) == 0 {
		defer m.mu.Unlock()
		return r.give(t, key, txlock.OwnerOf(ctx), q.shared), nil
	}
	if q.try {
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
	if err := w.await(ctx, q.atMost); err != nil {
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
func (w *rowWait) await(ctx context.Context, atMost time.Duration) error {
	m := w.tx.memory
	if atMost > 0 {
		timer := time.AfterFunc(atMost, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.row(w.key).leave(w, txlock.ErrWaitTimeout)
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

// row returns the row of a key, under Memory.mu as all below.
func (m *Memory) row(key txlock.Key) *memoryRow {
	r := m.rows[rowOf(key)]
	if r == nil {
		r = &memoryRow{holders: make(map[*transaction]bool)}
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
	sharing, held := r.holders[t]
	r.holders[t] = shared && (sharing || !held)
	t.rows[rowOf(key)] = r
	if shared {
		return txlock.NewGrant(key, r.committed, true)
	}
	r.last = t.memory.nextToken(r.last)
	r.owner, r.locked = owner, time.Now()
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
		if grant, granted := grants[id]; commit && granted && !grant.Shared() {
			r.committed = grant.Token()
		}
		delete(r.holders, t)
		r.serve()
	}
}

// deadlocked returns who is to be rolled back, because those wait for each other who
// wait for a transaction: the one with the fewest locks, and of equals not the one that
// has come last.
func (m *Memory) deadlocked(last *transaction) *transaction {
	circle := m.circle(last, last, make(map[*transaction]bool))
	var victim *transaction
	for _, t := range circle { // whose last is the last
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
