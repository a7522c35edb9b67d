package tests

import (
	"context"
	"crypto/rand"
	"database/sql/driver"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/tests/linear"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

const (
	faultNodes   = 5
	faultClients = 3
	faultTTL     = time.Second
	faultSkew    = 500 * time.Millisecond
)

// faultsLast is for how long faults are made.
func faultsLast() time.Duration { return testdb.Long(8*time.Second, time.Minute) }

// heldLease is a lease, of one database or of several.
type heldLease interface {
	Token() uint64
	Err() error
	Release(ctx context.Context) error
}

// history is what clients have done.
type history struct {
	began time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
}

func (h *history) now() int64 { return int64(time.Since(h.began)) }

// add adds what a client has done: it was granted the lease with that token, or, for
// 0, its hold has ended.
func (h *history) add(client int, token uint64, call, end int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	owner := fmt.Sprint(client)
	in, out := linear.Call{Verb: linear.Acquire}, linear.Reply{OK: true, Owner: owner, Token: token}
	if token == 0 {
		in, out = linear.Call{Verb: linear.Release, Owner: owner}, linear.Reply{OK: true}
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: end})
}

func (h *history) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops)
}

// work takes the lease, holds it for a while and releases it, until the context
// ends. A hold ends between the last time that Err was nil and the end of Release.
func (h *history) work(ctx context.Context, client int, limit time.Duration, acquire func(ctx context.Context) (heldLease, error)) (grants int) {
	for ctx.Err() == nil {
		called := h.now()
		limited, cancel := context.WithTimeout(ctx, limit)
		l, err := acquire(limited)
		cancel()
		if err != nil {
			continue
		}
		h.add(client, l.Token(), called, h.now())
		grants++
		valid := called
		for end := time.Now().Add(mathrand.N(300 * time.Millisecond)); time.Now().Before(end); time.Sleep(time.Millisecond) {
			asked := h.now()
			if l.Err() != nil {
				break
			}
			valid = asked
		}
		released, stop := context.WithTimeout(context.Background(), time.Second)
		_ = l.Release(released) // the network is bad; what it leaves is what is tested
		stop()
		h.add(client, 0, valid, h.now())
	}
	return grants
}

// check judges the history.
func (h *history) check() porcupine.CheckResult {
	h.mu.Lock()
	defer h.mu.Unlock()
	return linear.Check(h.ops, 0, time.Minute)
}

// faultNode is a server of its own, and each client's way to it.
type faultNode struct {
	server *testdb.Server
	db     *testdb.DB
	ways   []network
}

func newFaultNode(t *testing.T, engine testdb.Engine, clients int) *faultNode {
	t.Helper()
	n := &faultNode{server: testdb.Dedicated(t, engine, testdb.Args("--innodb-buffer-pool-size=16M", "--performance-schema=OFF"))}
	n.db = n.server.Fresh(t)
	fatal(t, createLeases(t.Context(), n.db))
	n.db.Grant(t, "lockstep_leases")
	for range clients {
		n.ways = append(n.ways, newNetwork(t, n.db))
	}
	return n
}

// createLeases makes the table of the leases, empty.
func createLeases(ctx context.Context, db *testdb.DB) error {
	statements, err := schema.Statements()
	if err != nil {
		return err
	}
	for _, s := range append([]string{"DROP TABLE IF EXISTS lockstep_leases"}, statements...) {
		if strings.Contains(s, "lockstep_leases") && err == nil {
			_, err = db.Admin().ExecContext(ctx, s)
		}
	}
	return err
}

// signal sends a signal to the server.
func (n *faultNode) signal(t *testing.T, s syscall.Signal) {
	if err := n.server.Signal(s); err != nil {
		t.Error(err)
	}
}

// fault makes a random fault, and mends it after a while.
func (n *faultNode) fault(t *testing.T) (kind string) {
	pause := func() { time.Sleep(mathrand.N(1500 * time.Millisecond)) }
	restart := func() {
		if err := n.server.Kill(); err != nil {
			t.Errorf("kill: %v", err)
		}
		pause()
		if err := n.server.Restart(context.Background()); err != nil {
			t.Errorf("restart: %v", err)
		}
	}
	switch mathrand.N(4) {
	case 0:
		kind = "kill"
		restart()
	case 1:
		kind = "restart empty"
		restart()
		if err := createLeases(context.Background(), n.db); err != nil {
			t.Errorf("empty: %v", err)
		}
	case 2:
		kind = "stop"
		n.signal(t, syscall.SIGSTOP)
		pause()
		n.signal(t, syscall.SIGCONT)
	default:
		kind = "partition"
		way := n.ways[mathrand.N(len(n.ways))]
		way.down(t)
		pause()
		if err := way.Up(); err != nil {
			t.Errorf("end of the partition: %v", err)
		}
	}
	return kind
}

// TestQuorumFaults proves, for three clients of five servers that are killed, stopped,
// cut off and emptied at random, up to two at a time, that no two hold the lease at
// once, that the token of each grant is above all before, and that the lease is to be
// had again afterwards. The servers are of all kinds, and with LOCKSTEP_LONG=1 of each
// kind alone, too.
func TestQuorumFaults(t *testing.T) {
	engines := testdb.Engines()
	t.Run("all", func(t *testing.T) { quorumFaults(t, engines) })
	for _, engine := range testdb.Long(nil, engines) {
		t.Run(string(engine), func(t *testing.T) { quorumFaults(t, []testdb.Engine{engine}) })
	}
}

func quorumFaults(t *testing.T, engines []testdb.Engine) {
	var nodes []*faultNode
	for i := range faultNodes {
		nodes = append(nodes, newFaultNode(t, engines[i%len(engines)], faultClients))
	}
	key := txlock.Named("quorum:" + rand.Text())
	m := faultQuorum(t, nodes, 0, time.Minute)
	var took time.Duration // to acquire it without faults
	for range 3 {
		asked := time.Now()
		l, err := m.Acquire(t.Context(), key)
		fatal(t, err)
		took = max(took, time.Since(asked))
		fatal(t, l.Release(t.Context()))
	}
	ttl := faultTTL + 30*took // a node has a tenth of it to answer
	var clients []*quorum.Manager
	for c := range faultClients {
		clients = append(clients, faultQuorum(t, nodes, c, ttl))
	}
	h := history{began: time.Now()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	grants, faults := 0, map[string]int{}
	all.Go(func() { // a loaded machine takes longer
		time.Sleep(faultsLast())
		testdb.Await(5*time.Minute, func() bool { return h.len() >= 6 })
		cancel()
	})
	for c, m := range clients {
		all.Go(func() {
			n := h.work(ctx, c, 2*ttl, func(ctx context.Context) (heldLease, error) { return m.Acquire(ctx, key) })
			mu.Lock()
			defer mu.Unlock()
			grants += n
		})
	}
	for half := range 2 { // one of the first two nodes and one of the others at a time
		mine := nodes[:2]
		if half == 1 {
			mine = nodes[2:]
		}
		all.Go(func() {
			for ctx.Err() == nil {
				kind := mine[mathrand.N(len(mine))].fault(t)
				mu.Lock()
				faults[kind]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	t.Logf("%d grants, faults %v", grants, faults)
	if grants < 3 {
		t.Errorf("%d grants of leases of %v", grants, ttl)
	}
	if result := h.check(); result != porcupine.Ok {
		t.Errorf("the history is not that of a lock with rising tokens: %v", result)
	}
	for c, m := range clients { // nodes that were emptied count again after a while
		var err error
		if !testdb.Await(time.Minute, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			var l *quorum.Lease
			if l, err = m.Acquire(ctx, key); err != nil {
				return false
			}
			// A machine that stands still for a moment loses a lease of a second.
			if err = l.Release(t.Context()); err != nil && !errors.Is(err, txlock.ErrLost) {
				t.Errorf("client %d: Release: %v", c, err)
				return true
			}
			return err == nil
		}) {
			t.Fatalf("client %d: %v", c, err)
		}
	}
}

// faultQuorum is a client's manager of leases of such a time to live on all nodes.
func faultQuorum(t *testing.T, nodes []*faultNode, client int, ttl time.Duration) *quorum.Manager {
	t.Helper()
	var managers []*lease.Manager
	for _, n := range nodes {
		managers = append(managers, faultManager(t, faultPool(t, n.db, n.ways[client], guarded), lease.TTL(ttl), lease.PurgeEvery(0, time.Hour)))
	}
	m, err := quorum.New(managers, quorum.MaxTTL(ttl), quorum.ClockSkew(faultSkew))
	fatal(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := m.Close(ctx); err != nil && !errors.Is(err, txlock.ErrNoQuorum) {
			t.Errorf("Close: %v", err)
		}
	})
	fatal(t, m.Install(t.Context()))
	return m
}

// TestFailoverBreaksALease proves that the history of TestQuorumFaults can be wrong: a
// lease of one database, for which another stands in that knows nothing of it, is held
// by two when a client can't reach the first.
func TestFailoverBreaksALease(t *testing.T) {
	engine := testdb.Engines()[0]
	first, second := testdb.Fresh(t, engine), testdb.Fresh(t, engine)
	var ways []network
	for _, db := range []*testdb.DB{first, second} {
		fatal(t, createLeases(t.Context(), db))
		db.Grant(t, "lockstep_leases")
	}
	for range faultClients {
		ways = append(ways, newNetwork(t, first))
	}
	key := txlock.Named("failover:" + rand.Text())
	h := history{began: time.Now()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for c := range faultClients {
		pool := faultPool(t, first, network{}, func(driver.Connector) driver.Connector { return failover{first, second, ways[c]} })
		m := faultManager(t, pool, lease.TTL(faultTTL), lease.PurgeEvery(0, time.Hour))
		all.Go(func() {
			h.work(ctx, c, 2*faultTTL, func(ctx context.Context) (heldLease, error) { return m.Acquire(ctx, key) })
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			way := ways[mathrand.N(faultClients)]
			way.down(t)
			time.Sleep(mathrand.N(500 * time.Millisecond))
			if err := way.Up(); err != nil {
				t.Errorf("end of the partition: %v", err)
			}
		}
	})
	for end := time.Now().Add(5 * time.Minute); h.check() != porcupine.Illegal && time.Now().Before(end); {
		time.Sleep(time.Second)
	}
	cancel()
	all.Wait()
	if result := h.check(); result != porcupine.Illegal {
		t.Errorf("the history of %d steps: %v, want it to be wrong", len(h.ops), result)
	}
}

// failover connects to the second database when the first can't be reached.
type failover struct {
	first, second *testdb.DB
	way           network
}

func (f failover) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := f.connect(ctx, f.first, f.way.Dial)
	if err != nil {
		conn, err = f.connect(ctx, f.second, nil)
	}
	return conn, err
}

func (failover) connect(ctx context.Context, db *testdb.DB, dial func(context.Context, string, string) (net.Conn, error)) (driver.Conn, error) {
	cfg := db.Config()
	cfg.Logger, cfg.DialFunc = &mysql.NopLogger{}, dial
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return connector.Connect(ctx)
}

func (failover) Driver() driver.Driver { return &mysql.MySQLDriver{} }
