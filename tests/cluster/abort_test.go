//go:build cluster

package cluster

import (
	"database/sql"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

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
		there := db.At(t, nodes[1])
		caughtUp(t, there)
		other := locksuite.OpenSQL(true, locksuite.BeginTx)(t, there.Config()).DB()
		key, in := txlock.Named(t.Name()), load.Inside(t, db)
		aborted := 0
		for end := time.Now().Add(15 * time.Second); !t.Failed() && (time.Now().Before(end) || aborted < 10); {
			tx, err := pool.BeginTx(t.Context(), nil)
			check(t, err)
			scope, err := locksqlc.Join(t.Context(), tx)
			check(t, err)
			_, err = scope.Lock(t.Context(), key)
			var overtaking sync.WaitGroup
			overtaking.Go(func() {
				err := locksqlc.Run(t.Context(), other, []txlock.Key{key}, func(*sql.Tx) error { return nil })
				if err != nil && !txlock.Retryable(err) {
					t.Errorf("on the other node: %v", err)
				}
			})
			time.Sleep(rand.N(2 * time.Millisecond))
			for i := 0; i < 20 && err == nil; i++ {
				open := 1
				err = tx.QueryRowContext(t.Context(), "SELECT "+in+" FROM "+table+" WHERE id = ?", 1).Scan(&open)
				if err == nil && open == 0 {
					t.Error("a statement was executed after the cluster had ended the transaction")
				}
			}
			if err != nil {
				aborted++
				if !errors.Is(err, txlock.ErrTxDoomed) && !txlock.Retryable(err) {
					t.Errorf("an aborted transaction: %v, want one to start again", err)
				}
			}
			_ = tx.Rollback()
			overtaking.Wait()
		}
		t.Logf("%d aborted", aborted)
	})
}
