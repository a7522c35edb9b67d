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

// TestRefusedCommits has two members commit under one lock, at once, until the group has
// refused some. A pool whose user may ask in which view the member is begins all of them
// again but for the first; one whose user may not has each as an error. Then the member
// leaves the group and comes back, under load: nothing is done twice.
func TestRefusedCommits(t *testing.T) {
	onGroup(t, refusedCommits)
}

// onGroup runs a test on a Group Replication.
func onGroup(t *testing.T, test func(t *testing.T, nodes []*testdb.Server)) {
	t.Helper()
	if slices.Contains(testdb.Engines(), testdb.MySQL) {
		test(t, cluster(t, testdb.MySQL))
	}
}

func refusedCommits(t *testing.T, nodes []*testdb.Server) {
	db := nodes[0].Open(t)
	db.Exec(t, "CREATE TABLE numbers (kind VARCHAR(20) PRIMARY KEY, n BIGINT NOT NULL)")
	db.Exec(t, "CREATE TABLE marks (id VARCHAR(40) PRIMARY KEY, kind VARCHAR(20) NOT NULL, inside BOOL NOT NULL)")
	db.Grant(t, "numbers", "marks")
	in := load.Inside(t, db)
	for _, kind := range []string{"may not ask", "asks", "leaves"} {
		db.Exec(t, "INSERT INTO numbers VALUES ('"+kind+"', 0)")
	}
	play := func(kind string, until func(again, unknown int) bool, meanwhile func()) (again, unknown int) {
		l, watch := load.NewLedger(kind, in), &retried{number: 3101}
		count := func() (again, unknown int) {
			return int(watch.n.Load()), l.Errors()["Error 3101"]
		}
		var working sync.WaitGroup
		var ended atomic.Bool
		for _, node := range nodes[:2] {
			cfg := caughtUpConfig(t, db, node)
			cfg.ReadTimeout, cfg.Logger = 2*callLimit, &mysql.NopLogger{}
			pool := openGuarded(t, cfg, txlock.Observe(watch.observe))
			for range 3 {
				working.Go(func() {
					for deadline := time.Now().Add(5 * time.Minute); !ended.Load() && !until(count()) && time.Now().Before(deadline); {
						ctx, cancel := context.WithTimeout(t.Context(), callLimit)
						l.Locked(ctx, pool)
						cancel()
					}
				})
			}
		}
		if meanwhile != nil {
			meanwhile()
			ended.Store(true)
		}
		working.Wait()
		for _, node := range nodes {
			l.Check(t, caughtUp(t, db.At(t, node)))
		}
		again, unknown = count()
		t.Logf("%s: %d begun again after 3101, errors %v", kind, again, l.Errors())
		return again, unknown
	}
	if again, unknown := play("may not ask", func(_, unknown int) bool { return unknown >= 30 }, nil); again > 0 || unknown < 30 {
		t.Errorf("without the privilege: %d were begun again, %d are unknown", again, unknown)
	}
	load.MayAskTheGroup(t, db)
	if again, unknown := play("asks", func(again, _ int) bool { return again >= 300 }, nil); again < 300 || unknown > again/4 {
		t.Errorf("with the privilege: %d were begun again, %d are unknown", again, unknown)
	}
	never := func(_, _ int) bool { return false }
	play("leaves", never, func() {
		for range 3 {
			time.Sleep(2 * time.Second)
			there := db.At(t, nodes[1])
			if _, err := there.Admin().Exec("STOP GROUP_REPLICATION"); err != nil {
				t.Error(err)
			}
			caughtUp(t, there)
			time.Sleep(2 * time.Second)
			hung(t, db.At(t, nodes[0]))
		}
	})
}
