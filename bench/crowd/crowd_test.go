package crowd

import (
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) {
	if os.Getenv(Variable) != "" {
		Main()
		return
	}
	goleak.VerifyTestMain(m)
}

// TestAnalyse proves what counts as a hand-over, and who was passed.
func TestAnalyse(t *testing.T) {
	t.Parallel()
	const ms = int64(time.Millisecond)
	r := Analyse([]Span{
		{Asked: 50 * ms, Granted: 60 * ms, Freed: 61 * ms}, // asked last, granted third: passes one
		{Asked: 0, Granted: 1 * ms, Freed: 10 * ms},
		{Asked: 20 * ms, Granted: 70 * ms, Freed: 80 * ms},
		{Asked: 5 * ms, Granted: 12 * ms, Freed: 22 * ms},    // waited 2 ms for the first
		{Asked: 81 * ms, Granted: 82 * ms, Freed: 83 * ms},   // nobody had the lock
		{Asked: 78 * ms, Granted: 100 * ms, Freed: 101 * ms}, // passed by less than the slack
	})
	want := []float64{2000, 9000, 17000}
	testdb.ErrorIf(t, !slices.Equal(r.HandOvers, want), "hand-overs %v, want %v", r.HandOvers, want)
	want = []float64{0, 0, 1, 0, 0, 0}
	testdb.ErrorIf(t, !slices.Equal(r.Passed, want), "passed %v, want %v", r.Passed, want)
}
