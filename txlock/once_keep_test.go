package txlock_test

import (
	"math"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestOnceKeptForEver: the longest time of all is no time that is over.
func TestOnceKeptForEver(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		for _, keep := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 - 999} {
			key := named()
			for _, first := range []bool{true, false} {
				s := begin(t, pool, nil)
				s.once(t, key, first, txlock.Keep(keep))
				s.commit(t)
			}
		}
	})
}
