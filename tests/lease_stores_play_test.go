package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

const (
	playStart     = int64(1_900_000_000_000_000)
	playRetention = 30 * time.Minute
	playKeys      = 2
	neighbour     = "play:0~" // a row of nobody's between those of the keys

	poll     = 10 * time.Millisecond
	settling = 5 * poll // is for how long work in the background is waited for, in the time of the bubble

	settlingRow = 3 * time.Second // outlasts any statement that waits for a row
)

// play is one random history: the same steps of the same managers on a server and on the
// store in memory. It runs in a bubble of testing/synctest, where time moves only while
// nobody has anything to do or waits for the server; no time to live ends by that. The
// clocks of both stores stand still but for the steps of time.
type play struct {
	sides    [2]*side // the server, the memory
	admin    *sql.DB
	memory   *memstore.Server
	clock    *atomic.Int64
	handles  []*handle
	names    renaming
	open     bool                 // there is a transaction
	owes     bool                 // something is released after it
	tokens   map[store.Row]uint64 // of the rows, which only rise
	waiting  *waiting
	wrong    error // the first difference
	steps    []string
	began    time.Time
	numbered int // handles
	keys     int
}

// side is one of the two stores with its managers and its transaction.
type side struct {
	pool     func() *sql.DB // of a new manager
	pools    []*sql.DB      // to be closed
	managers [2]*lease.Manager
	dead     []*lease.Manager
	begin    func(sql.IsolationLevel) (transaction, error)
	read     func(transaction) error
	tx       transaction
}

type transaction interface {
	txlock.Tx
	Commit() error
	Rollback() error
}

// handle is what was acquired on both sides.
type handle struct {
	asked
	id     int
	leases [2]*lease.Lease
}

func (h *handle) String() string {
	return fmt.Sprintf("lease %d, of %q in manager %d for key %d", h.id, h.leases[1].Owner(), h.manager, h.key)
}

// newPlay begins a history without a row, in a bubble.
func newPlay(db *testdb.DB, rewrite func(string) string, guarded bool) (*play, error) {
	p := &play{
		began: time.Now(), keys: playKeys,
		clock: new(atomic.Int64), memory: memstore.New(),
		names: renaming{make(map[string]string), make(map[string]string)}, tokens: make(map[store.Row]uint64),
	}
	p.clock.Store(playStart)
	p.memory.SetNow(func() time.Time { return time.UnixMicro(p.clock.Load()) })
	var err error
	if p.admin, err = sql.Open("mysql", db.AdminDSN()); err != nil {
		return p, err
	}
	_, err = p.admin.ExecContext(context.Background(), "DELETE FROM lockstep_leases")
	if err == nil { // at REPEATABLE READ it is locked with the readers of the key before it
		_, err = p.admin.ExecContext(context.Background(), "INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) "+
			"VALUES (?, 0, '-', LEFT('-', 0), 0, 0, 9000000000000000, 0, 0)", neighbour)
	}
	pool, failed := wire{rewrite: rewrite, clock: p.clock}.pool(db, guarded)
	if err = errors.Join(err, failed); err != nil {
		return p, err
	}
	p.sides[0] = &side{
		pool:  func() *sql.DB { return pool },
		pools: []*sql.DB{pool},
		begin: func(level sql.IsolationLevel) (transaction, error) {
			return pool.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
		},
		read: func(tx transaction) error {
			var n int
			return tx.QueryRowContext(context.Background(), "SELECT COUNT(*) FROM lockstep_locks").Scan(&n)
		},
	}
	p.sides[1] = inMemory(p.memory, guarded)
	for i := range 2 {
		err = errors.Join(err, p.revive(i))
	}
	return p, err
}

// inMemory is the side of the store in memory. A new manager is a new process.
func inMemory(server *memstore.Server, guarded bool) *side {
	s, program := new(side), server.Store()
	s.pool = func() *sql.DB {
		pool := server.Store().Pool()
		s.pools = append(s.pools, pool)
		return pool
	}
	s.begin = func(level sql.IsolationLevel) (transaction, error) {
		tx := program.Begin()
		if level == sql.LevelReadCommitted {
			tx = program.BeginReadCommitted()
		}
		if !guarded {
			tx.Unguarded()
		}
		return tx, nil
	}
	s.read = func(tx transaction) error {
		tx.(*memstore.Tx).Read()
		return nil
	}
	return s
}

// revive starts managers in the place of those that have ended.
func (p *play) revive(i int) (err error) {
	for _, s := range p.sides {
		var failed error
		s.managers[i], failed = lease.NewManager(s.pool(), lease.PurgeEvery(0, playRetention), lease.Poll(poll, poll))
		err = errors.Join(err, failed)
	}
	return err
}

// end ends all that is open.
func (p *play) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	p.finish(false)
	err := p.admin.Close()
	if p.waiting != nil {
		p.waiting.cancel()
		time.Sleep(settling)
	}
	for _, s := range p.sides {
		if s == nil {
			continue
		}
		for _, m := range append(s.dead, s.managers[:]...) {
			if m != nil {
				err = errors.Join(err, m.Close(ctx))
			}
		}
		for _, pool := range s.pools {
			err = errors.Join(err, pool.Close())
		}
	}
	return err
}

// step notes what is done and goes on, unless there was a difference before.
func (p *play) step(format string, args ...any) bool {
	if p.wrong == nil {
		p.steps = append(p.steps, fmt.Sprint(time.Since(p.began), " ")+fmt.Sprintf(format, args...))
	}
	return p.wrong == nil
}

// differ notes the first difference.
func (p *play) differ(format string, args ...any) {
	if p.wrong == nil {
		p.wrong = fmt.Errorf("after %v:\n%s\n%s", time.Since(p.began), strings.Join(p.steps, "\n"), fmt.Sprintf(format, args...))
	}
}

// both calls on both sides and compares the errors, of which it returns the server's.
func (p *play) both(what string, call func(i int, s *side) error) error {
	var errs [2]error
	for i, s := range p.sides {
		errs[i] = call(i, s)
	}
	p.same(what, errs)
	return errs[0]
}

// same compares errors by what a program may ask of them.
func (p *play) same(what string, errs [2]error) {
	if kindsOf(errs[0]) != kindsOf(errs[1]) {
		p.differ("%s: %v on the server, %v in memory", what, errs[0], errs[1])
	}
}

// kinds are the errors that are compared.
var kinds = []error{
	txlock.ErrBusy, txlock.ErrLost, txlock.ErrNotHeld, txlock.ErrUpgrade, txlock.ErrTooManyHolds, txlock.ErrStaleSnapshot,
	txlock.ErrInvalidKey, txlock.ErrInvalidOption, txlock.ErrWaitTimeout, txlock.ErrDeadlock, txlock.ErrTxDoomed,
	txlock.ErrNoTransaction, lease.ErrGuarded, lease.ErrClosed, lease.ErrReplaced, lease.ErrOtherDatabase,
	context.Canceled, context.DeadlineExceeded, sql.ErrTxDone,
}

// kindsOf returns which of the kinds an error is, and "" for none.
func kindsOf(err error) (all string) {
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			all += kind.Error() + "; "
		}
	}
	if err != nil && all == "" {
		return "of another kind"
	}
	return all
}

// outcome is what a call has returned.
type outcome struct {
	lease *lease.Lease
	err   error
}

// acquired compares what was acquired on both sides.
func (p *play) acquired(a asked, got [2]outcome) {
	p.same("acquire", [2]error{got[0].err, got[1].err})
	l, m := got[0].lease, got[1].lease
	if p.wrong != nil || l == nil && m == nil {
		return
	}
	if l == nil || m == nil || l.Token() != m.Token() || l.Shared() != m.Shared() || !p.names.same("owner", l.Owner(), m.Owner()) {
		p.differ("acquired: %v on the server, %v in memory", describe(l), describe(m))
		return
	}
	p.numbered++
	p.handles = append(p.handles, &handle{asked: a, id: p.numbered, leases: [2]*lease.Lease{l, m}})
}

func describe(l *lease.Lease) string {
	if l == nil {
		return "nothing"
	}
	return fmt.Sprintf("token %d of %q, shared %v", l.Token(), l.Owner(), l.Shared())
}

// compare compares the call that waits, what the handles say, the rows, and what List and
// Inspect tell. What goes on in the background may take a while.
func (p *play) compare() {
	for tries := 0; p.wrong == nil; tries++ {
		time.Sleep(settling)
		synctest.Wait()
		difference := errors.Join(p.compareWaiting(), p.compareHandles(), p.compareRows(), p.compareInfos())
		if difference == nil {
			return
		}
		if tries == 10 {
			p.differ("%v", difference)
		}
	}
}

func (p *play) compareHandles() error {
	for _, h := range p.handles {
		if l, m := h.leases[0], h.leases[1]; kindsOf(l.Err()) != kindsOf(m.Err()) || l.Token() != m.Token() {
			return fmt.Errorf("%s says %q, token %d on the server, and %q, token %d in memory", h, kindsOf(l.Err()), l.Token(), kindsOf(m.Err()), m.Token())
		}
	}
	return nil
}

func playKey(key int) txlock.Key { return txlock.Named(fmt.Sprintf("play:%d", key)) }
