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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// callLimit bounds a call of a client, on a node that may hang.
const callLimit = load.CallLimit

// TestFaults has clients on all nodes at once, while nodes are killed, hang or are cut off, and come back. No update is lost, what was
// acknowledged stays, what was refused is not there, leases are held by one at a time and their tokens rise, also in the data.
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
		testdb.FatalIf(t, ctx.Err() != nil, "the node is not one of the cluster again, which has %d: %v", size, err)
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
		found := testdb.Got(ops.New(db.Connect(t)).Check(t.Context(), db.At(t, nodes[1]).Admin(), db.At(t, nodes[2]).Admin()))(t)
		states := make(map[string]ops.State)
		for _, f := range found {
			states[f.Name] = f.State
		}
		for name, want := range map[string]ops.State{"cluster": ops.Warn, "tables": ops.OK, "clock of node 1": ops.OK, "clock of node 2": ops.OK} {
			testdb.ErrorIf(t, states[name] != want, "%s is %q, want %q, of %+v", name, states[name], want, found)
		}
	})
}

// TestRemediesOfGalera does what check says of a node of Galera in no primary component: connects to one that is in it, waits until the
// node has joined it, or makes one at the node that is left. Check finds the node right afterwards.
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
		testdb.Says(t, "the fix", f.Fix, fixes...)
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
	_, err := db.Admin().ExecContext(t.Context(), statement)
	testdb.FatalIf(t, err != nil, "%q of %+v: %v", statement, f, err)
	until(nodes[0], ops.OK, "node")
	for _, node := range nodes[1:] {
		check(t, node.Restart(t.Context()))
		until(node, ops.OK, "node")
	}
}

// TestMinority cuts a node off from the others, not from its clients. They lose their leases before others are granted them, and nothing
// that they commit is acknowledged or there. Each call ends with its context, a COMMIT with the readTimeout. Once the node is back,
// they go on. A Group Replication is tried without and with a limit for those who wait for a majority.
func TestMinority(t *testing.T) {
	onClusters(t, func(t *testing.T, nodes []*testdb.Server) {
		if nodes[0].Engine() == testdb.MariaDB {
			minority(t, nodes)
			return
		}
		for _, limit := range []int{0, 6} { // 0, the default, is none
			t.Run(fmt.Sprintf("limit %d s", limit), func(t *testing.T) {
				set := func(seconds int) {
					check(t, testdb.Err(load.Administrator(t, nodes[2], callLimit).Exec(fmt.Sprintf("SET GLOBAL group_replication_unreachable_majority_timeout = %d", seconds))))
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
		return func(tx *sql.Tx) error { return testdb.Err(tx.ExecContext(ctx, "INSERT INTO work VALUES (?, 1)", who)) }
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
			return testdb.Err(locksqlc.Once(ctx, few.DB, txlock.Named("once"), insert(ctx, "once")))
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
		testdb.Equal(t, fmt.Sprintf("whose work node %d has", i), workers(t, db.At(t, node)), "before,most")
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
	testdb.FatalIf(t, err != nil, "%s: %v", what, err)
}

// told makes a call of a client of the minority in the background. What it returns demands an error that isn't Retryable, at the latest
// when the context has ended; a COMMIT of database/sql ends with the connection instead.
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

// TestAborts proves that a guarded pool finds out about every abort by the cluster at once, also those that the server does not tell of: a
// transaction that another node has overtaken executes nothing more. Statements are prepared, which is when that happens.
func TestAborts(t *testing.T) {
	onClusters(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		table := db.CreateTable(t, "rows", "id INT PRIMARY KEY, n BIGINT NOT NULL")
		db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0), (2, 0)")
		pool := locksuite.OpenSQL(true, locksuite.BeginTx)(t, db.Config()).DB()
		other := locksuite.OpenSQL(true, locksuite.BeginTx)(t, caughtUpConfig(t, db, nodes[1])).DB()
		key, in := txlock.Named(t.Name()), load.Inside(t, db)
		aborted := 0
		for end := time.Now().Add(15 * time.Second); !t.Failed() && (time.Now().Before(end) || aborted < 10); {
			tx := testdb.Got(pool.BeginTx(t.Context(), nil))(t)
			scope := testdb.Got(locksqlc.Join(t.Context(), tx))(t)
			_, err := scope.Lock(t.Context(), key)
			if err != nil {
				wants(t, "Lock", err, txlock.ErrDeadlock)
			}
			var overtaking sync.WaitGroup
			overtaking.Go(func() {
				err := locksqlc.Run(t.Context(), other, []txlock.Key{key}, func(*sql.Tx) error { return nil })
				testdb.ErrorIf(t, err != nil && !txlock.Retryable(err), "on the other node: %v", err)
			})
			time.Sleep(rand.N(2 * time.Millisecond))
			for i := 0; i < 20 && err == nil; i++ {
				open := 1
				err = tx.QueryRowContext(t.Context(), "SELECT "+in+" FROM "+table+" WHERE id = ?", 1).Scan(&open)
				testdb.ErrorIf(t, err == nil && open == 0, "a statement was executed after the cluster had ended the transaction")
			}
			if err != nil {
				aborted++
				testdb.ErrorIf(t, !errors.Is(err, txlock.ErrTxDoomed) && !txlock.Retryable(err), "an aborted transaction: %v, want one to start again", err)
			}
			_ = tx.Rollback()
			overtaking.Wait()
		}
	})
}

// overtaken counts the statements of locks that the cluster has answered by the abort of
// the transaction.
type overtaken struct {
	t     *testing.T
	ended atomic.Int64
}

// observe fails the test unless an abort is judged as that of a COMMIT: what is rolled
// back for sure may be run again, and what the group may have isn't.
func (o *overtaken) observe(_ context.Context, e txlock.Event) {
	var server *mysql.MySQLError
	if e.Kind != txlock.Refused || !errors.As(e.Err, &server) {
		return
	}
	o.ended.Add(1)
	switch server.Number {
	case 1213, 1180:
		if !errors.Is(e.Err, txlock.ErrDeadlock) || !txlock.Retryable(e.Err) {
			o.t.Errorf("%v, want ErrDeadlock, which is Retryable", e.Err)
		}
	case 3101:
		if txlock.Retryable(e.Err) {
			o.t.Errorf("%v is Retryable, and the group may have the transaction", e.Err)
		}
	default:
		o.t.Errorf("the end was answered: %v", e.Err)
	}
}

// TestOptimisticEnds has two nodes compare a version and commit in one statement, at once,
// until the cluster has refused that ten times: no update is lost or made twice.
func TestOptimisticEnds(t *testing.T) {
	onClusters(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		in := load.Tables(t, db)
		quiet, ends := load.AddLedger(t, db, "quiet", in), load.AddLedger(t, db, "ends", in)
		watch := &overtaken{t: t}
		var pools []*sql.DB
		trips, count := testdb.CountTrips(t)
		for i, node := range nodes[:2] {
			cfg := caughtUpConfig(t, db, node)
			if i == 0 {
				count(cfg)
			}
			cfg.InterpolateParams = true
			pools = append(pools, openGuarded(t, cfg, txlock.Observe(watch.observe)))
		}
		quiet.Optimistic(t.Context(), pools[0]) // connects
		before, want := trips.Count(), 5        // one to begin, three of the program and one to end
		if db.Engine() == testdb.MariaDB {
			want = 6 // a node executes what it takes for a single statement once more
		}
		quiet.Optimistic(t.Context(), pools[0])
		testdb.Equal(t, "round trips", trips.Count()-before, want)
		quiet.Check(t, caughtUp(t, db))
		load.Beside(2*len(pools), func(i int) { ends.Optimistic(t.Context(), pools[i%2]) }, func() {
			testdb.Await(2*time.Minute, func() bool { return watch.ended.Load() >= 10 })
		})
		t.Logf("%d ends were refused, errors %v", watch.ended.Load(), ends.Errors())
		testdb.ErrorIf(t, watch.ended.Load() == 0, "the cluster has refused none")
		for _, node := range slices.Backward(nodes) {
			ends.Check(t, caughtUp(t, db.At(t, node)))
		}
	})
}

// TestSales has two nodes sell pieces of one row, each by a read that takes the lock with it and a
// write that commits: what was acknowledged is sold, and nothing else but what nobody knows.
func TestSales(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		db.Exec(t, "CREATE TABLE stock (id INT PRIMARY KEY, n BIGINT NOT NULL)")
		db.Grant(t, "stock")
		db.Exec(t, "INSERT INTO stock VALUES (1, 0)")
		var sold, unknown atomic.Int64
		var pools []*sql.DB
		for _, node := range nodes[:2] {
			for _, interpolates := range []bool{false, true} {
				cfg := caughtUpConfig(t, db, node)
				cfg.InterpolateParams = interpolates
				pools = append(pools, openGuarded(t, cfg))
			}
		}
		load.Beside(len(pools), func(i int) {
			err := locksqlc.Run(t.Context(), pools[i], nil, func(tx *sql.Tx) error {
				locks, err := locksqlc.Join(t.Context(), tx)
				if err != nil {
					return err
				}
				var n int64
				if err := tx.QueryRowContext(locks.LockWith(t.Context(), txlock.Named("stock")), "SELECT n FROM stock WHERE id = ?", 1).Scan(&n); err != nil {
					return err
				}
				return testdb.Err(tx.ExecContext(locks.CommitWith(t.Context(), 1), "UPDATE stock SET n = ? WHERE id = ?", n+1, 1))
			})
			switch {
			case err == nil:
				sold.Add(1)
			case errors.Is(err, txlock.ErrUnknownOutcome):
				unknown.Add(1)
			case !txlock.Retryable(err): // else it was run often enough
				t.Errorf("a sale: %v", err)
			}
		}, func() {
			testdb.Await(2*time.Minute, func() bool { return sold.Load() >= 300 || t.Failed() })
		})
		for _, node := range nodes {
			var n int64
			check(t, caughtUp(t, db.At(t, node)).QueryRowContext(t.Context(), "SELECT n FROM stock WHERE id = 1").Scan(&n))
			testdb.ErrorIf(t, n < sold.Load() || n > sold.Load()+unknown.Load() || n == 0,
				"%d were sold, %d acknowledged, of %d nobody knows", n, sold.Load(), unknown.Load())
		}
	})
}

// retried counts the transactions that are begun again because of an error of the server.
type retried struct {
	number uint16
	n      atomic.Int64
}

func (o *retried) observe(_ context.Context, e txlock.Event) {
	var server *mysql.MySQLError
	if e.Kind == txlock.Retried && errors.As(e.Err, &server) && server.Number == o.number {
		o.n.Add(1)
	}
}

// TestRefusedCommits has two members of a Group Replication commit under one lock until the group has refused some. A pool whose user may
// ask for the member's view begins all again but the first; else each is an error. Then the member leaves and comes back, under load.
func TestRefusedCommits(t *testing.T) {
	onSome(t, refusedCommits, testdb.MySQL)
}

func refusedCommits(t *testing.T, nodes []*testdb.Server) {
	db := nodes[0].Open(t)
	in := load.Tables(t, db)
	play := func(kind string, meanwhile func(count func() (again, unknown int))) (again, unknown int) {
		l, watch := load.AddLedger(t, db, kind, in), &retried{number: 3101}
		count := func() (again, unknown int) {
			return int(watch.n.Load()), l.Errors()["Error 3101"]
		}
		var pools []*sql.DB
		for _, node := range nodes[:2] {
			cfg := caughtUpConfig(t, db, node)
			cfg.ReadTimeout, cfg.Logger = 2*callLimit, &mysql.NopLogger{}
			pools = append(pools, openGuarded(t, cfg, txlock.Observe(watch.observe)))
		}
		load.Beside(3*len(pools), func(i int) {
			ctx, cancel := context.WithTimeout(t.Context(), callLimit)
			defer cancel()
			l.Locked(ctx, pools[i%2])
		}, func() { meanwhile(count) })
		for _, node := range nodes {
			l.Check(t, caughtUp(t, db.At(t, node)))
		}
		again, unknown = count()
		t.Logf("%s: %d begun again after 3101, errors %v", kind, again, l.Errors())
		return again, unknown
	}
	until := func(enough func(again, unknown int) bool) func(func() (int, int)) {
		return func(count func() (int, int)) { testdb.Await(5*time.Minute, func() bool { return enough(count()) }) }
	}
	again, unknown := play("may not ask", until(func(_, unknown int) bool { return unknown >= 30 }))
	testdb.ErrorIf(t, again > 0 || unknown < 30, "without the privilege: %d were begun again, %d are unknown", again, unknown)
	load.MayAskTheGroup(t, db)
	again, unknown = play("asks", until(func(again, _ int) bool { return again >= 300 }))
	testdb.ErrorIf(t, again < 300 || unknown > again/4, "with the privilege: %d were begun again, %d are unknown", again, unknown)
	play("leaves", func(func() (int, int)) {
		for range 3 {
			time.Sleep(2 * time.Second)
			there := db.At(t, nodes[1])
			wants(t, "STOP GROUP_REPLICATION", testdb.Err(there.Admin().Exec("STOP GROUP_REPLICATION")), nil)
			caughtUp(t, there)
			time.Sleep(2 * time.Second)
			hung(t, db.At(t, nodes[0]))
		}
	})
}
