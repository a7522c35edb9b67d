package locktest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// memoryRow is the row of a key.
type memoryRow struct {
	id              rowID
	exists          bool         // it was committed
	known           bool         // and the library knows
	maker           *transaction // who has made it and not committed
	asked           bool         // and others have asked for it since
	last, committed uint64       // tokens
	changes         int          // how often it was committed
	owner           string       // of the last, and when that was
	locked          time.Time
	holders         map[*transaction]bool // true: shared
	queue           []*rowWait
}

// rowWait is a call that waits for a row.
type rowWait struct {
	tx     *transaction
	key    txlock.Key
	owner  string
	shared bool
	atMost time.Duration // 0 for no limit
	late   error         // what it is then
	done   chan error    // of one place
}

// row returns the row of a key, under Memory.mu as all below.
func (m *Memory) row(key txlock.Key) *memoryRow {
	r := m.rows[rowOf(key)]
	if r == nil {
		r = &memoryRow{id: rowOf(key), holders: make(map[*transaction]bool), exists: key.Hashed(), known: key.Hashed()}
		m.rows[rowOf(key)] = r
	}
	return r
}

// version is that of the row as who has locked it sees it.
func (r *memoryRow) version(t *transaction) uint64 {
	if raised, ok := t.raised[r.id]; ok {
		return raised
	}
	return r.committed
}

// written tells whether another transaction has written the row and not committed.
func (r *memoryRow) written(t *transaction) bool {
	for holder := range r.holders {
		if _, raised := holder.raised[r.id]; holder != t && (raised || r.maker == holder) {
			return true
		}
	}
	return false
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

// free tells whether the row can be locked at once. It may be locked already by this
// transaction, which doesn't hold it: since a savepoint, or a LockAll that has failed.
func (r *memoryRow) free(t *transaction, shared bool) bool {
	sharing, ours := r.holders[t]
	return ours && (!sharing || shared) || r.admits(t, shared) && (ours || len(r.queue) == 0)
}

// enqueue lets a call wait: behind the others, unless those wait for its transaction.
func (r *memoryRow) enqueue(w *rowWait) {
	at := len(r.queue)
	if _, ours := r.holders[w.tx]; ours {
		at = 0
	}
	r.queue = slices.Insert(r.queue, at, w)
	w.tx.memory.wait(w.key, 1)
}

// give locks the row.
func (r *memoryRow) give(t *transaction, key txlock.Key, owner string, shared bool) txlock.Grant {
	if !r.exists && r.maker == nil {
		r.maker, r.asked = t, false
	}
	t.opened = true
	sharing, held := r.holders[t]
	r.holders[t] = shared && (sharing || !held) && r.maker != t
	t.rows[rowOf(key)] = r
	if shared {
		return inner.NewGrant(key, r.version(t), true)
	}
	r.last = t.memory.nextToken(r.last)
	r.owner, r.locked = owner, time.Now()
	return inner.NewGrant(key, r.last, false)
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

// commit keeps what a transaction has made of the row.
func (r *memoryRow) commit(t *transaction) {
	token, raised := t.raised[r.id]
	if raised {
		r.committed = token
	}
	if raised || r.maker == t {
		r.changes++
	}
	if r.maker == t {
		r.maker, r.exists = nil, true
	}
	_, granted := t.grants[r.id]
	r.known = r.known || granted
}

// lose gives the row to who waits for it.
func (r *memoryRow) lose(t *transaction) {
	if r.maker == t { // The row is gone.
		for r.collide() {
		}
		r.maker, r.known = nil, false
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

// Ensure stands in for txlock.Ensure.
func (m *Memory) Ensure(ctx context.Context, keys ...txlock.Key) error {
	if err := checkKeys(keys); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("ensure: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		r := m.row(key)
		r.exists, r.known = r.exists || r.maker == nil, true
	}
	return nil
}
