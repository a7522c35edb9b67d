package txlock

import (
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// OnEngines runs a test for every engine.
func OnEngines(t *testing.T, test func(t *testing.T, engine testdb.Engine)) {
	t.Helper()
	t.Parallel()
	testdb.OnEngines(t, test)
}

// Remembered returns how many open transactions of this program are known to hold a key.
func Remembered(key Key) (n int) {
	inProgram.mu.Lock()
	defer inProgram.mu.Unlock()
	of := func(s spot) bool { return s.record == spotOf(new(state), key, s.once).record }
	for s := range inProgram.by {
		if of(s) {
			n++
		}
	}
	for s := range inProgram.shared {
		if of(s) {
			n++
		}
	}
	return n
}

// TestSlowWaitCostsNothing: what isn't asked for allocates nothing: of a scope that has all but SlowWait.
func TestSlowWaitCostsNothing(t *testing.T) {
	s, key := &state{pooled: pooled{watch: SlogObserver(nil)}}, Named("order:42")
	if n := testing.AllocsPerRun(100, func() { s.slowly(t.Context(), true, key).End() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
