package job

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// TestLedger proves what the rows of jobs allow to whom: a lease begins a tick once, never one
// that is done, nor one that is older than another that was begun, and who has lost the lease
// begins and marks nothing.
func TestLedger(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		ledger := &sqlLedger{db: newPool(t, db, true)}
		at := time.UnixMicro(1_700_000_000_000_000)
		must(t, ledger.make(t.Context(), nightly.String(), at.Add(-time.Hour), coming{}))
		tick := func(token uint64, after time.Duration) beginning {
			return beginning{key: nightly.String(), at: at.Add(after), instance: "test", token: token}
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
		done := func(b beginning) (bool, error) { return ledger.done(t.Context(), b, jobrow.Run{}) }
		failed := func(b beginning) (bool, error) { return ledger.failed(t.Context(), b, jobrow.Run{}, "why") }

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

// TestLedgerReplies feeds the ledger what is none of the replies of its statements.
func TestLedgerReplies(t *testing.T) {
	t.Parallel()
	db, mock, err := sqlmock.New()
	must(t, err)
	t.Cleanup(func() {
		mock.ExpectClose()
		must(t, db.Close())
		must(t, mock.ExpectationsWereMet())
	})
	ledger := &sqlLedger{db: db}
	columns := []string{"tick_us", "done_us", "token", "owner", "started_us", "ended_us", "took_us", "failures", "error", "next_us", "limit_us", "schedule", "paused_us", "paused_by", "run_us", "now_us", "words"}
	for _, c := range []struct {
		name                            string
		tick, done, started, ended, now any
		words                           string
		want                            error
	}{
		{"a row", 5, 5, 3, 4, 9, "", nil},
		{"done before it was begun", 5, 6, 3, 4, 9, "", fault.ErrReply},
		{"no clock", 5, 5, 3, 4, 0, "", fault.ErrReply},
		{"begun before 1970", 5, 5, -1, 4, 9, "", fault.ErrReply},
		{"ended before 1970", 5, 5, 3, -1, 9, "", fault.ErrReply},
		{"NULL", nil, 5, 3, 4, 9, "", fault.ErrReply},
		{"no number", "perhaps", 5, 3, 4, 9, "", fault.ErrReply},
		{"another engine", 5, 5, 3, 4, 9, "engine=other ", schema.ErrEngine},
		{"another engine on which leases hold", 5, 5, 3, 4, 9, "engine=other ", nil},
		{"one without autocommit", 5, 5, 3, 4, 9, "engine=other autocommit=0 ", schema.ErrAutocommit},
		{"other words", 5, 5, 3, 4, 9, "perhaps ", schema.ErrSession},
	} {
		mock.ExpectQuery("LookJob").WillReturnRows(sqlmock.NewRows(columns).
			AddRow(c.tick, c.done, 7, []byte("me"), c.started, c.ended, 0, 0, []byte("-"), 0, 0, []byte{}, 0, []byte{}, 0, c.now, c.words))
		if strings.Contains(c.words, "engine") { // it asks for more
			reply := session.Reply("8.0.11-TiDB-v8.5.0", "here")
			if errors.Is(c.want, schema.ErrEngine) {
				reply[5] = strings.Replace(reply[5].(string), "sees_own_id=1", "sees_own_id=2", 1)
				reply[0] = "8.4.0"
			}
			mock.ExpectQuery("@@version").WillReturnRows(sqlmock.NewRows([]string{"1", "2", "3", "4", "5", "6"}).AddRow(reply...))
		}
		if _, _, err := ledger.look(t.Context(), "k"); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for statement, send := range map[string]func() (bool, error){
		"BeginJob":  func() (bool, error) { return ledger.begin(t.Context(), beginning{key: "k"}) },
		"JobDone":   func() (bool, error) { return ledger.done(t.Context(), beginning{key: "k"}, jobrow.Run{}) },
		"JobFailed": func() (bool, error) { return ledger.failed(t.Context(), beginning{key: "k"}, jobrow.Run{}, "why") },
	} {
		mock.ExpectExec(statement).WillReturnResult(sqlmock.NewResult(0, 3))
		if changed, err := send(); changed || !errors.Is(err, fault.ErrReply) {
			t.Errorf("%s that changes three rows: %t, %v", statement, changed, err)
		}
	}
}
