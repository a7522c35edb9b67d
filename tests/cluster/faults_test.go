//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// callLimit bounds a call of a client, on a node that may hang.
const callLimit = load.CallLimit

// TestFaults has clients on all nodes at once, while nodes are killed, hang or are cut
// off, and come back. Updates under a lock, by versions and under a guarded lease are not lost, what
// was acknowledged stays, what was refused is not there, leases are held by one at a
// time and their tokens rise, also in the data.
func TestFaults(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		work := load.New(t, db)
		work.Run(t, clientsOf(t, db, nodes), func() {
			faults := make(map[string]int)
			for end := time.Now().Add(load.FaultsLast(t, "CLUSTER_DURATION")); time.Now().Before(end) && !t.Failed(); {
				faults[fault(t, db, nodes[rand.IntN(len(nodes))])]++
				time.Sleep(rand.N(2 * time.Second))
			}
			t.Logf("faults: %v", faults)
		})
		for i, node := range nodes {
			t.Logf("node %d:", i)
			work.Check(t, caughtUp(t, db.At(t, node)))
		}
		work.CheckHolds(t)
	})
}

// fault makes a node fail and come back, and waits until it is whole again.
func fault(t *testing.T, db *testdb.DB, node *testdb.Server) (kind string) {
	t.Helper()
	kind = []string{"killed", "hung", "cut off"}[rand.IntN(3)]
	switch kind {
	case "killed":
		killed(t, node)
	case "hung":
		hung(t, db.At(t, node))
	case "cut off":
		cutOff(t, db.At(t, node))
	}
	return kind
}

func killed(t *testing.T, node *testdb.Server) {
	t.Helper()
	check(t, node.Kill())
	time.Sleep(rand.N(3 * time.Second))
	check(t, node.Restart(t.Context()))
}

func hung(t *testing.T, at *testdb.DB) {
	t.Helper()
	check(t, at.Server().Signal(syscall.SIGSTOP))
	time.Sleep(rand.N(10 * time.Second)) // it is put out after 5 s
	check(t, at.Server().Signal(syscall.SIGCONT))
	caughtUp(t, at)
}

// cutOff cuts a node off from the others, but not from its clients.
func cutOff(t *testing.T, at *testdb.DB) {
	t.Helper()
	check(t, at.Server().Part(t.Context()))
	time.Sleep(rand.N(10 * time.Second)) // it is put out after 5 s
	check(t, at.Server().Heal(t.Context()))
	caughtUp(t, at)
}

// caughtUp returns the administrator's pool of a node that is one of three and shows
// all that was committed on any of them.
func caughtUp(t *testing.T, db *testdb.DB) *sql.DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		size, err := 0, db.Server().Ready(ctx)
		if err == nil {
			size, err = clusterSize(ctx, db)
		}
		if err == nil && size == 3 {
			return db.Admin()
		}
		if ctx.Err() != nil {
			t.Fatalf("the node is not one of the cluster again, which has %d: %v", size, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// clusterSize tells how many nodes the cluster has, by a read that waits for what the
// others have committed: on Group Replication the administrator's do.
func clusterSize(ctx context.Context, db *testdb.DB) (size int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	all := " AND (SELECT COUNT(*) FROM " + db.Name() + ".lockstep_leases) >= 0"
	if db.Engine() == testdb.TiDB { // all read one store
		return 3, db.Admin().QueryRowContext(ctx, "SELECT 3 WHERE TRUE"+all).Scan(&size)
	}
	if db.Engine() == testdb.MariaDB {
		err = db.Admin().QueryRowContext(ctx, `SET STATEMENT wsrep_sync_wait = 1 FOR SELECT VARIABLE_VALUE
			FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'wsrep_cluster_size'`+all).Scan(&size)
		return size, err
	}
	err = db.Admin().QueryRowContext(ctx, `SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'`+all).Scan(&size)
	return size, err
}

// TestCheckOfNodes proves that lockstep check warns of several primaries, and compares the
// clocks of the nodes.
func TestCheckOfNodes(t *testing.T) {
	onClusters(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		found := leasetest.Got(ops.New(db.Connect(t)).Check(t.Context(), db.At(t, nodes[1]).Admin(), db.At(t, nodes[2]).Admin()))(t)
		states := make(map[string]ops.State)
		for _, f := range found {
			states[f.Name] = f.State
		}
		for name, want := range map[string]ops.State{"cluster": ops.Warn, "tables": ops.OK, "clock of node 1": ops.OK, "clock of node 2": ops.OK} {
			if states[name] != want {
				t.Errorf("%s is %q, want %q, of %+v", name, states[name], want, found)
			}
		}
	})
}

// TestRemediesOfGalera does what check says of a node of Galera that is in no primary component: it
// connects to one that is, waits until the node has joined it, and where there is none, makes one at
// the node that is left. Check finds the node right afterwards. What to send to which node is a
// person's decision, which it says.
func TestRemediesOfGalera(t *testing.T) {
	onSome(t, remediesOfGalera, testdb.MariaDB)
}

func remediesOfGalera(t *testing.T, nodes []*testdb.Server) {
	db := nodes[0].Open(t)
	until := func(node *testdb.Server, want ops.State, subject string, fixes ...string) (f ops.Finding) {
		t.Helper()
		if !testdb.Await(2*time.Minute, func() bool {
			found, err := ops.New(db.At(t, node).Admin()).Check(t.Context())
			i := slices.IndexFunc(found, func(f ops.Finding) bool { return f.Name == subject })
			if err == nil && i >= 0 {
				f = found[i]
			}
			return err == nil && i >= 0 && f.State == want
		}) {
			t.Fatalf("check says %+v, want %s", f, want)
		}
		leasetest.Says(t, "the fix", f.Fix, fixes...)
		return f
	}
	until(nodes[0], ops.OK, "node")
	until(nodes[0], ops.Warn, "cluster", "send all locking transactions to one node", "a person decides")

	check(t, nodes[2].Part(t.Context()))
	until(nodes[2], ops.Error, "node", "connect to a node of the primary component, or wait until this one has joined it")
	until(nodes[0], ops.OK, "node")
	check(t, nodes[2].Heal(t.Context()))
	until(nodes[2], ops.OK, "node")

	caughtUp(t, db)
	check(t, errors.Join(nodes[1].Kill(), nodes[2].Kill()))
	f := until(nodes[0], ops.Error, "node")
	statement := regexp.MustCompile(`SET GLOBAL wsrep_provider_options = '[^']*'`).FindString(f.Fix)
	if _, err := db.Admin().ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%q of %+v: %v", statement, f, err)
	}
	until(nodes[0], ops.OK, "node")
	for _, node := range nodes[1:] {
		check(t, node.Restart(t.Context()))
		until(node, ops.OK, "node")
	}
}

// TestMinority cuts a node off from the others, while its clients reach it. They lose their
// leases before others are granted them, are granted nothing more, and nothing that they
// commit is acknowledged, nor there in the end. Each call ends with its context, and a COMMIT
// with the readTimeout at the latest. Once the node is connected again, they go on. A Group
// Replication is tried without and with a limit for those who wait for a majority.
func TestMinority(t *testing.T) {
	onClusters(t, func(t *testing.T, nodes []*testdb.Server) {
		if nodes[0].Engine() == testdb.MariaDB {
			minority(t, nodes)
			return
		}
		for _, limit := range []int{0, 6} { // 0, the default, is none
			t.Run(fmt.Sprintf("limit %d s", limit), func(t *testing.T) {
				set := func(seconds int) {
					check(t, second(load.Administrator(t, nodes[2], callLimit).Exec(fmt.Sprintf("SET GLOBAL group_replication_unreachable_majority_timeout = %d", seconds))))
				}
				set(limit)
				minority(t, nodes)
				set(0)
			})
		}
	})
}

// minority is the test, of the last node.
func minority(t *testing.T, nodes []*testdb.Server) {
	t.Helper()
	db := nodes[0].Open(t)
	db.Exec(t, "CREATE TABLE work (who VARCHAR(20) PRIMARY KEY, n BIGINT NOT NULL)")
	db.Grant(t, "work")
	load.MayAskTheGroup(t, db)
	most := load.NewClient(t, 0, caughtUpConfig(t, db, nodes[0]))
	few := load.NewClient(t, 2, caughtUpConfig(t, db, nodes[2]))
	job, lock := txlock.Named("job"), txlock.Named("lock")
	insert := func(ctx context.Context, who string) func(tx *sql.Tx) error {
		return func(tx *sql.Tx) error { return second(tx.ExecContext(ctx, "INSERT INTO work VALUES (?, 1)", who)) }
	}
	work := func(c *load.Client, who string) func(ctx context.Context) error {
		return func(ctx context.Context) error { return locksqlc.Run(ctx, c.DB, []txlock.Key{lock}, insert(ctx, who)) }
	}
	// A guarded pool knows of the view, and the keys have rows.
	soon(t, "work before", work(few, "before"))
	var before, after *lease.Lease
	soon(t, "Acquire before", func(ctx context.Context) (err error) {
		before, err = few.Leases.Acquire(ctx, job)
		return err
	})
	caughtUp(t, db)

	check(t, nodes[2].Part(t.Context()))
	acquires := func(name string) func(ctx context.Context) error {
		return func(ctx context.Context) error { return acquired(few.Leases.Acquire(ctx, txlock.Named(name))) }
	}
	ends := []func(){
		told(t, "Run", true, work(few, "few")),
		told(t, "Acquire of what is free", false, acquires("free")),
		told(t, "TryAcquire of what is free", false, func(ctx context.Context) error {
			return acquired(few.Leases.TryAcquire(ctx, txlock.Named("another")))
		}),
		told(t, "Acquire of what is held", false, acquires("job")),
		told(t, "Once", true, func(ctx context.Context) error {
			return second(locksqlc.Once(ctx, few.DB, txlock.Named("once"), insert(ctx, "once")))
		}),
	}
	soon(t, "Acquire by a client of the majority", func(ctx context.Context) (err error) {
		after, err = most.Leases.Acquire(ctx, job, lease.TTL(10*time.Minute)) // the majority may take long to take the node in again
		return err
	})
	wants(t, "held by two: the lease of the minority", before.Err(), txlock.ErrLost)
	leasetest.Higher(t, after, before)
	soon(t, "work in the majority", work(most, "most"))
	for _, end := range ends {
		end()
	}
	told(t, "Run of one who is put out", true, work(few, "late"))()
	told(t, "Acquire of one who is put out", false, acquires("late"))()

	check(t, nodes[2].Heal(t.Context()))
	caughtUp(t, db.At(t, nodes[2])) // joins again
	for i, node := range nodes {
		caughtUp(t, db.At(t, node))
		leasetest.Equal(t, fmt.Sprintf("whose work node %d has", i), workers(t, db.At(t, node)), "before,most")
	}
	wants(t, "the lease of the majority", after.Err(), nil)
	wants(t, "Release", after.Release(t.Context()), nil)
	soon(t, "work afterwards", work(few, "afterwards"))
	for _, name := range []string{"job", "free", "another", "late"} {
		soon(t, "Acquire afterwards of "+name, func(ctx context.Context) error {
			l, err := few.Leases.Acquire(ctx, txlock.Named(name))
			if err != nil {
				return err
			}
			if name == "job" {
				leasetest.Higher(t, l, after)
			}
			return l.Release(ctx)
		})
	}
}

// acquired releases what was granted, which is told by a nil error.
func acquired(l *lease.Lease, err error) error {
	if err == nil {
		_ = l.Release(context.Background())
	}
	return err
}

// soon makes a call that must succeed within a minute. What is lost to a connection of before
// is made again.
func soon(t *testing.T, what string, call func(ctx context.Context) error) {
	t.Helper()
	ctx := leasetest.Limited(t, time.Minute)
	err := call(ctx)
	for ; err != nil && ctx.Err() == nil; err = call(ctx) {
		t.Logf("%s: %v", what, err)
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// told makes a call of a client of the minority in the background, and returns what says what the client was told: an error,
// which doesn't say that the work may be done again where nobody knows what has become of it, at the
// latest when the context has ended. A COMMIT of database/sql ends with the connection instead.
func told(t *testing.T, what string, commits bool, call func(ctx context.Context) error) (end func()) {
	t.Helper()
	var err error
	var took time.Duration
	var calling sync.WaitGroup
	calling.Go(func() {
		ctx, cancel := context.WithTimeout(t.Context(), callLimit)
		defer cancel()
		begun := time.Now()
		err = call(ctx)
		took = time.Since(begun)
	})
	return func() {
		t.Helper()
		calling.Wait()
		testdb.ErrorIf(t, err == nil || txlock.Retryable(err), "%s in the minority: %v, want an error that isn't Retryable", what, err)
		limit := callLimit
		if commits {
			limit += 2 * callLimit // the readTimeout of load.NewClient
		}
		testdb.ErrorIf(t, took > limit+5*time.Second, "%s ends after %v, want at most %v", what, took, limit)
	}
}
