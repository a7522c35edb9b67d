package lease_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestSelectLimit proves that on sessions whose SELECTs show one row (sql_select_limit) all
// readers are found: by a writer in a transaction, by Inspect, List and those who look for
// transactions that stand still, and who is asked is told. Neither does schema.Check mind.
func TestSelectLimit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			pool := newPool(t, db, guarded, func(cfg *mysql.Config) { cfg.Params = map[string]string{"sql_select_limit": "1"} })
			wants(t, "schema.Check", schema.Check(t.Context(), pool), nil)
			m, key := newManager(t, pool, lease.RenewEvery(100*time.Millisecond)), named()
			var readers []*lease.Lease
			for _, owner := range []string{"one", "two", "three"} {
				l, err := m.AcquireShared(lease.WithOwner(t.Context(), owner), key)
				must(t, err)
				readers = append(readers, l)
			}
			for _, l := range readers {
				tx := begin(t, pool, sql.LevelDefault)
				wants(t, "AcquireTx of reader "+l.Owner(), second(m.AcquireTx(lease.WithOwner(t.Context(), l.Owner()), tx, key)), txlock.ErrUpgrade)
				wants(t, "Rollback", tx.Rollback(), nil)
			}
			info, err := m.Inspect(t.Context(), key)
			if err != nil || len(info.Others) != len(readers) {
				t.Errorf("Inspect: %d readers, %v", len(info.Others), err)
			}
			listed := 0
			all, err := m.List(t.Context())
			for _, i := range all {
				if i.Key == key {
					listed++
				}
			}
			if err != nil || listed != len(readers) {
				t.Errorf("List: %d readers, %v", listed, err)
			}
			for _, l := range readers {
				tx := begin(t, pool, sql.LevelDefault)
				wants(t, "Guard", l.Guard(t.Context(), tx), nil)
				wants(t, "Commit", tx.Commit(), nil)
			}
			written, err := gen.New().LeaseTransactions(t.Context(), pool, []byte(key.String()))
			if err != nil || len(written) != len(readers) {
				t.Errorf("LeaseTransactions: %d readers, %v", len(written), err)
			}
			wants(t, "Ask", m.RequestRelease(t.Context(), key, "now"), nil)
			for _, l := range readers {
				select {
				case <-l.ReleaseRequested():
				case <-time.After(time.Minute):
					t.Errorf("reader %s was not told", l.Owner())
				}
				release(t, l)
			}
		}
	})
}
