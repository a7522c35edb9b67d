package memstore

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/memdb"
)

// Server has the leases. Its methods may be called from any goroutine.
type Server struct {
	*memdb.DB[store.Row, rules.Row] // whose Mu is also for the stores, and for all below

	sessions uint64
	clock    func() time.Time
	ahead    time.Duration

	started time.Time
	skipped atomic.Int64 // nanoseconds
}

// rowTx has what a transaction has locked and written.
type rowTx = memdb.Tx[store.Row, rules.Row]

// New returns a server without leases, whose clock is that of package time.
func New() *Server {
	return &Server{DB: memdb.New[store.Row, rules.Row](errDeadlock), clock: time.Now, started: time.Now()}
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
	db.Mu.Lock()
	defer db.Mu.Unlock()
	db.ahead = ahead
}

// Skip lets time go on for the clocks, of the server and of its stores, and not for timers:
// as for processes that were stopped meanwhile.
func (db *Server) Skip(d time.Duration) {
	db.Mu.Lock()
	defer db.Mu.Unlock()
	db.ahead += d
	db.skipped.Add(int64(d))
}

// Forget loses all rows, as a server does that comes back without its data.
func (db *Server) Forget() {
	db.Mu.Lock()
	defer db.Mu.Unlock()
	clear(db.Committed)
}

// SetNow makes the server's clock show what a function returns, instead of package time.
func (db *Server) SetNow(now func() time.Time) {
	db.Mu.Lock()
	defer db.Mu.Unlock()
	db.clock = now
}

// AwaitWaiting returns when so many calls wait for rows of a key, in Queued, Wait, Turn
// or Guard, or with the error of the context.
func (db *Server) AwaitWaiting(ctx context.Context, key string, n int) error {
	return db.DB.AwaitWaiting(ctx, n, func(at store.Row) bool { return at.Key == key })
}

// What follows is called under Server.Mu.

// now is what the server's clock shows.
func (db *Server) now() int64 { return db.clock().Add(db.ahead).UnixMicro() }

// begin opens a transaction, at REPEATABLE READ or at READ COMMITTED.
func (db *Server) begin(repeatable bool) *Tx {
	db.sessions++
	return &Tx{rowTx: db.Begin(db.sessions), db: db, repeatable: repeatable, sending: make(chan struct{}, 1), fenced: make(map[string]bool)}
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
