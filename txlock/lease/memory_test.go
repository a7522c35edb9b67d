package lease_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// job is a key of the tests in memory, each of which has a server of its own.
var job = txlock.Named("job")

// memory is a server in memory, for a test in a bubble: time passes when everybody waits.
type memory struct {
	*memstore.Server
	t     *testing.T
	begun time.Time
}

// inMemory runs a test without a server.
func inMemory(t *testing.T, test func(t *testing.T, db *memory)) {
	t.Helper()
	leasetest.InBubble(t, 72*time.Hour, func(t *testing.T) { test(t, &memory{memstore.New(), t, time.Now()}) })
}

// runInMemory runs a subtest without a server.
func runInMemory(t *testing.T, name string, test func(t *testing.T, db *memory)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inMemory(t, test) })
}

// manager returns a manager of a process of its own.
func (db *memory) manager(options ...lease.ManagerOption) *lease.Manager {
	m, _ := db.process(options...)
	return m
}

// process returns a manager, and the wire that it has to the server. It has no cleanup loop
// unless the options say so.
func (db *memory) process(options ...lease.ManagerOption) (*lease.Manager, *wire) {
	db.t.Helper()
	s := db.Store()
	w := &wire{Store: s, begun: db.begun, faults: make(map[string]memstore.Fault)}
	w.Up()
	pool := s.Pool()
	db.t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			db.t.Error(err)
		}
	})
	return newManager(db.t, pool, append([]lease.ManagerOption{lease.TTL(30 * time.Second), lease.PurgeEvery(0, time.Hour)}, options...)...), w
}

// at checks how much time has passed in the test.
func (db *memory) at(what string, want time.Duration) {
	db.t.Helper()
	if got := time.Since(db.begun); got != want {
		db.t.Errorf("%s after %v, want %v", what, got, want)
	}
}

// within checks that some time has passed in the test, and not too much.
func (db *memory) within(what string, least, most time.Duration) {
	db.t.Helper()
	if got := time.Since(db.begun); got < least || got > most {
		db.t.Errorf("%s after %v, want %v to %v", what, got, least, most)
	}
}

// after sleeps until so much time has passed in the test.
func (db *memory) after(d time.Duration) { time.Sleep(d - time.Since(db.begun)) }

// sent is a call of a store.
type sent struct {
	op string
	at store.Row
	in time.Duration // since the beginning of the test
}

// wire notes the calls of a store, and lets some of them fail.
type wire struct {
	*memstore.Store
	begun time.Time

	mu     sync.Mutex
	all    []sent
	faults map[string]memstore.Fault // by the name of the call
}

// Up ends all faults.
func (w *wire) Up() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.faults)
	w.SetFault(w.pass)
}

// fault sets what becomes of the calls of a name, nil for nothing.
func (w *wire) fault(op string, f memstore.Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[op] = f
}

func (w *wire) pass(ctx context.Context, op string, at store.Row, call func() error) error {
	w.mu.Lock()
	w.all = append(w.all, sent{op, at, time.Since(w.begun)})
	f := w.faults[op]
	w.mu.Unlock()
	if f == nil {
		return call()
	}
	return f(ctx, op, at, call)
}

// calls returns the calls of a name.
func (w *wire) calls(op string) (all []sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.all {
		if s.op == op {
			all = append(all, s)
		}
	}
	return all
}

// sends checks how many calls of a name there were.
func (w *wire) sends(t *testing.T, op string, want int) {
	t.Helper()
	if n := len(w.calls(op)); n != want {
		t.Errorf("%s was sent %d times, want %d", op, n, want)
	}
}

// guarding begins a transaction that guards a lease, or several.
func (w *wire) guarding(t *testing.T, l interface {
	Guard(context.Context, txlock.Tx, ...txlock.JoinOption) error
}) *memstore.Tx {
	t.Helper()
	tx := w.Begin()
	must(t, l.Guard(t.Context(), tx))
	return tx
}

// times returns when the calls of a name were sent.
func (w *wire) times(op string) (all []time.Duration) {
	for _, s := range w.calls(op) {
		all = append(all, s.in)
	}
	return all
}

// total counts all calls.
func (w *wire) total() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.all)
}

// seconds checks when the calls of a name were sent.
func (w *wire) seconds(t *testing.T, op string, want ...time.Duration) {
	t.Helper()
	for i := range want {
		want[i] *= time.Second
	}
	if got := w.times(op); !slices.Equal(got, want) {
		t.Errorf("%s was sent at %v, want %v", op, got, want)
	}
}

// The faults.

// fails lets calls fail without an effect.
func fails(_ context.Context, _ string, _ store.Row, _ func() error) error {
	return mysql.ErrInvalidConn
}

// loses lets calls do what they do, and loses the answers.
func loses(_ context.Context, _ string, _ store.Row, call func() error) error {
	_ = call() // nobody is told
	return mysql.ErrInvalidConn
}

// hangs lets calls do nothing until their contexts end.
func hangs(ctx context.Context, _ string, _ store.Row, _ func() error) error {
	<-ctx.Done()
	return ctx.Err()
}

// slow lets calls arrive later.
func slow(d time.Duration) memstore.Fault {
	return func(_ context.Context, _ string, _ store.Row, call func() error) error {
		time.Sleep(d)
		return call()
	}
}

// answersLate lets the answers of calls arrive later, whatever their contexts.
func answersLate(d time.Duration) memstore.Fault {
	return func(_ context.Context, _ string, _ store.Row, call func() error) error {
		err := call()
		time.Sleep(d)
		return err
	}
}

// times lets a number of calls go wrong, and none after them.
func times(n int, f memstore.Fault) memstore.Fault {
	var mu sync.Mutex
	return func(ctx context.Context, op string, at store.Row, call func() error) error {
		mu.Lock()
		n--
		wrong := n >= 0
		mu.Unlock()
		if !wrong {
			return call()
		}
		return f(ctx, op, at, call)
	}
}

// done reports whether a handle says that it is over.
func done(l *lease.Lease) bool {
	select {
	case <-l.Done():
		return true
	default:
		return false
	}
}
