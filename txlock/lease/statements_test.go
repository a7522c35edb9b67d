package lease_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/sqlstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// leaseRow is the row of a lease. Its expiry counts from the server's clock.
type leaseRow struct {
	owner, holds string
	token        uint64
	ttl, left    time.Duration
}

// Holds, as long as those that the library makes, of one process and of another.
const (
	holdA = ";processAaaaaaaaaaaaaaa"
	holdB = ";processAbbbbbbbbbbbbbb"
	holdC = ";processAcccccccccccccc"
	holdD = ";processaaaaaaaaaaaaaaa"
)

// fullList is how many holds there is room for.
const fullList = 8192 / len(holdA)

// sqlModes are those that change what a statement means.
func sqlModes(engine testdb.Engine) []string {
	modes := []string{"", "ANSI", "TRADITIONAL", "NO_UNSIGNED_SUBTRACTION", "HIGH_NOT_PRECEDENCE"}
	if engine == testdb.MariaDB {
		modes = append(modes, "ORACLE", "SIMULTANEOUS_ASSIGNMENT", "EMPTY_STRING_IS_NULL")
	}
	return modes
}

// exchange makes a call about a row, and returns its reply, and the token if there is one.
type exchange func(ctx context.Context, s store.Session, at store.Row) (store.Reply, uint64, error)

// statement is one case: what it finds, what it replies and leaves behind.
type statement struct {
	name  string
	row   *leaseRow // nil: it is missing
	send  exchange
	reply store.Reply
	want  leaseRow
}

// fresh stands for a token that is the server's clock.
const fresh = 1 << 62

func acquireOf(owner, hold string, ttl time.Duration, late bool) exchange {
	return func(ctx context.Context, s store.Session, at store.Row) (store.Reply, uint64, error) {
		notAfter := store.Never
		if late {
			notAfter = 0 // before the process has begun
		}
		a, err := s.Take(ctx, store.Ask{Row: at, Owner: owner, Label: "note", Hold: hold, TTL: ttl, NotAfter: notAfter})
		return a.Reply, a.Token, err
	}
}

func releaseOf(hold string) exchange {
	return func(ctx context.Context, s store.Session, at store.Row) (store.Reply, uint64, error) {
		reply, err := s.Release(ctx, at, hold)
		return reply, 0, err
	}
}

func keepOf(hold string) exchange {
	return func(ctx context.Context, s store.Session, at store.Row) (store.Reply, uint64, error) {
		reply, err := s.Keep(ctx, at, hold, time.Hour)
		return reply, 0, err
	}
}

func renewOf(owner, hold string, token uint64) exchange {
	return func(ctx context.Context, s store.Session, at store.Row) (store.Reply, uint64, error) {
		reply, err := s.Renew(ctx, store.Claim{Row: at, Owner: owner, Hold: hold, Token: token})
		return reply, 0, err
	}
}

func raiseOf(owner, hold string, token uint64) exchange {
	return func(ctx context.Context, s store.Session, at store.Row) (store.Reply, uint64, error) {
		a, err := s.Raise(ctx, store.Claim{Row: at, Owner: owner, Hold: hold, Token: token})
		return a.Reply, a.Token, err
	}
}

func forceRelease(ctx context.Context, s store.Session, at store.Row) (store.Reply, uint64, error) {
	reply, err := s.Force(ctx, at)
	return reply, 0, err
}

// statements are all branches of the statements that take, renew and release. In
// the rows 1000 is an old token, and ahead one that the clock has not reached.
func statements() []statement {
	const old, ahead = 1000, fresh / 2
	long := strings.Repeat(holdB, fullList)
	row := func(owner, holds string, token uint64, ttl, left time.Duration) *leaseRow {
		return &leaseRow{owner, holds, token, ttl, left}
	}
	held := row("me", holdA, old, 20*time.Second, 10*time.Second)
	expired := row("me", holdA, old, 20*time.Second, -10*time.Second)
	two := row("me", holdA+holdB+holdC, old, 20*time.Second, 10*time.Second)
	free := row("me", "", old, 20*time.Second, -10*time.Second)
	const ttl = 40 * time.Second
	return []statement{
		{"acquire: missing", nil, acquireOf("me", holdB, ttl, false), store.Absent, leaseRow{}},
		{"acquire: never held", row("-", "", 0, 0, -time.Hour), acquireOf("me", holdB, ttl, false), store.Done, leaseRow{"me", holdB, fresh, ttl, ttl}},
		{"acquire: released", free, acquireOf("you", holdB, ttl, false), store.Done, leaseRow{"you", holdB, fresh, ttl, ttl}},
		{"acquire: released ahead of the clock", row("me", "", ahead, ttl, time.Hour), acquireOf("you", holdB, ttl, false), store.Done, leaseRow{"you", holdB, ahead + 1, ttl, ttl}},
		{"acquire: expired", expired, acquireOf("you", holdB, ttl, false), store.Done, leaseRow{"you", holdB, fresh, ttl, ttl}},
		{"acquire: expired, the same owner", expired, acquireOf("me", holdB, ttl, false), store.Done, leaseRow{"me", holdB, fresh, ttl, ttl}},
		{"acquire: expired, ahead of the clock", row("me", holdA, ahead, ttl, -time.Second), acquireOf("you", holdB, ttl, false), store.Done, leaseRow{"you", holdB, ahead + 1, ttl, ttl}},
		{"acquire: held", held, acquireOf("you", holdB, ttl, false), store.Refused, *held},
		{"acquire: held, another case of the owner", held, acquireOf("ME", holdB, ttl, false), store.Refused, *held},
		{"acquire: held beyond its time to live", row("me", holdA, old, 20*time.Second, time.Hour), acquireOf("you", holdB, ttl, false), store.Refused, leaseRow{"me", holdA, old, 20 * time.Second, 20 * time.Second}},
		{"acquire: re-entered for longer", held, acquireOf("me", holdB, ttl, false), store.Done, leaseRow{"me", holdA + holdB, old, ttl, ttl}},
		{"acquire: re-entered for shorter", held, acquireOf("me", holdB, time.Second, false), store.Done, leaseRow{"me", holdA + holdB, old, 20 * time.Second, 10 * time.Second}},
		{"acquire: re-entered, ahead of the clock", row("me", holdA, ahead, 20*time.Second, 10*time.Second), acquireOf("me", holdB, time.Second, false), store.Done, leaseRow{"me", holdA + holdB, ahead, 20 * time.Second, 10 * time.Second}},
		{"acquire: the last hold", row("me", long[len(holdB):], old, ttl, ttl), acquireOf("me", holdB, ttl, false), store.Done, leaseRow{"me", long, old, ttl, ttl}},
		{"acquire: one hold too many", row("me", long, old, ttl, ttl), acquireOf("me", holdA, ttl, false), store.Full, leaseRow{"me", long, old, ttl, ttl}},
		{"acquire: held by the owner's name in another process", two, acquireOf("me", holdD, ttl, false), store.Done, leaseRow{"me", holdD, fresh, ttl, ttl}},
		{"acquire: the same, ahead of the clock", row("me", holdA, ahead, ttl, ttl), acquireOf("me", holdD, ttl, false), store.Done, leaseRow{"me", holdD, ahead + 1, ttl, ttl}},
		{"acquire: the same, with a full list", row("me", long, old, ttl, ttl), acquireOf("me", holdD, ttl, false), store.Done, leaseRow{"me", holdD, fresh, ttl, ttl}},
		{"acquire: the same, too late", held, acquireOf("me", holdD, ttl, true), store.Late, *held},
		{"acquire: too late", free, acquireOf("you", holdB, ttl, true), store.Late, *free},
		{"acquire: never held, too late", row("-", "", 0, 0, -time.Hour), acquireOf("you", holdB, ttl, true), store.Late, leaseRow{"-", "", 0, 0, -time.Hour}},
		{"acquire: re-entered too late", held, acquireOf("me", holdB, ttl, true), store.Late, *held},
		{"release: missing", nil, releaseOf(holdA), store.Absent, leaseRow{}},
		{"release: the only hold", held, releaseOf(holdA), store.Done, leaseRow{"me", "", old, 20 * time.Second, 0}},
		{"release: the first hold", two, releaseOf(holdA), store.Done, leaseRow{"me", holdB + holdC, old, 20 * time.Second, 10 * time.Second}},
		{"release: a hold in the middle", two, releaseOf(holdB), store.Done, leaseRow{"me", holdA + holdC, old, 20 * time.Second, 10 * time.Second}},
		{"release: the last in the list", two, releaseOf(holdC), store.Done, leaseRow{"me", holdA + holdB, old, 20 * time.Second, 10 * time.Second}},
		{"release: somebody else's", held, releaseOf(holdB), store.Refused, *held},
		{"release: another case", held, releaseOf(strings.ToUpper(holdA)), store.Refused, *held},
		{"release: free already", free, releaseOf(holdA), store.Refused, *free},
		{"release: expired", expired, releaseOf(holdA), store.Expired, leaseRow{"me", "", old, 20 * time.Second, -10 * time.Second}},
		{"release: ahead of the clock", row("me", holdA, ahead, ttl, time.Hour), releaseOf(holdA), store.Done, leaseRow{"me", "", ahead, ttl, 0}},
		{"renew: missing", nil, renewOf("me", holdA, old), store.Absent, leaseRow{}},
		{"renew: ours", held, renewOf("me", holdA, old), store.Done, leaseRow{"me", holdA, old, 20 * time.Second, 20 * time.Second}},
		{"renew: ours, one of three holds", two, renewOf("me", holdB, old), store.Done, leaseRow{"me", holdA + holdB + holdC, old, 20 * time.Second, 20 * time.Second}},
		{"renew: ours, ahead of the clock", row("me", holdA, ahead, 20*time.Second, time.Hour), renewOf("me", holdA, ahead), store.Done, leaseRow{"me", holdA, ahead, 20 * time.Second, 20 * time.Second}},
		{"renew: another owner", held, renewOf("you", holdA, old), store.Refused, *held},
		{"renew: another token", held, renewOf("me", holdA, old-1), store.Refused, *held},
		{"renew: another hold", held, renewOf("me", holdB, old), store.Refused, *held},
		{"renew: expired", expired, renewOf("me", holdA, old), store.Refused, *expired},
		{"renew: released", free, renewOf("me", holdA, old), store.Refused, *free},
		{"keep: missing", nil, keepOf(holdA), store.Absent, leaseRow{}},
		{"keep: the only hold", row("me", holdA, fresh, 20*time.Second, 10*time.Second), keepOf(holdA), store.Kept, leaseRow{store.Released + "me", "," + holdA[1:], fresh, time.Hour, time.Hour}},
		{"keep: one of three", two, keepOf(holdA), store.Done, leaseRow{"me", holdB + holdC, old, 20 * time.Second, 10 * time.Second}},
		{"keep: long enough", held, keepOf(holdA), store.Done, leaseRow{"me", "", old, 20 * time.Second, 0}},
		{"keep: expired", expired, keepOf(holdA), store.Expired, leaseRow{"me", "", old, 20 * time.Second, -10 * time.Second}},
		{"keep: somebody else's", held, keepOf(holdB), store.Refused, *held},
		{"raise: missing", nil, raiseOf("me", holdA, 2000), store.Absent, leaseRow{}},
		{"raise: higher", held, raiseOf("me", holdA, 2000), store.Done, leaseRow{"me", holdA, 2000, 20 * time.Second, 10 * time.Second}},
		{"raise: somebody else's", held, raiseOf("you", holdA, 2000), store.Refused, *held},
		{"force: missing", nil, forceRelease, store.Absent, leaseRow{}},
		{"force: held", two, forceRelease, store.Done, leaseRow{"me", "", old + 1, 20 * time.Second, 0}},
		{"force: free", free, forceRelease, store.Refused, *free},
		{"force: expired", expired, forceRelease, store.Refused, *expired},
	}
}

// TestStatements proves that each statement takes, renews and releases what it
// should, replies so, and touches nothing else but the version, under every sql_mode, prepared
// and as text, which LOCKSTEP_LONG=1 sends under each of them, too; in a transaction as well; and
// that it passes over a row that somebody has locked.
func TestStatements(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, mode := range sqlModes(db.Engine()) {
			for _, text := range []bool{false, true} {
				if text && testdb.Long(mode != "" && mode != "ANSI", false) {
					continue
				}
				t.Run(fmt.Sprintf("%s/text=%v", mode, text), func(t *testing.T) {
					t.Parallel()
					s := openStore(t, newPool(t, db, false, func(cfg *mysql.Config) {
						cfg.Params = map[string]string{"sql_mode": "'" + mode + "'"}
						cfg.InterpolateParams = text
					}))
					for _, c := range statements() {
						if c.check(t, db, s); !text {
							c.checkInTx(t, db, s)
						}
					}
				})
			}
		}
	})
}

// openStore returns the store of a pool, until the end of the test.
func openStore(t *testing.T, pool *sql.DB) *sqlstore.Store {
	t.Helper()
	s := sqlstore.New(pool)
	t.Cleanup(func() {
		wantsNone(t, "close the store", s.Close())
	})
	must(t, s.Ready(t.Context()))
	return s
}

// make makes the row of a case, and returns where it is.
func (s statement) make(t *testing.T, db *testdb.DB) store.Row {
	t.Helper()
	at := store.Row{Key: named().String()}
	if s.row != nil {
		exec(t, db, "INSERT INTO lockstep_leases SELECT ?, 0, ?, ?, ?, ?, UNIX_TIMESTAMP() * 1000000 + ?, 0, 8, 0, X'', 0, X'', 5",
			at.Key, s.row.owner, s.row.holds, s.row.token, s.row.ttl.Microseconds(), s.row.left.Microseconds())
	}
	return at
}

// check sends the statement while the row is locked, and then once more.
func (s statement) check(t *testing.T, db *testdb.DB, on store.Session) {
	t.Helper()
	at := s.make(t, db)
	if s.row != nil {
		tx, err := db.Admin().Begin()
		must(t, err)
		must(t, second(tx.Exec("SELECT token FROM lockstep_leases WHERE name = ? FOR UPDATE", at.Key)))
		// To refuse an acquire nothing is written, so that needs no lock.
		if reply, _, err := s.send(t.Context(), on, at); err != nil || reply != store.Absent && (!s.acquires() || reply != s.reply || s.want != *s.row) {
			t.Errorf("%s: of a locked row: reply %d, %v", s.name, reply, err)
		}
		must(t, tx.Rollback())
		s.compare(t, s.name+", locked", readRow(t, db, at.Key), *s.row)
		s.untouched(t, db, at, 5)
	}
	s.answered(t, db, on, at)
}

// acquires reports whether the case is of an acquire.
func (s statement) acquires() bool { return strings.HasPrefix(s.name, "acquire") }

// checkInTx sends the statement in a transaction.
func (s statement) checkInTx(t *testing.T, db *testdb.DB, on *sqlstore.Store) {
	t.Helper()
	at := s.make(t, db)
	s.name += ", in a transaction"
	err := on.Queued(t.Context(), at, time.Minute, func(tx store.Session) error {
		reply, _, err := s.send(t.Context(), tx, at)
		if reply != s.reply {
			t.Errorf("%s: reply %d, want %d", s.name, reply, s.reply)
		}
		return err
	})
	if err != nil {
		t.Errorf("%s: %v", s.name, err)
	}
	s.after(t, db, at)
}

func (s statement) answered(t *testing.T, db *testdb.DB, on store.Session, at store.Row) {
	t.Helper()
	reply, token, err := s.send(t.Context(), on, at)
	if err != nil || reply != s.reply {
		t.Errorf("%s: reply %d, %v, want %d", s.name, reply, err, s.reply)
	}
	s.after(t, db, at)
	if token != 0 && token != readRow(t, db, at.Key).token {
		t.Errorf("%s: the reply has another token than the row: %d", s.name, token)
	}
}

// after looks at the row afterwards.
func (s statement) after(t *testing.T, db *testdb.DB, at store.Row) {
	t.Helper()
	if s.row == nil {
		if n := number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ?", at.Key); n != 0 {
			t.Errorf("%s: the row is there", s.name)
		}
		return
	}
	s.compare(t, s.name, readRow(t, db, at.Key), s.want)
	version := 5
	if s.want != *s.row || !s.acquires() {
		version++
	}
	s.untouched(t, db, at, version)
}

// untouched compares what no statement changes, and the version, which each change raises.
func (s statement) untouched(t *testing.T, db *testdb.DB, at store.Row, version int) {
	t.Helper()
	if n := number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot = 0 AND used_for = 0 AND guards = 8 AND version = ?", at.Key, version); n != 1 {
		t.Errorf("%s: has touched something else of the row, or the version is not %d", s.name, version)
	}
}

// compare allows for the time that the test takes.
func (s statement) compare(t *testing.T, what string, got, want leaseRow) {
	t.Helper()
	const slack = 4 * time.Second // the expiries differ by 10 seconds and more
	left := got.left
	if d := left - want.left; d < slack && d > -slack {
		left = want.left
	}
	if isFresh(int64(got.token)) {
		got.token = fresh
	}
	if got.left = left; got != want {
		t.Errorf("%s: the row is\n%+v, want\n%+v", what, got, want)
	}
}

func isFresh(token int64) bool {
	return token > time.Now().Add(-time.Minute).UnixMicro() && token < time.Now().Add(time.Minute).UnixMicro()
}

func readRow(t *testing.T, db *testdb.DB, name string) (r leaseRow) {
	t.Helper()
	var ttl, left int64
	err := db.Admin().QueryRow("SELECT owner, holders, token, ttl_us, CAST(expires_us - UNIX_TIMESTAMP() * 1000000 AS SIGNED) FROM lockstep_leases WHERE name = ?", name).
		Scan(&r.owner, &r.holds, &r.token, &ttl, &left)
	must(t, err)
	r.ttl, r.left = time.Duration(ttl)*time.Microsecond, time.Duration(left)*time.Microsecond
	return r
}

// TestClocksMove looks for comparisons with the clock that stand still on MySQL 8.0: it
// executes a prepared "column < UNIX_TIMESTAMP() * 1000000" with the time at which it
// was executed first, unless something in the expression is no constant to it. On a
// server that does so, TestTokensOutliveRows fails.
func TestClocksMove(t *testing.T) {
	t.Parallel()
	compared := regexp.MustCompile(`[<>=]\s*UNIX_TIMESTAMP\(\) \* 1000000( [+-] (?:MICROSECOND\(NOW\(6\)\)|CAST\(\?))?`)
	files, err := filepath.Glob("../../gen/*.sql.go")
	must(t, err)
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, match := range compared.FindAllStringSubmatch(string(text), -1) {
			if found++; match[1] == "" {
				t.Errorf("%s: %q: add MICROSECOND(NOW(6))", file, match[0])
			}
		}
	}
	if found == 0 {
		t.Error("no comparison with the clock was found")
	}
}
