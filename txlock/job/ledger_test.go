package job

import (
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestLedger proves what the rows of jobs allow to whom: a lease begins a tick once, never one
// that is done, nor one that is older than another that was begun, and who has lost the lease
// begins and marks nothing.
func TestLedger(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		ledger := sqlLedger{newPool(t, db, true)}
		at := time.UnixMicro(1_700_000_000_000_000)
		must(t, ledger.make(t.Context(), nightly.String(), at.Add(-time.Hour)))
		tick := func(token uint64, after time.Duration) beginning {
			return beginning{key: nightly.String(), at: at.Add(after), by: "test", token: token}
		}
		step := func(what string, want bool) func(bool, error) {
			return func(got bool, err error) {
				t.Helper()
				must(t, err)
				if got != want {
					t.Errorf("%s: %t, want %t", what, got, want)
				}
			}
		}
		begin := func(b beginning) (bool, error) { return ledger.begin(t.Context(), b) }
		done := func(b beginning) (bool, error) { return ledger.done(t.Context(), b) }
		failed := func(b beginning) (bool, error) { return ledger.failed(t.Context(), b, "why") }

		step("a tick from before the first", false)(begin(tick(10, -time.Hour)))
		step("a tick", true)(begin(tick(10, 0)))
		step("the tick under the same lease", false)(begin(tick(10, 0)))
		step("a later one under the same lease", false)(begin(tick(10, time.Hour)))
		step("the tick under a newer lease", true)(begin(tick(20, 0)))
		step("the mark of the older lease", false)(done(tick(10, 0)))
		step("the failure of the older lease", false)(failed(tick(10, 0)))
		step("the mark of another tick", false)(done(tick(20, time.Hour)))
		step("the failure", true)(failed(tick(20, 0)))
		step("the mark after it", false)(done(tick(20, 0)))
		step("the tick that has failed", true)(begin(tick(30, 0)))
		step("the mark", true)(done(tick(30, 0)))
		step("the tick that is done", false)(begin(tick(40, 0)))
		step("a later one", true)(begin(tick(50, 2*time.Hour)))
		step("one between the two", false)(begin(tick(60, time.Hour)))
	})
}
