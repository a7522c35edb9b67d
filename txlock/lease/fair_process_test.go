package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// detour makes all that a pool sends, and hears, pass a function before, which may take its time.
func detour(pass func(sent bool)) func(*mysql.Config) {
	return func(c *mysql.Config) {
		c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return slowConn{conn, pass}, err
		}
	}
}

type slowConn struct {
	net.Conn
	pass func(sent bool)
}

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.pass(false)
	return n, err
}

func (c slowConn) Write(b []byte) (int, error) {
	c.pass(true)
	return c.Conn.Write(b)
}

func (c slowConn) Close() error {
	c.pass(true)
	return c.Conn.Close()
}

// losing is a network that loses connections without a word: nobody hears of it. New ones work.
type losing struct{ now atomic.Pointer[atomic.Bool] }

func (l *losing) install(t *testing.T) func(c *mysql.Config) {
	l.now.Store(new(atomic.Bool))
	return func(c *mysql.Config) {
		c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = conn.Close() })
			return &lostConn{Conn: conn, lost: l.now.Load(), closed: make(chan struct{})}, nil
		}
	}
}

// lose loses the connections that are open.
func (l *losing) lose() { l.now.Swap(new(atomic.Bool)).Store(true) }

type lostConn struct {
	net.Conn
	lost   *atomic.Bool
	once   sync.Once
	closed chan struct{}
}

// Read doesn't hear of the end of a lost connection either, until that is closed here.
func (c *lostConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.lost.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *lostConn) Write(b []byte) (int, error) {
	if c.lost.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// Close ends the reads. The server doesn't hear of it if the connection is lost.
func (c *lostConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	if c.lost.Load() {
		return c.SetReadDeadline(time.Unix(1, 0))
	}
	return c.Conn.Close()
}

// line is the queue for a key as a test sees it on the server. Only processes that
// the test has told to may join it.
type line struct {
	db    *testdb.DB
	key   txlock.Key
	known []int64 // sessions that were seen in it
}

// waiting reads the sessions that wait for the queue row.
func (q *line) waiting(t testing.TB) []int64 {
	t.Helper()
	waiting, _ := q.db.RowLocks(t)
	return waiting
}

// taken reports whether somebody has the queue row: in a transaction that executes
// nothing, since a process that makes the row, or looks, locks it for a moment.
func (q *line) taken(t testing.TB) bool {
	t.Helper()
	var slot int64
	err := q.db.Admin().QueryRowContext(context.Background(), "SELECT slot FROM lockstep_leases WHERE name = ? AND slot = -1 FOR UPDATE SKIP LOCKED", q.key.String()).Scan(&slot)
	if err == nil {
		return false
	}
	if !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	_, idle := q.db.RowLocks(t)
	return len(idle) > 0 && number(t, q.db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot = -1", q.key.String()) == 1
}

// first returns when somebody is the first in the queue and nobody waits behind, and its session.
func (q *line) first(t testing.TB) (session int64) {
	t.Helper()
	waitUntil(t, "somebody has the queue row, alone", func() bool {
		if !q.taken(t) {
			return false
		}
		waiting, idle := q.db.RowLocks(t)
		if len(waiting) > 0 || len(idle) != 1 {
			return false
		}
		session = idle[0]
		return true
	})
	return session
}

// left reports whether the server has ended a session: that of a process that has stood still for
// two seconds, as it does on a machine that is busy enough.
func (q *line) left(t testing.TB, session int64) bool {
	t.Helper()
	return number(t, q.db, "SELECT COUNT(*) FROM "+q.db.Engine().Processes()+" WHERE id = ?", session) == 0
}

// next returns when one more waits behind the first, and its session.
func (q *line) next(t testing.TB) (session int64) {
	t.Helper()
	waitUntil(t, "one more waits for the queue row", func() bool {
		for _, id := range q.waiting(t) {
			if !slices.Contains(q.known, id) {
				session = id
				return true
			}
		}
		return false
	})
	q.known = append(q.known, session)
	q.db.WaitForLockWait(t, session)
	return session
}

// joined is next, or first where nobody is before.
func (q *line) joined(t testing.TB, behind bool) (session int64) {
	t.Helper()
	if behind {
		return q.next(t)
	}
	return q.first(t)
}

// onOwnDatabase runs a test on every server, in a database where nobody else has
// sessions.
func onOwnDatabase(t *testing.T, test func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		test(t, testdb.Shared(t, engine).OpenLeases(t))
	})
}

// TestFairOrder proves that the waiters of four managers, which know nothing of each other, are
// granted the lease in the order in which they came, whichever manager they are of: the test has
// seen each of them take its place. 160 grants are checked with LOCKSTEP_LONG=1, else 40.
func TestFairOrder(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		key, m := named(), fairManager(t, db)
		managers := []*lease.Manager{fairManager(t, db), fairManager(t, db), fairManager(t, db), fairManager(t, db)}
		for _, arrivals := range slices.Repeat([][]int{ // the managers of those who come, one after the other
			{0, 0, 0, 0, 0, 1, 2},
			{0, 1, 2, 3, 3, 2, 1, 0},
			{0, 0, 1, 1, 0, 0, 2, 3, 3, 0, 1, 1},
			{3, 2, 2, 2, 2, 1, 1, 0, 3, 3, 0, 0, 1},
		}, testdb.Long(1, 4)) {
			l := acquire(t, m, key)
			queue, places, granted := line{db: db, key: key}, make([]int64, len(arrivals)), make(chan int, len(arrivals))
			var waits []*fairWait
			for who, of := range arrivals {
				w := fairAcquire(t, managers[of], key)
				waits = append(waits, w)
				go func() {
					<-w.done
					granted <- who
				}()
				places[who] = queue.joined(t, who > 0)
			}
			release(t, l)
			for turn := range arrivals {
				who := within(t, "a grant", granted)
				for before, place := range places[:who] {
					if place != 0 && !queue.left(t, place) {
						t.Fatalf("%d of manager %d is granted in turn %d, before %d", who, arrivals[who], turn, before)
					}
				}
				places[who] = 0
				if n := len(granted); n > 0 {
					t.Fatalf("%d more are granted in the turn of %d", n, who)
				}
				release(t, waits[who].lease(t))
			}
		}
	})
}

// TestFairLostPlace proves that a waiter that stands still, or whose connection is lost without a word,
// first in the queue or in the middle, delays nobody: the server notices, the next has the lease
// meanwhile, and the waiter waits on from a new place.
func TestFairLostPlace(t *testing.T) {
	stops := func(*testing.T) (network func(*mysql.Config), stop, goOn func()) {
		var process sync.RWMutex // locked while it stands still: it sends and hears nothing, and closes no connection
		return detour(func(bool) { process.RLock(); defer process.RUnlock() }), process.Lock, sync.OnceFunc(process.Unlock)
	}
	loses := func(t *testing.T) (network func(*mysql.Config), lose, goOn func()) {
		of := new(losing)
		return of.install(t), of.lose, func() {}
	}
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		for name, c := range map[string]struct {
			guarded, middle bool
			fault           func(*testing.T) (network func(*mysql.Config), strike, goOn func())
		}{
			"stopped, first": {true, false, stops}, "stopped, in the middle": {true, true, stops},
			"lost": {true, true, loses}, "lost, plain": {false, true, loses},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, db.Engine()).OpenLeases(t)
				queue := line{db: db, key: named()}
				held := acquire(t, fairManager(t, db), queue.key)
				network, strike, goOn := c.fault(t)
				var first *fairWait
				if c.middle {
					first = fairAcquire(t, fairManager(t, db), queue.key)
					queue.first(t)
				}
				victim := fairAcquire(t, newManager(t, newPool(t, db, c.guarded, network), lease.Fair()), queue.key)
				place := queue.joined(t, c.middle)
				behind := fairAcquire(t, fairManager(t, db), queue.key)
				queue.next(t)
				strike()
				defer goOn()
				if c.middle {
					release(t, held)
					held = first.lease(t)
				}
				start := time.Now()
				release(t, held)
				held = behind.lease(t) // while the other stands still
				t.Logf("the next after %v", behind.at.Sub(start))
				if !testdb.Await(time.Minute, func() bool { return queue.left(t, place) }) { // MySQL lists an ended session for a moment
					t.Error("the server still has the lost place, and has passed it")
				}
				goOn()
				queue.first(t)
				release(t, held)
				release(t, victim.lease(t))
			})
		}
	})
}
