//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
)

// TestAborts proves that a guarded pool finds out about every abort by the cluster, at
// once, also those that the server does not tell of: a transaction that another node has
// overtaken executes nothing more. Statements are prepared, which is when that happens.
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
			tx := leasetest.Got(pool.BeginTx(t.Context(), nil))(t)
			scope := leasetest.Got(locksqlc.Join(t.Context(), tx))(t)
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
		leasetest.Equal(t, "round trips", trips.Count()-before, want)
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
				return second(tx.ExecContext(locks.CommitWith(t.Context(), 1), "UPDATE stock SET n = ? WHERE id = ?", n+1, 1))
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
			if n < sold.Load() || n > sold.Load()+unknown.Load() || n == 0 {
				t.Errorf("%d were sold, %d acknowledged, of %d nobody knows", n, sold.Load(), unknown.Load())
			}
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

// TestRefusedCommits has two members of a Group Replication commit under one lock, at once, until the
// group has refused some. A pool whose user may ask in which view the member is begins all of them
// again but for the first; one whose user may not has each as an error. Then the member
// leaves the group and comes back, under load: nothing is done twice.
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
	if again, unknown := play("may not ask", until(func(_, unknown int) bool { return unknown >= 30 })); again > 0 || unknown < 30 {
		t.Errorf("without the privilege: %d were begun again, %d are unknown", again, unknown)
	}
	load.MayAskTheGroup(t, db)
	if again, unknown := play("asks", until(func(again, _ int) bool { return again >= 300 })); again < 300 || unknown > again/4 {
		t.Errorf("with the privilege: %d were begun again, %d are unknown", again, unknown)
	}
	play("leaves", func(func() (int, int)) {
		for range 3 {
			time.Sleep(2 * time.Second)
			there := db.At(t, nodes[1])
			wants(t, "STOP GROUP_REPLICATION", second(there.Admin().Exec("STOP GROUP_REPLICATION")), nil)
			caughtUp(t, there)
			time.Sleep(2 * time.Second)
			hung(t, db.At(t, nodes[0]))
		}
	})
}
