// Package memdb keeps rows in memory as a server does: with transactions, snapshots, and row locks
// that are queued for. What the rows mean is the caller's: leases in package memstore, and locks in
// package locktest.
package memdb

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"sync"
	"time"
)

// DB has the rows, of type R, by their keys. All but AwaitWaiting is called under Mu, also for its
// transactions.
type DB[K comparable, R any] struct {
	Mu        sync.Mutex
	Committed map[K]R
	Open      map[*Tx[K, R]]struct{}

	// Victim chooses who is rolled back of those that wait for each other. The first one has come
	// last.
	Victim func(circle []*Tx[K, R]) *Tx[K, R]
	// Deadlock is its error, and why it has ended.
	Deadlock error

	locks map[K]*lock[K, R]
	news  chan struct{} // closed when a transaction begins to wait
}

// Tx is a transaction.
type Tx[K comparable, R any] struct {
	Session  uint64
	Written  map[K]R    // what others see after the commit, of rows that it has locked
	Snapshot map[K]R    // nil before Read
	Locked   map[K]bool // true: shared
	Changed  int64      // how many rows it has changed elsewhere
	Over     error      // why it has ended, or nil

	db    *DB[K, R]
	waits *waiter[K, R] // nil unless it waits
}

// lock is the lock of a row, whether that is there or not.
type lock[K comparable, R any] struct {
	holders map[*Tx[K, R]]bool // true: shared
	queue   []*waiter[K, R]    // first come, first served
}

// waiter is a transaction that waits for a row.
type waiter[K comparable, R any] struct {
	tx     *Tx[K, R]
	key    K
	shared bool
	done   chan struct{} // closed when the row is locked, or the wait has failed
	err    error
}

// New returns a DB without rows, in which whoever closes a circle of waits is rolled back.
func New[K comparable, R any](deadlock error) *DB[K, R] {
	return &DB[K, R]{
		Committed: make(map[K]R), Open: make(map[*Tx[K, R]]struct{}), Deadlock: deadlock,
		Victim: func(circle []*Tx[K, R]) *Tx[K, R] { return circle[0] },
		locks:  make(map[K]*lock[K, R]), news: make(chan struct{}),
	}
}

// AwaitWaiting returns when n transactions wait for rows that are wanted, or with the error of the
// context.
func (db *DB[K, R]) AwaitWaiting(ctx context.Context, n int, wanted func(K) bool) error {
	for {
		db.Mu.Lock()
		waiting, news := 0, db.news
		for key, l := range db.locks {
			if wanted(key) {
				waiting += len(l.queue)
			}
		}
		db.Mu.Unlock()
		if waiting >= n {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Begin begins a transaction.
func (db *DB[K, R]) Begin(session uint64) *Tx[K, R] {
	t := &Tx[K, R]{Session: session, Written: make(map[K]R), Locked: make(map[K]bool), db: db}
	db.Open[t] = struct{}{}
	return t
}

// Read takes the snapshot, unless there is one.
func (t *Tx[K, R]) Read() {
	if t.Snapshot == nil {
		t.Snapshot = maps.Clone(t.db.Committed)
	}
}

// Current returns a row as it was committed last, or as the transaction has written it.
func (t *Tx[K, R]) Current(key K) (R, bool) {
	r, ok := t.Written[key]
	if !ok {
		r, ok = t.db.Committed[key]
	}
	return r, ok
}

// Commit makes what was written visible. It returns Over if the transaction has ended.
func (t *Tx[K, R]) Commit() error {
	if t.Over != nil {
		return t.Over
	}
	maps.Copy(t.db.Committed, t.Written)
	t.End(sql.ErrTxDone)
	return nil
}

// End ends the transaction, and lets others have its locks. If it waits, that ends with the error.
func (t *Tx[K, R]) End(why error) {
	t.Over = why
	delete(t.db.Open, t)
	if t.waits != nil {
		t.leave(why)
	}
	t.Release()
}

// Release releases all locks and the snapshot, as a server does that rolls back to a savepoint
// before which the transaction has done nothing.
func (t *Tx[K, R]) Release() {
	for key := range t.Locked {
		l := t.db.locks[key]
		delete(l.holders, t)
		t.db.wake(key, l)
	}
	clear(t.Locked)
	t.Snapshot = nil
}

// Waits reports whether the transaction waits for a row.
func (t *Tx[K, R]) Waits() bool { return t.waits != nil }

// Free reports whether the transaction has a row locked exclusively, or could lock it at once.
func (t *Tx[K, R]) Free(key K) bool {
	l := t.db.locks[key]
	return l == nil || t.has(key, false) || len(l.blockers(t, false, l.queue)) == 0
}

// has reports whether the transaction has the row locked so, or more.
func (t *Tx[K, R]) has(key K, shared bool) bool {
	mode, has := t.Locked[key]
	return has && (shared || !mode)
}

// TryLock locks a row, there or not, unless it would have to wait for that.
func (t *Tx[K, R]) TryLock(key K, shared bool) bool {
	if t.has(key, shared) {
		return true
	}
	l := t.db.locks[key]
	if l == nil {
		l = &lock[K, R]{holders: make(map[*Tx[K, R]]bool)}
		t.db.locks[key] = l
	}
	if len(l.blockers(t, shared, l.queue)) > 0 {
		return false
	}
	l.give(t, key, shared)
	return true
}

// Lock locks a row, there or not. It waits for that without Mu: until the context ends, or for the
// time given, 0 for as long as it takes, whose error is tooLong.
func (t *Tx[K, R]) Lock(ctx context.Context, key K, shared bool, atMost time.Duration, tooLong error) error {
	if t.TryLock(key, shared) {
		return nil
	}
	db, l := t.db, t.db.locks[key]
	w := &waiter[K, R]{tx: t, key: key, shared: shared, done: make(chan struct{})}
	t.waits, l.queue = w, append(l.queue, w)
	for t.waits == w { // it may close several circles
		circle := db.circle(t, t, make(map[*Tx[K, R]]bool))
		if circle == nil {
			break
		}
		db.Victim(circle).End(db.Deadlock)
	}
	close(db.news)
	db.news = make(chan struct{})
	var late <-chan time.Time
	if atMost > 0 {
		timer := time.NewTimer(atMost)
		defer timer.Stop()
		late = timer.C
	}
	db.Mu.Unlock()
	var why error
	select {
	case <-w.done:
	case <-late:
		why = tooLong
	case <-ctx.Done():
		why = ctx.Err()
	}
	db.Mu.Lock()
	if t.waits == w { // it wasn't answered meanwhile
		t.leave(why)
	}
	return w.err
}

// Share lets others share a row that the transaction has locked and doesn't write.
func (t *Tx[K, R]) Share(key K) {
	l := t.db.locks[key]
	l.give(t, key, true)
	t.db.wake(key, l)
}

// leave takes a transaction out of the queue where it waits, with an error.
func (t *Tx[K, R]) leave(why error) {
	w, l := t.waits, t.db.locks[t.waits.key]
	l.queue = slices.DeleteFunc(l.queue, func(other *waiter[K, R]) bool { return other == w })
	w.answer(why)
	t.db.wake(w.key, l)
}

func (w *waiter[K, R]) answer(err error) {
	w.tx.waits, w.err = nil, err
	close(w.done)
}

func (l *lock[K, R]) give(t *Tx[K, R], key K, shared bool) {
	l.holders[t], t.Locked[key] = shared, shared
}

// wake gives a row to those who can have it now.
func (db *DB[K, R]) wake(key K, l *lock[K, R]) {
	for i := 0; i < len(l.queue); {
		w := l.queue[i]
		if len(l.blockers(w.tx, w.shared, l.queue[:i])) > 0 {
			i++
			continue
		}
		l.queue = slices.Delete(l.queue, i, i+1)
		l.give(w.tx, key, w.shared)
		w.answer(nil)
	}
	if len(l.holders) == 0 && len(l.queue) == 0 {
		delete(db.locks, key)
	}
}

// blockers returns those that keep a transaction from the row: holders, and waiters ahead of it.
func (l *lock[K, R]) blockers(t *Tx[K, R], shared bool, ahead []*waiter[K, R]) (others []*Tx[K, R]) {
	for holder, sharing := range l.holders {
		if holder != t && (!shared || !sharing) {
			others = append(others, holder)
		}
	}
	for _, w := range ahead {
		if w.tx != t && (!shared || !w.shared) {
			others = append(others, w.tx)
		}
	}
	return others
}

// circle returns the transactions on a way of waits from one to another, or nil. It begins with
// the one that they wait for.
func (db *DB[K, R]) circle(from, to *Tx[K, R], been map[*Tx[K, R]]bool) []*Tx[K, R] {
	been[from] = true
	w := from.waits
	if w == nil {
		return nil
	}
	l := db.locks[w.key]
	for _, other := range l.blockers(from, w.shared, l.queue[:slices.Index(l.queue, w)]) {
		if other == to {
			return []*Tx[K, R]{from}
		}
		if been[other] {
			continue
		}
		if way := db.circle(other, to, been); way != nil {
			return append([]*Tx[K, R]{from}, way...)
		}
	}
	return nil
}
