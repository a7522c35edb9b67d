package txlock_test

import (
	"database/sql"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestInterruptedStatements: MariaDB answers OK, with no changed row, to an UPDATE or DELETE that
// KILL QUERY or its time limit has interrupted.
func TestInterruptedStatements(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		var interrupted atomic.Value // what the statement has that is interrupted next
		interrupted.Store("nothing")
		wire, mutate := testdb.Rewritten(t, func(text string) string {
			if strings.Contains(text, interrupted.Load().(string)) {
				interrupted.Store("nothing")
				text += " AND 1 = 0"
			}
			return text
		})
		pool := newPool(t, db, true, mutate)

		const prolong = "UPDATE lockstep_once SET done_us"
		interrupted.Store(prolong)
		noError(t, second(locksqlc.Once(t.Context(), pool, named(), func(*sql.Tx) error { return nil }, txlock.Keep(time.Microsecond))))
		prolonged := 0
		for _, text := range wire.Sent() {
			if strings.Contains(text, prolong) {
				prolonged++
			}
		}
		if prolonged != 2 {
			t.Errorf("the time of the key was prolonged %d times, want a second time", prolonged)
		}

		interrupted.Store("DELETE FROM lockstep_once")
		first, err := txlock.PurgeOnce(t.Context(), pool)
		noError(t, err)
		second, err := txlock.PurgeOnce(t.Context(), pool)
		if noError(t, err); first != 0 || second != 1 {
			t.Errorf("PurgeOnce has deleted %d and %d keys, want none and one", first, second)
		}
	})
}
