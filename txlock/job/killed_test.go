package job

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestKilledConnection proves that an instant whose transaction was lost with its connection is
// done nevertheless, and once, on a plain pool and on a guarded one, although CatchUpAll gives up
// a tick that has failed at the next instant.
func TestKilledConnection(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		t.Run(fmt.Sprint("guarded ", guarded), func(t *testing.T) {
			onServers(t, func(t *testing.T, db *testdb.DB) {
				table := db.CreateTable(t, "effects", "at_us BIGINT NOT NULL")
				j := open(t, newPool(t, db, guarded), Log(nil))
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				var calls, killed atomic.Int64
				ended := make(chan error)
				key := newKey()
				go func() {
					ended <- j.RunTx(ctx, key, Every(500*time.Millisecond), func(ctx context.Context, tx *sql.Tx, at time.Time) error {
						if _, err := tx.ExecContext(ctx, "INSERT INTO "+table+" VALUES (?)", at.UnixMicro()); err != nil {
							return err
						}
						if calls.Add(1)%3 != 2 {
							return nil
						}
						var id int64
						if err := tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
							return err
						}
						if _, err := db.Admin().ExecContext(ctx, fmt.Sprint("KILL ", id)); err != nil {
							return err
						}
						killed.Add(1)
						return nil
					}, Missed(CatchUpAll), RetryAfter(time.Hour))
				}()
				if !testdb.Await(2*time.Minute, func() bool { return killed.Load() >= 3 && count(t, db, "SELECT COUNT(*) FROM "+table) >= 7 }) {
					t.Errorf("%d killed, %d effects", killed.Load(), count(t, db, "SELECT COUNT(*) FROM "+table))
				}
				stop()
				wants(t, "RunTx", <-ended, context.Canceled)
				if n := count(t, db, "SELECT (MAX(at_us) - MIN(at_us)) DIV 500000 + 1 - COUNT(*) FROM "+table); n != 0 {
					t.Errorf("%d instants are missing", n)
				}
				if n := count(t, db, "SELECT COUNT(*) - COUNT(DISTINCT at_us) FROM "+table); n != 0 {
					t.Errorf("%d instants were done twice", n)
				}
				runs, err := j.Runs(t.Context(), key)
				must(t, err)
				outcomes := make(map[Kind]int)
				for _, r := range runs {
					outcomes[r.Kind]++
				}
				if !guarded && outcomes[Interrupted] < 3 || outcomes[Done] < 7 || outcomes[Failed] != 0 {
					t.Errorf("the runs were %v", outcomes)
				}
			})
		})
	}
}
