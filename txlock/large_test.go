//go:build !race

package txlock_test

import (
	"cmp"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestLockAllOfTenThousand locks more than one statement takes: the parts come one after the other, on rows that the one before has set free.
func TestLockAllOfTenThousand(t *testing.T) {
	const n = 10_000
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = int64((i*7919)%n + 1) // in no order
	}
	families := map[string]txlock.Family[int64]{
		"named":  txlock.NewFamily[int64]("large"),
		"hashed": txlock.NewFamily[int64]("large", txlock.Hashed()),
	}
	onCenters(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{false, true} {
			for _, interpolate := range []bool{false, true} {
				for name, family := range families {
					if (guarded == interpolate) != (name == "named") {
						continue // any two of the three are combined
					}
					t.Run(fmt.Sprintf("%s/guarded=%t/interpolate=%t", name, guarded, interpolate), func(t *testing.T) {
						pool := newPool(t, db, guarded, func(cfg *mysql.Config) { cfg.InterpolateParams = interpolate })
						keys := family.Keys(ids...)
						s := begin(t, pool, nil)
						grants := testdb.Got(s.LockAll(t.Context(), keys...))(t)
						allGranted(t, s, keys, grants)
						others := begin(t, newPool(t, db, true), nil)
						wants(t, "TryLock of the last of them", testdb.Err(others.TryLock(t.Context(), keys[n-1])), txlock.ErrBusy)
						wants(t, "Rollback", others.tx.Rollback(), nil)
						testdb.Equal(t, "those that have a holder", len(holders(t, db, keys...)), n)
						wants(t, "Rollback", s.tx.Rollback(), nil)
						testdb.Equal(t, "those that have a holder after the rollback", len(holders(t, db, keys...)), 0)
						testdb.Equal(t, "rows after the rollback", number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks"), 0)
					})
				}
			}
		}
	})
}

// allGranted demands a grant for every key, in its place.
func allGranted(t *testing.T, s *session, keys []txlock.Key, grants []txlock.Grant) {
	t.Helper()
	testdb.Equal(t, "grants", len(grants), len(keys))
	centers := map[uint16]uint64{}
	for i, grant := range grants {
		if h, held := s.Held(keys[i]); grant.Key() != keys[i] || grant.Token() < 1e15 || grant.Shared() || !held || h.Token() != grant.Token() {
			t.Fatalf("grant %d of %v is %+v; held %t, %+v", i, keys[i], grant, held, h)
		}
		if slot := keys[i].Slot(); keys[i].Hashed() {
			testdb.Equal(t, "the token of a center row", grant.Token(), cmp.Or(centers[slot], grant.Token()))
			centers[slot] = grant.Token()
		}
	}
}
