package rawsql

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestLimits proves that the servers know every limit: never 0, which means none, never
// more than they heed, and rounded up.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		limit         time.Duration
		atMost, hint  string
		secondsOfWait int64
	}{
		{1, "0.000001", "(1)", 1},
		{499 * time.Nanosecond, "0.000001", "(1)", 1},
		{500 * time.Nanosecond, "0.000001", "(1)", 1},
		{time.Microsecond, "0.000001", "(1)", 1},
		{time.Microsecond + 1, "0.000002", "(1)", 1},
		{time.Millisecond, "0.001000", "(1)", 1},
		{time.Millisecond + 1, "0.001001", "(2)", 1},
		{time.Second, "1.000000", "(1000)", 1},
		{time.Second + 1, "1.000001", "(1001)", 2},
		{time.Hour, "3600.000000", "(3600000)", 3600},
		{math.MaxUint32 * time.Millisecond, "4294967.295000", "(4294967295)", 4294968},
		{math.MaxUint32*time.Millisecond + 1, "4294967.295001", "(4294967295)", 4294968},
		{31536000 * time.Second, "31536000.000000", "(4294967295)", 31536000},
		{31536000*time.Second + 1, "31536000.000000", "(4294967295)", 31536001},
		{math.MaxInt64 - 1, "31536000.000000", "(4294967295)", 9223372037},
		{math.MaxInt64, "31536000.000000", "(4294967295)", 9223372037},
	} {
		if got := AtMost(c.limit); got != "max_statement_time="+c.atMost {
			t.Errorf("AtMost(%d) is %s, want %s", c.limit, got, c.atMost)
		}
		if got := HintAtMost("SELECT 1", c.limit); !strings.Contains(got, " MAX_EXECUTION_TIME"+c.hint+" ") {
			t.Errorf("HintAtMost(%d) is %s, want %s", c.limit, got, c.hint)
		}
		if got := LockWait(c.limit); got != c.secondsOfWait {
			t.Errorf("LockWait(%d) is %d, want %d", c.limit, got, c.secondsOfWait)
		}
	}
}
