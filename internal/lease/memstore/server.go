package memstore

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
)

// Server has the leases. Its methods may be called from any goroutine.
type Server struct {
	mu       sync.Mutex // for all below, and for the transactions and the stores
	rows     map[store.Row]rules.Row
	locks    map[store.Row]*lock
	sessions uint64
	clock    func() time.Time
	ahead    time.Duration
	news     chan struct{} // closed when somebody begins to wait

	started time.Time
	skipped atomic.Int64 // nanoseconds
}

// lock is the lock of a row, whether that is there or not.
type lock struct {
	holder *Tx
	queue  []*waiter // first come, first served
}

// waiter is a transaction that waits for a row.
type waiter struct {
	tx   *Tx
	at   store.Row
	done chan error // of one place: nil when the row is locked
}

// New returns a server without leases, whose clock is that of package time.
func New() *Server {
	return &Server{
		rows: make(map[store.Row]rules.Row), locks: make(map[store.Row]*lock), news: make(chan struct{}),
		clock: time.Now, started: time.Now(),
	}
}

// Store returns the way of a process to the server.
func (db *Server) Store() *Store {
	s := &Store{server: db}
	s.session = session{store: s}
	return s
}

// SetClock sets the server's clock so far ahead of package time, behind it where that is
// negative. The stores know of it when they read the clock again, once a minute.
func (db *Server) SetClock(ahead time.Duration) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.ahead = ahead
}

// Skip lets time go on for the clocks, of the server and of its stores, and not for timers:
// as for processes that were stopped meanwhile.
func (db *Server) Skip(d time.Duration) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.ahead += d
	db.skipped.Add(int64(d))
}

// Forget loses all rows, as a server does that comes back without its data.
func (db *Server) Forget() {
	db.mu.Lock()
	defer db.mu.Unlock()
	clear(db.rows)
}

// SetNow makes the server's clock show what a function returns, instead of package time.
func (db *Server) SetNow(now func() time.Time) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.clock = now
}

// AwaitWaiting returns when so many calls wait for rows of a key, in Queued, Wait, Turn
// or Guard, or with the error of the context.
func (db *Server) AwaitWaiting(ctx context.Context, key string, n int) error {
	for {
		db.mu.Lock()
		waiting, news := 0, db.news
		for at, l := range db.locks {
			if at.Key == key {
				waiting += len(l.queue)
			}
		}
		db.mu.Unlock()
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

// What follows is called under Server.mu.

// now is what the server's clock shows.
func (db *Server) now() int64 { return db.clock().Add(db.ahead).UnixMicro() }

// begin opens a transaction, at REPEATABLE READ or at READ COMMITTED.
func (db *Server) begin(repeatable bool) *Tx {
	db.sessions++
	return &Tx{
		db: db, id: db.sessions, repeatable: repeatable, sending: make(chan struct{}, 1),
		written: make(map[store.Row]rules.Row), locked: make(map[store.Row]struct{}), fenced: make(map[string]bool),
	}
}

// unlock gives a row to the first who waits for it.
func (db *Server) unlock(at store.Row) {
	l := db.locks[at]
	if len(l.queue) == 0 {
		delete(db.locks, at)
		return
	}
	w := l.queue[0]
	l.queue = l.queue[1:]
	l.holder, w.tx.waits = w.tx, nil
	w.tx.locked[at] = struct{}{}
	w.done <- nil
}

// leave takes a waiter out of its queue, with an error.
func (db *Server) leave(w *waiter, why error) {
	l := db.locks[w.at]
	l.queue = slices.DeleteFunc(l.queue, func(other *waiter) bool { return other == w })
	w.tx.waits = nil
	w.done <- why
}

// places returns which of the rows are those of a key's readers and permits, in order.
func places(rows map[store.Row]rules.Row, key string) (all []store.Row) {
	for at := range rows {
		if at.Key == key && at.Slot > store.LeaseSlot {
			all = append(all, at)
		}
	}
	slices.SortFunc(all, store.Row.Compare)
	return all
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
