package job

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

var must, wants, limited, newPool, onServers = leasetest.Must, leasetest.Wants, leasetest.Limited, leasetest.Pool, testdb.OnDatabases

// ticks demands what a call for a tick returns: whether it has run, and each of these errors.
func ticks(t testing.TB, want bool, errs ...error) func(ran bool, err error) {
	return func(ran bool, err error) {
		t.Helper()
		leasetest.Equal(t, "it has run", ran, want)
		wants(t, "the tick", err, errs...)
	}
}

// statusOf is what the table says of a job.
func statusOf(t testing.TB, j *Jobs, key txlock.Key) Status {
	t.Helper()
	return leasetest.Got(j.Status(t.Context(), key))(t)
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
	n := &node{t: c.t, store: c.leases.Store(), ledger: &memLedger{cluster: c}, events: new(events)}
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

// memLedger is what a process sees of the table in memory.
type memLedger struct {
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

// change changes a row as an UPDATE does, unless f refuses.
func (m *memLedger) change(ctx context.Context, key string, f func(r *gen.ListJobsRow, now int64) bool) (bool, error) {
	time.Sleep(time.Millisecond) // the way to the server
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.fault == errSilent { //nolint:errorlint // nothing else
		m.mu.Unlock()
		<-ctx.Done()
		m.mu.Lock()
		return false, ctx.Err()
	}
	if err := errors.Join(ctx.Err(), m.fault); err != nil {
		return false, err
	}
	r, known := m.rows[key]
	if !known || !f(&r, time.Now().Add(m.step).UnixMicro()) {
		return false, nil
	}
	m.rows[key] = r
	return true, nil
}

func (m *memLedger) look(ctx context.Context, key string) (row, time.Time, error) {
	now := m.now()
	var found row
	known, err := m.change(ctx, key, func(r *gen.ListJobsRow, _ int64) bool { found.ListJobsRow = *r; return true })
	found.known, found.NowUs = known, now.UnixMicro()
	return found, now, err
}

func (m *memLedger) make(ctx context.Context, key string, from time.Time, p coming) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := errors.Join(ctx.Err(), m.fault); err != nil {
		return err
	}
	if _, known := m.rows[key]; !known {
		m.rows[key] = gen.ListJobsRow{
			Name: []byte(key), TickUs: from.UnixMicro(), DoneUs: from.UnixMicro(), Error: []byte("-"), NextUs: p.us(), Schedule: []byte(p.schedule),
		}
	}
	return nil
}

func (m *memLedger) plan(ctx context.Context, key string, r row, p coming) error {
	_, err := m.change(ctx, key, func(now *gen.ListJobsRow, _ int64) bool {
		if now.TickUs == r.TickUs {
			now.NextUs, now.Schedule = p.us(), []byte(p.schedule)
		}
		return true
	})
	return err
}

func (m *memLedger) differs(ctx context.Context, key, schedule string) error {
	_, err := m.change(ctx, key, func(r *gen.ListJobsRow, now int64) bool {
		if string(r.Schedule) != schedule {
			r.Differs, r.DiffersUs = []byte(schedule), now
		}
		return true
	})
	return err
}

func (m *memLedger) begin(ctx context.Context, b beginning) (bool, error) {
	return m.change(ctx, b.key, func(r *gen.ListJobsRow, now int64) bool {
		us := b.at.UnixMicro()
		if r.DoneUs >= us || r.TickUs > us || r.Token >= b.token || r.PausedUs != 0 && r.RunUs != us {
			return false
		}
		if r.TickUs != us {
			r.Failures = 0
		}
		if r.Token == 0 {
			r.DoneUs = never.UnixMicro()
		}
		r.TickUs, r.Owner, r.StartedUs, r.EndedUs, r.Token = us, []byte(b.instance), now, 0, b.token
		r.NextUs, r.Schedule, r.LimitUs = b.coming.us(), []byte(b.coming.schedule), b.coming.limit.Microseconds()
		return true
	})
}

// end is what done and failed have in common. No test in memory looks at the last runs.
func (m *memLedger) end(ctx context.Context, b beginning, f func(r *gen.ListJobsRow)) (bool, error) {
	return m.change(ctx, b.key, func(r *gen.ListJobsRow, now int64) bool {
		if r.TickUs != b.at.UnixMicro() || r.Token != b.token || r.EndedUs != 0 {
			return false
		}
		f(r)
		r.TookUs, r.EndedUs = max(0, now-r.StartedUs), now
		return true
	})
}

func (m *memLedger) done(ctx context.Context, b beginning, _ jobrow.Run) (bool, error) {
	return m.end(ctx, b, func(r *gen.ListJobsRow) { r.DoneUs, r.Failures, r.Error = r.TickUs, 0, []byte("-") })
}

func (m *memLedger) failed(ctx context.Context, b beginning, _ jobrow.Run, why string) (bool, error) {
	return m.end(ctx, b, func(r *gen.ListJobsRow) { r.Failures++; r.Error = bytes.Clone([]byte(clipped(why))) })
}

func (m *memLedger) seal(ctx context.Context, key string) error {
	return testdb.Err(m.change(ctx, key, func(*gen.ListJobsRow, int64) bool { return true }))
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
