//go:build tidb || vitess

package job

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestOnOtherEngines proves that of several processes one runs a tick, also where its transaction marks it, and
// that one that is killed leaves its tick to the next.
func TestOnOtherEngines(t *testing.T) {
	t.Parallel()
	const processes, ticks = 3, 20
	db := testdb.Open(t, testdb.Engines()[0])
	table, key := db.CreateTable(t, "ticks", "id BIGINT PRIMARY KEY AUTO_INCREMENT, at_us BIGINT"), newKey()
	first := time.Now().Add(-time.Hour).Truncate(time.Second)
	var all sync.WaitGroup
	for range processes {
		pool := newPool(t, db, true)
		jobs := open(t, pool)
		all.Go(func() {
			for i := range ticks {
				at := first.Add(time.Duration(i) * time.Second)
				_, err := jobs.TickTx(t.Context(), key, at, func(ctx context.Context, tx *sql.Tx, at time.Time) error {
					return second(tx.ExecContext(ctx, "INSERT INTO "+table+" (at_us) VALUES (?)", at.UnixMicro()))
				})
				if err != nil && !errors.Is(err, ErrPast) {
					t.Errorf("tick %d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
	if n, different := count(t, db, "SELECT COUNT(*) FROM "+table), count(t, db, "SELECT COUNT(DISTINCT at_us) FROM "+table); n != ticks || different != ticks {
		t.Errorf("%d ticks were done, %d different ones, want %d", n, different, ticks)
	}

	killed, jobs := open(t, newPool(t, db, true)), open(t, newPool(t, db, true))
	at := first.Add(time.Hour)
	c, err := killed.Claim(t.Context(), key, at)
	must(t, err)
	if _, err := jobs.Claim(t.Context(), key, at); !errors.Is(err, txlock.ErrBusy) {
		t.Errorf("beside who runs it: %v", err)
	}
	db.Exec(t, fmt.Sprintf("UPDATE lockstep_leases SET expires_us = 1 WHERE name = '%s'", key))
	next, err := jobs.Claim(t.Context(), key, at)
	must(t, err)
	must(t, next.Finish(t.Context(), nil))
	wants(t, "the tick that another has done", c.Finish(t.Context(), nil), txlock.ErrLost)
}
