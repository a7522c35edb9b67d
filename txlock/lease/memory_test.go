package lease_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
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
	testdb.Equal(db.t, what+" after", time.Since(db.begun), want)
}

// within checks that some time has passed in the test, and not too much.
func (db *memory) within(what string, least, most time.Duration) {
	db.t.Helper()
	took := time.Since(db.begun)
	testdb.ErrorIf(db.t, took < least || took > most, "%s after %v, want %v to %v", what, took, least, most)
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
	n := len(w.calls(op))
	testdb.ErrorIf(t, n != want, "%s was sent %d times, want %d", op, n, want)
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
	got := w.times(op)
	testdb.ErrorIf(t, !slices.Equal(got, want), "%s was sent at %v, want %v", op, got, want)
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

func TestMain(m *testing.M) { testdb.Main(m) }

var (
	must, wants, higher, limited = testdb.Must, testdb.Wants, leasetest.Higher, leasetest.Limited
	newPool, onServers, got      = leasetest.Pool, testdb.OnDatabases, testdb.Got[*lease.Lease]
)

// inner is what package lease does for lockstep's own packages.
var inner = lease.Internal(bridge.Pass{})

// onKinds runs a test on every server for guarded and plain pools.
func onKinds(t *testing.T, test func(t *testing.T, db *testdb.DB, guarded bool)) {
	t.Helper()
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, db, guarded)
			})
		}
	})
}

// onPools runs a test on every server over a guarded and a plain pool.
func onPools(t *testing.T, test func(t *testing.T, db *testdb.DB, pool *sql.DB)) {
	t.Helper()
	onKinds(t, func(t *testing.T, db *testdb.DB, guarded bool) { test(t, db, newPool(t, db, guarded)) })
}

// onDedicated runs a test on a server of each engine that nothing else uses.
func onDedicated(t *testing.T, test func(t *testing.T, server *testdb.Server)) {
	t.Helper()
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) { test(t, testdb.Dedicated(t, engine)) })
}

// sideBySide returns what runs a subtest beside the others, all of them in the place of
// one parallel test: for those that mostly wait for time to pass. The test calls wait
// before it returns.
func sideBySide(t *testing.T) (run func(name string, test func(t *testing.T)), wait func()) {
	var group sync.WaitGroup
	return func(name string, test func(t *testing.T)) {
		group.Go(func() { t.Run(name, test) })
	}, group.Wait
}

// newManager is a manager that is closed at the end, before its pool. Where the test names
// no TTL, it is one that doesn't end in a test, on a busy machine neither.
func newManager(t testing.TB, pool *sql.DB, options ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	m := testdb.Got(lease.NewManager(pool, append([]lease.ManagerOption{lease.TTL(5 * soon)}, options...)...))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		wants(t, "close the manager", m.Close(ctx), nil)
	})
	return m
}

// named is a key of this test alone.
func named() txlock.Key { return txlock.Named("test:" + rand.Text()) }

// manyNamed are several.
func manyNamed(n int) []txlock.Key { return several(n, func(int) txlock.Key { return named() }) }

func acquire(t testing.TB, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) *lease.Lease {
	t.Helper()
	return got(m.Acquire(t.Context(), key, options...))(t)
}

// verb acquires something under a key.
type verb func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error)

// by makes a verb of a method.
func by(method func(*lease.Manager, context.Context, txlock.Key, ...lease.AcquireOption) (*lease.Lease, error)) verb {
	return func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
		return method(m, ctx, key, options...)
	}
}

var (
	exclusive, tryExclusive = by((*lease.Manager).Acquire), by((*lease.Manager).TryAcquire)
	shared, tryShared       = by((*lease.Manager).AcquireShared), by((*lease.Manager).TryAcquireShared)
	fairly                  = exclusive.under(lease.Fair())
	permitOf, tryPermit     = ofOne((*lease.Semaphore).Acquire), ofOne((*lease.Semaphore).TryAcquire)
)

// under is the verb with options of its own.
func (v verb) under(more ...lease.AcquireOption) verb {
	return func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
		return v(ctx, m, key, slices.Concat(options, more)...)
	}
}

// ofOne makes a verb of a method of a semaphore of one permit.
func ofOne(method func(*lease.Semaphore, context.Context, ...lease.AcquireOption) (*lease.Lease, error)) verb {
	return func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
		s, err := m.Semaphore(key, 1)
		if err != nil {
			return nil, err
		}
		return method(s, ctx, options...)
	}
}

func release(t testing.TB, leases ...*lease.Lease) {
	t.Helper()
	for _, l := range leases {
		must(t, l.Release(context.Background()))
	}
}

// ended returns a context that has ended.
func ended(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// several makes as many values, each by its number.
func several[T any](n int, make func(i int) T) (all []T) {
	for i := range n {
		all = append(all, make(i))
	}
	return all
}

func list(t testing.TB, m *lease.Manager) []lease.Info {
	t.Helper()
	return testdb.Got(m.List(t.Context()))(t)
}

func inspect(t testing.TB, m *lease.Manager, key txlock.Key) lease.Info {
	t.Helper()
	return testdb.Got(m.Inspect(t.Context(), key))(t)
}

// contextOf returns the context of a lease, or of several, until the end of the test.
func contextOf(t testing.TB, of interface {
	Context(context.Context) (context.Context, context.CancelFunc)
}) context.Context {
	ctx, cancel := of.Context(t.Context())
	t.Cleanup(cancel)
	return ctx
}

// unhurried returns a time that is base on a quiet machine, and has room for twenty leases
// where the machine is slower now.
func unhurried(t testing.TB, m *lease.Manager, base time.Duration) time.Duration {
	t.Helper()
	var longest time.Duration
	for range 3 {
		begun := time.Now()
		release(t, acquire(t, m, named()))
		longest = max(longest, time.Since(begun))
	}
	return (base + 20*longest).Round(time.Millisecond)
}

// later makes a call in the background, and returns what hears of its result.
func later[T any](call func() T) chan T {
	result := make(chan T, 1)
	go func() { result <- call() }()
	return result
}

// entered checks that a handle is of the same lease as another.
func entered(t testing.TB, again, l *lease.Lease) {
	t.Helper()
	testdb.ErrorIf(t, again.Token() != l.Token(), "token %d inside of %d", again.Token(), l.Token())
}

// lasts returns after a time, and only when enough has happened to prove something,
// unless that takes too long: a loaded machine takes longer.
func lasts(d time.Duration, enough func() bool) {
	begun := time.Now()
	for time.Since(begun) < d || !enough() && time.Since(begun) < soon {
		time.Sleep(10 * time.Millisecond)
	}
}
