package job

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/jobrow/memtable"
	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/memdb"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

var must, wants, limited, newPool, onServers = testdb.Must, testdb.Wants, leasetest.Limited, leasetest.Pool, testdb.OnDatabases

// ticks demands what a call for a tick returns: whether it has run, and each of these errors.
func ticks(t testing.TB, want bool, errs ...error) func(ran bool, err error) {
	return func(ran bool, err error) {
		t.Helper()
		testdb.Equal(t, "it has run", ran, want)
		wants(t, "the tick", err, errs...)
	}
}

// statusOf is what the table says of a job.
func statusOf(t testing.TB, j *Jobs, key txlock.Key) Status {
	t.Helper()
	return testdb.Got(j.Status(t.Context(), key))(t)
}

var nightly = txlock.Named("nightly")

// cluster is a server in memory, for a test in a bubble.
type cluster struct {
	t      *testing.T
	leases *memstore.Server

	mu   sync.Mutex
	step time.Duration // by which the server's clock was set
	rows map[string]gen.ListJobsRow
}

// inMemory runs a test without a server.
func inMemory(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	leasetest.InBubble(t, 3*365*24*time.Hour, func(t *testing.T) {
		test(t, &cluster{t: t, leases: memstore.New(), rows: make(map[string]gen.ListJobsRow)})
	})
}

func (c *cluster) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.step)
}

// set sets the server's clock for jobs.
func (c *cluster) set(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step += by
}

// node is a process.
type node struct {
	*Jobs
	t      *testing.T
	store  *memstore.Store
	ledger *memLedger
	leases *lease.Manager
	events *events
}

const ttl = 3 * time.Second

// node starts a process, which is closed at the end of the test.
func (c *cluster) node(opts ...Option) *node {
	c.t.Helper()
	n := &node{t: c.t, store: c.leases.Store(), events: new(events)}
	n.ledger = &memLedger{cluster: c}
	n.ledger.db = n.ledger
	pool := n.store.Pool()
	var err error
	n.leases, err = lease.NewManager(pool, lease.TTL(ttl), lease.PurgeEvery(0, time.Hour), lease.NameHolders())
	must(c.t, err)
	n.Jobs, err = newJobs(pool, n.leases, n.ledger, append([]Option{Observe(n.events.add), Log(nil)}, opts...)...)
	must(c.t, err)
	c.t.Cleanup(func() {
		n.store.Up()
		n.ledger.down(nil)
		must(c.t, errors.Join(n.Close(context.Background()), n.leases.Close(context.Background()), pool.Close()))
	})
	return n
}

// die cuts the process off from the server.
func (n *node) die() {
	n.store.Down(nil)
	n.ledger.down(errors.New("cut off"))
}

// events are what an observer was told.
type events struct {
	mu  sync.Mutex
	all []Event
}

func (e *events) add(_ context.Context, event Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

func (e *events) of(kind Kind) (found []Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.all {
		if event.Kind == kind {
			found = append(found, event)
		}
	}
	return found
}

// errSilent is the fault of a server that doesn't answer.
var errSilent = errors.New("silent")

// memLedger is what a process sees of the table in memory: it sends the statements of the table's ledger
// to itself.
type memLedger struct {
	sqlLedger
	gen.DBTX
	*cluster
	fault error
	calls int
}

func (m *memLedger) sent() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

func (m *memLedger) down(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = err
}

// answer waits for the answer of the server, and is called with the lock.
func (m *memLedger) answer(ctx context.Context) error {
	m.mu.Unlock()
	time.Sleep(time.Millisecond) // the way to the server
	m.mu.Lock()
	m.calls++
	if m.fault == errSilent { //nolint:errorlint // nothing else
		m.mu.Unlock()
		<-ctx.Done()
		m.mu.Lock()
	}
	return errors.Join(ctx.Err(), m.fault)
}

// ExecContext executes one of the statements of jobs.
func (m *memLedger) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if s, rendered := rawsql.RenderedOf(ctx, query); rendered {
		query, args = s.SQL()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answer(ctx); err != nil {
		return nil, err
	}
	if query == gen.SealOnce {
		return driver.RowsAffected(0), nil
	}
	job := memtable.Statements[query]
	name := memdb.Args(args).Text(job.Name)
	r, changed := job.Change(m.rows[name], args, time.Now().Add(m.step).UnixMicro())
	if !changed {
		return driver.RowsAffected(0), nil
	}
	m.rows[name] = r
	return driver.RowsAffected(1), nil
}

func (m *memLedger) look(ctx context.Context, key string) (r row, now time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now = time.Now().Add(m.step)
	err = m.answer(ctx)
	r.ListJobsRow, r.known = m.rows[key]
	r.NowUs = now.UnixMicro()
	return r, now, err
}

func (m *memLedger) list(context.Context) (rows []row, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.rows {
		r.NowUs = time.Now().Add(m.step).UnixMicro()
		rows = append(rows, row{true, r})
	}
	return rows, nil
}

func TestMain(m *testing.M) {
	if isChild() {
		child()
		return
	}
	testdb.Main(m)
}
