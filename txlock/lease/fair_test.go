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

// fairWait is an Acquire under way.
type fairWait struct {
	done chan struct{}
	l    *lease.Lease
	err  error
	at   time.Time // when it returned
}

// fairAcquire begins an Acquire.
func fairAcquire(t testing.TB, m *lease.Manager, key txlock.Key) *fairWait {
	return fairAcquireUnder(t.Context(), m, key)
}

func fairAcquireUnder(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) *fairWait {
	return waitWith(func() (*lease.Lease, error) { return m.Acquire(ctx, key, options...) })
}

// waitWith begins a call that acquires.
func waitWith(acquire func() (*lease.Lease, error)) *fairWait {
	w := &fairWait{done: make(chan struct{})}
	go func() {
		w.l, w.err = acquire()
		w.at = time.Now()
		close(w.done)
	}()
	return w
}

// end waits until it has returned.
func (w *fairWait) end(t testing.TB) {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(soon):
		t.Fatal("Acquire doesn't return")
	}
}

// lease waits for the lease.
func (w *fairWait) lease(t testing.TB) *lease.Lease {
	t.Helper()
	w.end(t)
	testdb.FatalIf(t, w.err != nil, "Acquire: %v", w.err)
	return w.l
}

// fairManager is a manager with Fair, on a pool of its own.
func fairManager(t testing.TB, db *testdb.DB, options ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	return newManager(t, newPool(t, db, true), append(options, lease.Fair())...)
}

// TestFairBehindReaders proves that the writers of two processes are granted the lease in the order in which they
// came, though a reader stays for longer than their TTL.
func TestFairBehindReaders(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		reader := share(t, db.manager(), job)
		first := fairAcquire(t, db.manager(lease.Fair()), job)
		time.Sleep(time.Second)
		next := fairAcquire(t, db.manager(lease.Fair()), job)
		time.Sleep(ttl + ttl/2)
		release(t, reader)
		l := first.lease(t)
		select {
		case <-next.done:
			t.Error("the second was granted before the first has released")
		default:
		}
		release(t, l)
		release(t, next.lease(t))
	})
}

// TestFairPlaceBehindReaders proves that the first in the queue keeps its place while it waits for readers, for
// longer than the server lets a place be silent. A process that stands still for as long loses it.
func TestFairPlaceBehindReaders(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		for try := 1; ; try++ {
			key, m := named(), fairManager(t, db)
			queue := line{db: db, key: key}
			reader := share(t, m, key)
			first := fairAcquire(t, fairManager(t, db, lease.TTL(3*time.Second)), key)
			session := queue.first(t)
			var begun uint64
			waitUntil(t, "it waits for the reader", func() bool {
				info := inspect(t, m, key)
				begun = info.Token
				return info.Kind == lease.Waiter
			})
			waitUntil(t, "it begins to wait again, after its TTL", func() bool { return inspect(t, m, key).Token > begun })
			left := queue.left(t, session)
			release(t, reader)
			release(t, first.lease(t))
			if !left {
				break
			}
			if try == 5 {
				t.Error("its place was lost five times")
				break
			}
		}
	})
}

// TestFairGiveUp proves that a waiter that gives up in the queue, by its context or
// its limit, or whose process dies as the first, is gone from the server at once, and that those
// behind it lose no time. A session that is left to the server stays for two seconds.
func TestFairGiveUp(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		for _, c := range [][2]string{{"first", "limit"}, {"middle", "context"}, {"first", "death"}} {
			for try := 1; ; try++ {
				delays := testdb.Delays(t)
				late, gone, after := giveUpInQueue(t, db, c[0], c[1])
				t.Logf("%s: returned %v late, its session gone %v later, the next granted in %v, delays of %v", c, late, gone, after, delays())
				if max(late, gone, after) <= time.Second+delays() {
					break
				}
				if try == 5 {
					t.Errorf("%s: it took as long five times", c)
					break
				}
			}
		}
	})
}

// giveUpInQueue lets a waiter give up. It returns how late that is, how long its session
// stays, and how long the next waits for the lease when its turn has come.
func giveUpInQueue(t *testing.T, db *testdb.DB, of, by string) (late, gone, after time.Duration) {
	t.Helper()
	holder, last := fairManager(t, db), fairManager(t, db)
	middle, die := mortal(t, db, lease.Fair())
	key := named()
	queue := line{db: db, key: key}
	held := acquire(t, holder, key)
	var first *fairWait
	if of == "middle" {
		first = fairAcquire(t, fairManager(t, db), key)
		queue.first(t)
	}
	const limit = 3 * time.Second // in which the test sees it wait
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	want, due := txlock.ErrWaitTimeout, time.Now().Add(limit)
	var quitter *fairWait
	if by == "limit" {
		quitter = fairAcquireUnder(ctx, middle, key, lease.WaitAtMost(limit))
	} else {
		want = context.Canceled
		quitter = fairAcquireUnder(ctx, middle, key)
	}
	session := queue.joined(t, of == "middle")
	if by == "death" {
		die()
	} else {
		if by == "context" {
			due = time.Now()
			cancel()
		}
		quitter.end(t)
		wants(t, of+" by "+by, quitter.err, want)
		late = quitter.at.Sub(due)
		testdb.ErrorIf(t, late < 0, "%s: a limit of %v ended %v before", of, limit, -late)
	}
	left := time.Now()
	if of == "middle" {
		waitUntil(t, "the quitter's session is gone", func() bool { return !slices.Contains(queue.waiting(t), session) })
		db.WaitGone(t, session)
	} else {
		waitUntil(t, "the queue row is free", func() bool { return !queue.taken(t) })
	}
	gone = time.Since(left)
	behind := fairAcquire(t, last, key)
	if queue.joined(t, of == "middle"); of == "middle" {
		release(t, held)
		held = first.lease(t)
	}
	start := time.Now()
	release(t, held)
	release(t, behind.lease(t))
	quitter.end(t)
	testdb.ErrorIf(t, quitter.err == nil, "the dead one is granted the lease")
	return late, gone, behind.at.Sub(start)
}

// TestFairNewcomers proves that TryAcquire of managers with Fair never passes the
// first in the queue at the moment of a release, for a key that was shared before as
// for any other, and takes a lease for which nobody waits.
func TestFairNewcomers(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		for _, shared := range []bool{false, true} {
			t.Run(map[bool]string{false: "plain", true: "shared before"}[shared], func(t *testing.T) {
				key := named()
				m := fairManager(t, db)
				if shared {
					release(t, share(t, m, key))
				}
				release(t, acquire(t, m, key, lease.TTL(5*time.Second)))
				must(t, acquired(m.TryAcquire(t.Context(), key)))
				// A place in the queue that looks at nothing: the lease stays free.
				first := begin(t, db.Admin(), sql.LevelReadCommitted)
				defer first.Rollback() //nolint:errcheck // after the rollback below, or on the way out
				var slot int64
				must(t, first.QueryRowContext(t.Context(), "SELECT slot FROM lockstep_leases WHERE name = ? AND slot = -1 FOR UPDATE", key.String()).Scan(&slot))
				for i := range 20 {
					l, err := m.TryAcquire(t.Context(), key)
					wants(t, "TryAcquire beside the first of the queue", err, txlock.ErrBusy)
					if err == nil {
						t.Errorf("attempt %d has passed the first of the queue", i)
						release(t, l)
						break
					}
				}
				must(t, first.Rollback())
				must(t, acquired(m.TryAcquire(t.Context(), key)))
			})
		}
	})
}

// TestFairFirstQueue proves that one who finds no queue for a key, and makes it while
// another has become the first of it, takes the place behind that one, where no lock
// wait timeout shows and an end of its context leaves nothing behind.
func TestFairFirstQueue(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		for _, ends := range []bool{false, true} {
			key := named()
			queue := line{db: db, key: key}
			held := acquire(t, fairManager(t, db), key)
			db.Exec(t, "DELETE FROM lockstep_leases WHERE name = ? AND slot = -1", key.String())
			var tap wiretap
			begun, going := make(chan struct{}), make(chan struct{})
			var once sync.Once
			tap.before("name: EnsureLease ", func(string) {
				once.Do(func() {
					close(begun)
					<-going
				})
			})
			impatient := func(c *mysql.Config) { c.Params = map[string]string{"innodb_lock_wait_timeout": "1"} }
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			slow := fairAcquireUnder(ctx, newManager(t, newPool(t, db, true, impatient, tap.install(t)), lease.Fair()), key)
			within(t, "the making of the queue", begun)
			first := fairAcquire(t, fairManager(t, db), key)
			queue.first(t)
			close(going)
			place := testdb.Await(soon, func() bool { return len(queue.waiting(t)) == 1 })
			testdb.ErrorIf(t, !place, "it takes no place in the queue")
			if ends {
				cancel()
				slow.end(t)
				wants(t, "the one who made the queue", slow.err, context.Canceled)
				waitUntil(t, "nothing is left of it", func() bool {
					return db.Number(t, "SELECT COUNT(*) FROM "+db.Engine().Processes()+" WHERE user = ? AND (info LIKE '%QueueForLease%' OR info LIKE '%EnsureLease%')", db.Config().User) == 0
				})
			}
			release(t, held)
			release(t, first.lease(t))
			if !ends {
				release(t, slow.lease(t))
			}
		}
	})
}

// slowConn makes all that it sends, and hears, pass a function before, which may take its time.
type slowConn struct {
	net.Conn
	pass func()
}

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.pass()
	return n, err
}

func (c slowConn) Write(b []byte) (int, error) {
	c.pass()
	return c.Conn.Write(b)
}

func (c slowConn) Close() error {
	c.pass()
	return c.Conn.Close()
}

// losing is a network that loses connections without a word: nobody hears of it. New ones work.
type losing struct{ now atomic.Pointer[atomic.Bool] }

func (l *losing) install(t *testing.T) func(c *mysql.Config) {
	l.now.Store(new(atomic.Bool))
	return testdb.Dialled(t, func(conn *net.TCPConn) net.Conn {
		t.Cleanup(func() { _ = conn.Close() })
		return &lostConn{Conn: conn, lost: l.now.Load(), closed: make(chan struct{})}
	})
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
	return len(idle) > 0 && q.db.Number(t, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot = -1", q.key.String()) == 1
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
	return q.db.Number(t, "SELECT COUNT(*) FROM "+q.db.Engine().Processes()+" WHERE id = ?", session) == 0
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
// seen each of them take its place, and at first wait for longer than its session waits for a lock or
// may take for a statement. 160 grants are checked with LOCKSTEP_LONG=1, else 40.
func TestFairOrder(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		key, m := named(), fairManager(t, db)
		limits := map[string]string{"innodb_lock_wait_timeout": "1", "max_execution_time": "2000"}
		if db.Engine() == testdb.MariaDB {
			limits = map[string]string{"innodb_lock_wait_timeout": "1", "max_statement_time": "2"}
		}
		managers := several(4, func(i int) *lease.Manager {
			return newManager(t, newPool(t, db, i != 1, func(c *mysql.Config) { c.Params = limits }), lease.Fair())
		})
		for round, arrivals := range slices.Repeat([][]int{ // the managers of those who come, one after the other
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
			first := inspect(t, m, key).Others[0]
			if first.Kind != lease.Waiter || first.Session != uint64(places[0]) || time.Since(first.Since).Abs() > soon {
				t.Errorf("the first waiter is shown as %+v, of session %d", first, places[0])
			}
			waitUntil(t, "all but the first have waited for three seconds", func() bool {
				return round > 0 || !slices.ContainsFunc(places[1:], func(id int64) bool {
					return db.Number(t, "SELECT COUNT(*) FROM "+db.Engine().Processes()+" WHERE id = ? AND time >= 3", id) == 0
				})
			})
			release(t, l)
			for turn := range arrivals {
				who := within(t, "a grant", granted)
				for before, place := range places[:who] {
					testdb.FatalIf(t, place != 0 && !queue.left(t, place), "%d of manager %d is granted in turn %d, before %d", who, arrivals[who], turn, before)
				}
				places[who] = 0
				n := len(granted)
				testdb.FatalIf(t, n > 0, "%d more are granted in the turn of %d", n, who)
				release(t, waits[who].lease(t))
			}
		}
	})
}

// TestFairLostPlace proves that a waiter that stands still, or whose connection is lost without a word,
// first in the queue or in the middle, delays nobody: the server notices, the next has the lease
// meanwhile, and the waiter waits on from a new place.
func TestFairLostPlace(t *testing.T) {
	stops := func(t *testing.T) (network func(*mysql.Config), stop, goOn func()) {
		var process sync.RWMutex // locked while it stands still: it sends and hears nothing, and closes no connection
		pass := func() { process.RLock(); defer process.RUnlock() }
		return testdb.Dialled(t, func(conn *net.TCPConn) net.Conn { return slowConn{conn, pass} }), process.Lock, sync.OnceFunc(process.Unlock)
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
