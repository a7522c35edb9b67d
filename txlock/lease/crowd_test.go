package lease_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestLabelsOfAllSizes hands a lease on in a fair queue whose waiters have labels of all
// sizes: what InnoDB keeps for those who wait must not grow with the hand-overs, as it does
// where the queue row changes its size.
func TestLabelsOfAllSizes(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Shared(t, engine).Open(t)
			const waiters = 6
			key, granted := named(), make(chan *lease.Lease)
			held := acquire(t, newManager(t, newPool(t, db, true)), key)
			for i := range waiters {
				m := newManager(t, newPool(t, db, true))
				go func() {
					l, err := m.Acquire(t.Context(), key, lease.Fair(), lease.WithLabel(strings.Repeat("n", 1+40*i)))
					if err != nil {
						t.Error(err)
					}
					granted <- l
				}()
				// The first has the queue row, and looks again and again.
				if !testdb.Await(time.Minute, func() bool { waiting, _ := db.RowLocks(t); return len(waiting) == i }) {
					t.Fatalf("not %d wait", i)
				}
			}
			most := func() (n int) {
				waiting, _ := db.RowLocks(t)
				for _, id := range waiting {
					n = max(n, db.LockStructs(t, id))
				}
				return n
			}
			before := most()
			for i := range waiters {
				if n := most(); before == 0 || n > before {
					t.Errorf("who waits has %d structures of locks, and %d after %d holders", before, n, i)
				}
				release(t, held)
				if held = <-granted; held == nil {
					t.FailNow()
				}
			}
			release(t, held)
		})
	}
}
