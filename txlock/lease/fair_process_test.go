package lease_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// The environment of a process that waits in the queue.
const (
	fairDSN = "LOCKSTEP_TEST_FAIR_DSN"
	fairKey = "LOCKSTEP_TEST_FAIR_KEY"
)

// init makes this test binary that process.
func init() {
	if dsn := os.Getenv(fairDSN); dsn != "" {
		if err := fairProcess(dsn, txlock.Named(os.Getenv(fairKey))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// fairProcess does what it reads. "acquire 3" has a goroutine wait, who is called 3,
// and is answered "waits" when it stands in the queue of the process, and "granted
// 3" when it has the lease. "release" gives that back.
func fairProcess(dsn string, key txlock.Key) error {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return err
	}
	cfg.Logger = &mysql.NopLogger{} // it loses connections while it stands still
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	pool := sql.OpenDB(connector)
	m, err := lease.NewManager(pool, lease.Fair())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	held := make(chan *lease.Lease, 1)
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		who, isAcquire := strings.CutPrefix(lines.Text(), "acquire ")
		if !isAcquire {
			if err := (<-held).Release(ctx); err != nil {
				return err
			}
			continue
		}
		before := fairWaiters()
		go func() {
			l, err := m.Acquire(ctx, key)
			if err != nil {
				fmt.Println("error", err)
				return
			}
			fmt.Println("granted", who)
			held <- l
		}()
		if !await(20*time.Second, func() bool { return fairWaiters() > before }) {
			return errors.New("the waiter doesn't wait")
		}
		fmt.Println("waits")
	}
	return errors.Join(m.Close(ctx), pool.Close())
}

// fairWaiters counts the goroutines of this process that wait for a lease: all of
// them stand in the queue of their manager.
func fairWaiters() int {
	stacks := make([]byte, 1<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "lease.(*Manager).watch(")
}

// fairChild is such a process.
type fairChild struct {
	name  string
	cmd   *osexec.Cmd
	in    io.Writer
	lines chan string
}

// startFair starts the process, which is killed at the end of the test.
func startFair(t *testing.T, db *testdb.DB, key txlock.Key, name string) *fairChild {
	t.Helper()
	c := &fairChild{name: name, cmd: osexec.Command(os.Args[0]), lines: make(chan string, 100)}
	c.cmd.Env = append(os.Environ(), fairDSN+"="+db.DSN(), fairKey+"="+key.String())
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.in = in
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() { c.kill(t) })
	c.hears(t, "ready")
	return c
}

// kill ends the process the hard way, and returns when it is gone.
func (c *fairChild) kill(t testing.TB) {
	t.Helper()
	if c.cmd.ProcessState != nil {
		return
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Errorf("kill %s: %v", c.name, err)
	}
	for range c.lines { // until its output ends
	}
	_ = c.cmd.Wait() // which says that it was killed
}

// signal sends a signal to the process.
func (c *fairChild) signal(t testing.TB, s os.Signal) {
	t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		t.Fatalf("%v to %s: %v", s, c.name, err)
	}
}

// tell sends a command.
func (c *fairChild) tell(t testing.TB, command string) {
	t.Helper()
	if _, err := fmt.Fprintln(c.in, command); err != nil {
		t.Fatalf("tell %s to %s: %v", c.name, command, err)
	}
}

// hears waits for one line of the process.
func (c *fairChild) hears(t testing.TB, want string) {
	t.Helper()
	select {
	case line := <-c.lines:
		if line != want {
			t.Fatalf("%s says %q, want %q", c.name, line, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("%s doesn't say %q", c.name, want)
	}
}

// waits has the process wait for the lease, and returns when it says so.
func (c *fairChild) waits(t testing.TB, who int) {
	t.Helper()
	c.tell(t, fmt.Sprint("acquire ", who))
	c.hears(t, "waits")
}

// line is the queue for a key as a test sees it on the server. Only processes that
// the test has told to may join it.
type line struct {
	db    *testdb.DB
	key   txlock.Key
	known []int64 // sessions that were seen in it
}

// waiting reads the sessions that wait for the turnstile.
func (q *line) waiting(t testing.TB) []int64 {
	t.Helper()
	waiting, _ := q.db.RowLocks(t)
	return waiting
}

// taken tells whether somebody has the turnstile: in a transaction that executes
// nothing, since who makes the row, or looks, locks it for a moment.
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

// first returns when somebody is the first in the queue and nobody waits behind.
func (q *line) first(t testing.TB) {
	t.Helper()
	waitUntil(t, "somebody has the turnstile, alone", func() bool { return q.taken(t) && len(q.waiting(t)) == 0 })
}

// next returns when one more waits behind the first, and its session.
func (q *line) next(t testing.TB) (session int64) {
	t.Helper()
	waitUntil(t, "one more waits for the turnstile", func() bool {
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

// onOwnDatabase runs a test on every server, in a database where nobody else has
// sessions.
func onOwnDatabase(t *testing.T, test func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			test(t, testdb.Shared(t, engine).Open(t))
		})
	}
}

// TestFairOrder proves that four processes of eight goroutines each are granted the
// lease in the order in which the processes took their places in the queue, which
// the test has seen one by one, and inside a process in the order in which its
// goroutines came. 512 grants are checked with LOCKSTEP_LONG=1, else 96.
func TestFairOrder(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		const processes = 4
		goroutines := 8
		key := named()
		m := newManager(t, newPool(t, db, true), lease.Fair())
		children := make([]*fairChild, processes)
		for p := range children {
			children[p] = startFair(t, db, key, fmt.Sprint("process ", p))
		}
		rounds := testdb.Long(3, 16)
		for round := range rounds {
			l := acquire(t, m, key)
			queue := line{db: db, key: key}
			var turns []int // of the processes, in their order
			for i := range processes {
				p := (i*3 + round) % processes
				for g := range goroutines {
					children[p].waits(t, g)
					if g == 0 && i == 0 {
						queue.first(t)
					} else if g == 0 {
						queue.next(t)
					}
				}
				turns = append(turns, p)
			}
			release(t, l)
			granted := make([]int, processes)
			for len(turns) > 0 {
				p := turns[0]
				turns = turns[1:]
				children[p].hears(t, fmt.Sprint("granted ", granted[p]))
				granted[p]++
				for other := range children {
					if n := len(children[other].lines); n > 0 {
						t.Fatalf("process %d says %q in the turn of process %d", other, <-children[other].lines, p)
					}
				}
				if granted[p] < goroutines { // the process takes a place again, behind all others
					if len(turns) == 0 {
						queue.first(t)
					} else {
						queue.next(t)
					}
					turns = append(turns, p)
				}
				children[p].tell(t, "release")
			}
		}
		t.Logf("%d grants to %d processes of %d goroutines, all in order", rounds*processes*goroutines, processes, goroutines)
	})
}

// TestFairDeadFirst kills the process that is first in the queue: the next has the
// lease at once. 50 processes are killed with LOCKSTEP_LONG=1, else 10.
func TestFairDeadFirst(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		key := named()
		managers := []*lease.Manager{
			newManager(t, newPool(t, db, true), lease.Fair()),
			newManager(t, newPool(t, db, false), lease.Fair()),
		}
		held := acquire(t, managers[0], key)
		var took []time.Duration
		for i := range testdb.Long(10, 50) {
			queue := line{db: db, key: key}
			victim := startFair(t, db, key, fmt.Sprint("victim ", i))
			victim.waits(t, 0)
			queue.first(t)
			granted := fairAcquire(t, managers[(i+1)%2], key)
			queue.next(t)
			start := time.Now()
			victim.signal(t, syscall.SIGKILL)
			release(t, held)
			held = granted.lease(t)
			took = append(took, granted.at.Sub(start))
			victim.kill(t)
		}
		release(t, held)
		median, worst := fairSpread(took)
		t.Logf("%d dead: the next after %v, at worst %v", len(took), median, worst)
		if median > 10*100*time.Millisecond {
			t.Errorf("the next was granted after %v", median)
		}
		if worst > 15*100*time.Millisecond {
			t.Errorf("the next was granted after %v at worst", worst)
		}
	})
}

// TestFairStopped stops a process that is first in the queue, or in the middle of it:
// the next has the lease as soon as the server has missed its word for two seconds,
// and the stopped one waits on from a new place when it goes on.
func TestFairStopped(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		for _, middle := range []bool{false, true} {
			t.Run(map[bool]string{false: "first", true: "middle"}[middle], func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, db.Engine()).Open(t)
				key := named()
				queue := line{db: db, key: key}
				holder := newManager(t, newPool(t, db, true), lease.Fair())
				held := acquire(t, holder, key)
				stopped := startFair(t, db, key, "the stopped one")
				var first *fairWait
				if middle {
					first = fairAcquire(t, newManager(t, newPool(t, db, true), lease.Fair()), key)
					queue.first(t)
					stopped.waits(t, 0)
					queue.next(t)
				} else {
					stopped.waits(t, 0)
					queue.first(t)
				}
				stopped.signal(t, syscall.SIGSTOP)
				granted := fairAcquire(t, newManager(t, newPool(t, db, true), lease.Fair()), key)
				queue.next(t)
				if middle {
					release(t, held)
					held = first.lease(t)
				}
				start := time.Now()
				release(t, held)
				held = granted.lease(t)
				took := granted.at.Sub(start)
				t.Logf("the next after %v", took)
				if took > 2*time.Second+10*500*time.Millisecond {
					t.Errorf("the next was granted after %v", took)
				}
				stopped.signal(t, syscall.SIGCONT)
				release(t, held)
				stopped.hears(t, "granted 0")
			})
		}
	})
}
