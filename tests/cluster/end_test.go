//go:build cluster

package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
)

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
		db.Exec(t, "CREATE TABLE numbers (kind VARCHAR(20) PRIMARY KEY, n BIGINT NOT NULL)")
		db.Exec(t, "CREATE TABLE marks (id VARCHAR(40) PRIMARY KEY, kind VARCHAR(20) NOT NULL, inside BOOL NOT NULL)")
		db.Grant(t, "numbers", "marks")
		db.Exec(t, "INSERT INTO numbers VALUES ('quiet', 0), ('ends', 0)")
		in := load.Inside(t, db)
		quiet, ends := load.NewLedger("quiet", in), load.NewLedger("ends", in)
		watch := &overtaken{t: t}
		var working sync.WaitGroup
		for i, node := range nodes[:2] {
			cfg := caughtUpConfig(t, db, node)
			trips, count := testdb.CountTrips(t)
			count(cfg)
			cfg.InterpolateParams = true
			pool := openGuarded(t, cfg, txlock.Observe(watch.observe))
			if i == 0 {
				for _, connected := range []bool{false, true} {
					before := trips.Count()
					quiet.Optimistic(t.Context(), pool)
					want := 5 // one to begin, three of the program and one to end
					if db.Engine() == testdb.MariaDB {
						want = 6 // see TestOpenings
					}
					if n := trips.Count() - before; connected && n != want {
						t.Errorf("%d round trips, want %d", n, want)
					}
				}
				quiet.Check(t, caughtUp(t, db))
			}
			for range 2 {
				working.Go(func() {
					for deadline := time.Now().Add(2 * time.Minute); watch.ended.Load() < 10 && time.Now().Before(deadline); {
						ends.Optimistic(t.Context(), pool)
					}
				})
			}
		}
		working.Wait()
		t.Logf("%d ends were refused, errors %v", watch.ended.Load(), ends.Errors())
		if watch.ended.Load() == 0 {
			t.Error("the cluster has refused none")
		}
		for _, node := range slices.Backward(nodes) {
			ends.Check(t, caughtUp(t, db.At(t, node)))
		}
	})
}
