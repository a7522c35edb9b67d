package lease_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// wiretap lies between a pool and its server and sees every statement that the
// driver sends, prepared ones by their text.
type wiretap struct {
	mu   sync.Mutex
	sent []string
	on   map[string]func(statement string) // by what the statement contains
}

// install makes it the network of a pool.
func (w *wiretap) install(c *mysql.Config) {
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &tappedConn{Conn: conn, tap: w, texts: make(map[uint32]string)}, nil
	}
}

// before has a function called before a statement is sent that contains a text.
func (w *wiretap) before(text string, call func(statement string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on = maps.Clone(w.on)
	if w.on == nil {
		w.on = make(map[string]func(string))
	}
	w.on[text] = call
}

// counter counts the statements from now on that contain a text.
func (w *wiretap) counter(text string) *atomic.Int64 {
	n := new(atomic.Int64)
	w.before(text, func(string) { n.Add(1) })
	return n
}

// count is how many statements were executed so far.
func (w *wiretap) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sent)
}

// last returns the last statements.
func (w *wiretap) last(n int) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.sent[len(w.sent)-n:]...)
}

// forget drops the texts of the statements, which are counted on.
func (w *wiretap) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.sent)
}

// statement notes one and calls who wants to know of it.
func (w *wiretap) statement(text string) {
	w.mu.Lock()
	w.sent = append(w.sent, text)
	on := w.on
	w.mu.Unlock()
	for part, call := range on {
		if strings.Contains(text, part) {
			call(text)
		}
	}
}

// tappedConn is a connection of a wiretap. The driver writes a command by one call.
type tappedConn struct {
	net.Conn
	tap       *wiretap
	texts     map[uint32]string // of prepared statements, by their numbers
	preparing string            // waits for its number
}

// The commands of the protocol that carry statements.
const (
	comQuery   = 0x03
	comPrepare = 0x16
	comExecute = 0x17
)

func (c *tappedConn) Write(b []byte) (int, error) {
	if len(b) > 5 && b[3] == 0 { // the first packet of a command
		switch b[4] {
		case comQuery:
			c.tap.statement(string(b[5:]))
		case comPrepare:
			c.preparing = string(b[5:])
		case comExecute:
			c.tap.statement(c.texts[binary.LittleEndian.Uint32(b[5:])])
		}
	}
	return c.Conn.Write(b)
}

func (c *tappedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.preparing != "" && n >= 9 {
		if b[4] == 0 { // prepared
			c.texts[binary.LittleEndian.Uint32(b[5:])] = c.preparing
		}
		c.preparing = ""
	}
	return n, err
}

// waitUntil waits for a state.
func waitUntil(t testing.TB, what string, is func() bool) {
	t.Helper()
	if !testdb.Await(soon, is) {
		t.Fatalf("waited in vain until %s", what)
	}
}

// renewedFromNow returns what reports whether the lease was renewed since then. What is left
// may be nearly all now and whenever it is asked: its end alone shows it.
func renewedFromNow(l *lease.Lease) func() bool {
	left := l.Remaining()
	end := time.Now().Add(left)
	return func() bool { return time.Now().Add(l.Remaining()).After(end) }
}

// TestRenewalsLeaveStrangersAlone proves that a renewal of many leases locks no row of another manager that
// lies in between theirs, nor a gap in which others make rows.
func TestRenewalsLeaveStrangersAlone(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		const leases = 60
		ctx, tap, pool := t.Context(), new(wiretap), newPool(t, db, true)
		ours, theirs := newManager(t, newPool(t, db, true, tap.install), lease.RenewEvery(250*time.Millisecond)), newManager(t, pool)
		var mine, strange []*lease.Lease
		for range leases { // their names are random
			mine, strange = append(mine, acquire(t, ours, named())), append(strange, acquire(t, theirs, named()))
		}
		renewal := make(chan string, 1)
		tap.before("name: RenewMany ", func(statement string) {
			select {
			case renewal <- statement:
			default:
			}
		})
		statement := within(t, "a renewal", renewal)
		locked := func(in *sql.Tx, l *lease.Lease) bool {
			err := in.QueryRowContext(ctx, "SELECT 1 FROM lockstep_leases WHERE name = ? AND slot = 0 FOR UPDATE SKIP LOCKED", l.Key().String()).Scan(new(int))
			return errors.Is(err, sql.ErrNoRows)
		}
		var open *sql.Tx
		waitUntil(t, "the renewal has locked rows", func() (some bool) { // it skips those that the manager renews just then
			open = begin(t, pool, sql.LevelReadCommitted)
			must(t, second(open.ExecContext(ctx, statement)))
			look := begin(t, pool, sql.LevelReadCommitted)
			some = slices.ContainsFunc(mine, func(l *lease.Lease) bool { return locked(look, l) })
			if rollback(t, look); !some {
				rollback(t, open)
			}
			return some
		})
		probe := begin(t, pool, sql.LevelReadCommitted)
		for _, l := range strange {
			if locked(probe, l) {
				t.Errorf("a renewal has locked the stranger's %v", l.Key())
			}
		}
		must(t, second(probe.ExecContext(ctx, "SET innodb_lock_wait_timeout = 1")))
		for range leases {
			run(t, probe, "INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) VALUES ('"+named().String()+"', 0, '-', '', 0, 0, 0, 0, 0)")
		}
		rollback(t, probe)
		must(t, second(pool.ExecContext(ctx, "SET innodb_lock_wait_timeout = DEFAULT")))
		rollback(t, open)
		releaseMany(t, append(mine, strange...))
	})
}

// releaseMany releases leases side by side.
func releaseMany(t testing.TB, leases []*lease.Lease) {
	t.Helper()
	var group sync.WaitGroup
	const workers = 8
	for w := range workers {
		group.Go(func() {
			for i := w; i < len(leases); i += workers {
				wantsNone(t, "Release", leases[i].Release(context.Background()))
			}
		})
	}
	group.Wait()
}

// TestManyLeases proves that each lease takes less than 2 KB of memory. It measures the process, so
// nothing runs beside it.
func TestManyLeases(t *testing.T) {
	for _, engine := range testdb.Engines()[:min(1, len(testdb.Engines()))] { // which is no matter
		const leases = 1_000
		db := testdb.Open(t, engine)
		keys := manyNamed(leases)
		makeRows(t, db, keys)
		tap := new(wiretap)
		pool := newPool(t, db, true, tap.install)
		pool.SetMaxIdleConns(8)
		m := newManager(t, pool)
		held := make([]*lease.Lease, leases)
		before := heapInUse()
		acquireMany(t, m, keys, held)
		per := heapInUse()
		if !testdb.Await(soon, func() bool { // renewals may be under way, and take some for a moment
			tap.forget() // renewals are long texts
			per = (heapInUse() - before) / leases
			return per < 2048
		}) {
			t.Errorf("a lease takes %d bytes", per)
		}
		t.Logf("%d bytes for a lease", per)
		runtime.KeepAlive(held)
	}
}

// makeRows makes the rows of leases that were leased before, by few statements.
func makeRows(t testing.TB, db *testdb.DB, keys []txlock.Key) {
	t.Helper()
	const batch = 1000
	for from := 0; from < len(keys); from += batch {
		part := keys[from:min(from+batch, len(keys))]
		values, names := make([]string, len(part)), make([]any, len(part))
		for i, key := range part {
			values[i], names[i] = "(?, 0, '-', '', 0, 0, 0, 0, 0)", key.String()
		}
		exec(t, db, "INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) VALUES "+strings.Join(values, ", "), names...)
	}
}

// acquireMany acquires leases side by side.
func acquireMany(t testing.TB, m *lease.Manager, keys []txlock.Key, held []*lease.Lease) {
	t.Helper()
	const workers = 8
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			for i := w; i < len(keys); i += workers {
				var err error
				if held[i], err = m.TryAcquire(context.Background(), keys[i]); err != nil {
					errs <- fmt.Errorf("lease %d: %w", i, err)
					return
				}
			}
			errs <- nil
		}()
	}
	for range workers {
		must(t, <-errs)
	}
}

// leastLeft is the least that is left of any.
func leastLeft(held []*lease.Lease) time.Duration {
	least := lease.MaxTTL
	for _, l := range held {
		least = min(least, l.Remaining())
	}
	return least
}

// heapInUse is the memory of what is reachable.
func heapInUse() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
