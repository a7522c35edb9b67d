package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
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
		modes = append(modes, "ORACLE", "ORACLE,STRICT_ALL_TABLES", "SIMULTANEOUS_ASSIGNMENT", "EMPTY_STRING_IS_NULL")
	}
	return modes
}

// exchange sends a statement about a key, and returns its reply.
type exchange func(ctx context.Context, db gen.DBTX, name []byte) (int64, error)

// statement is one case: what it finds, what it replies and leaves behind.
type statement struct {
	name  string
	row   *leaseRow // nil: it is missing
	send  exchange
	reply int64 // of which fresh is a token by the clock
	want  leaseRow
}

// fresh stands for a token that is the server's clock, in a reply and a row.
const fresh = 1 << 62

var q = gen.New()

func acquireOf(owner, hold string, ttl time.Duration, late bool) exchange {
	return func(ctx context.Context, db gen.DBTX, name []byte) (int64, error) {
		notAfter := time.Now().Add(time.Hour)
		if late {
			notAfter = time.Now().Add(-time.Hour)
		}
		if refuses, ok := db.(noWait); ok {
			reply, err := refuses.reply(q.AcquireNoWait(ctx, db, gen.AcquireNoWaitParams{
				Owner: []byte(owner), Note: []byte("note"), Hold: hold, TtlUs: ttl.Microseconds(), Name: name, NotAfterUs: notAfter.UnixMicro(),
			}))
			if reply != 5 { // only AcquireLease can tell
				return reply, err
			}
		}
		return q.AcquireLease(ctx, db, gen.AcquireLeaseParams{
			Owner: []byte(owner), Note: []byte("note"), Hold: hold, TtlUs: ttl.Microseconds(), Name: name, NotAfterUs: notAfter.UnixMicro(),
		})
	}
}

func releaseOf(hold string) exchange {
	return func(ctx context.Context, db gen.DBTX, name []byte) (int64, error) {
		if refuses, ok := db.(noWait); ok {
			reply, err := refuses.reply(q.ReleaseNoWait(ctx, db, gen.ReleaseNoWaitParams{Hold: hold, Name: name}))
			if reply != 0 || err != nil { // only ReleaseLease can tell
				return reply, err
			}
		}
		return q.ReleaseLease(ctx, db, gen.ReleaseLeaseParams{Hold: hold, Name: name})
	}
}

// noWait makes MariaDB's statements refuse to wait.
type noWait struct{ gen.DBTX }

func (n noWait) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if query == gen.AcquireNoWait || query == gen.ReleaseNoWait {
		query = rawsql.For(rawsql.NoWait) + query
	}
	return n.DBTX.ExecContext(ctx, query, args...)
}

// reply makes 0 of the refusal.
func (noWait) reply(reply int64, err error) (int64, error) {
	if server := (*mysql.MySQLError)(nil); errors.As(err, &server) && server.Number == 1205 {
		return 0, nil
	}
	return reply, err
}

func renewOf(owner, hold string, token uint64) exchange {
	return func(ctx context.Context, db gen.DBTX, name []byte) (int64, error) {
		return q.RenewLease(ctx, db, gen.RenewLeaseParams{Owner: []byte(owner), Hold: hold, Token: token, Name: name})
	}
}

func forceRelease(ctx context.Context, db gen.DBTX, name []byte) (int64, error) {
	return q.ForceRelease(ctx, db, gen.ForceReleaseParams{Name: name})
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
		{"acquire: missing", nil, acquireOf("me", holdB, ttl, false), 0, leaseRow{}},
		{"acquire: never held", row("-", "", 0, 0, -time.Hour), acquireOf("me", holdB, ttl, false), fresh, leaseRow{"me", holdB, fresh, ttl, ttl}},
		{"acquire: released", free, acquireOf("you", holdB, ttl, false), fresh, leaseRow{"you", holdB, fresh, ttl, ttl}},
		{"acquire: released ahead of the clock", row("me", "", ahead, ttl, time.Hour), acquireOf("you", holdB, ttl, false), ahead + 1, leaseRow{"you", holdB, ahead + 1, ttl, ttl}},
		{"acquire: expired", expired, acquireOf("you", holdB, ttl, false), fresh, leaseRow{"you", holdB, fresh, ttl, ttl}},
		{"acquire: expired, the same owner", expired, acquireOf("me", holdB, ttl, false), fresh, leaseRow{"me", holdB, fresh, ttl, ttl}},
		{"acquire: expired, ahead of the clock", row("me", holdA, ahead, ttl, -time.Second), acquireOf("you", holdB, ttl, false), ahead + 1, leaseRow{"you", holdB, ahead + 1, ttl, ttl}},
		{"acquire: held", held, acquireOf("you", holdB, ttl, false), 1, *held},
		{"acquire: held, another case of the owner", held, acquireOf("ME", holdB, ttl, false), 1, *held},
		{"acquire: held beyond its time to live", row("me", holdA, old, 20*time.Second, time.Hour), acquireOf("you", holdB, ttl, false), 1, leaseRow{"me", holdA, old, 20 * time.Second, 20 * time.Second}},
		{"acquire: re-entered for longer", held, acquireOf("me", holdB, ttl, false), old, leaseRow{"me", holdA + holdB, old, ttl, ttl}},
		{"acquire: re-entered for shorter", held, acquireOf("me", holdB, time.Second, false), old, leaseRow{"me", holdA + holdB, old, 20 * time.Second, 10 * time.Second}},
		{"acquire: re-entered, ahead of the clock", row("me", holdA, ahead, 20*time.Second, 10*time.Second), acquireOf("me", holdB, time.Second, false), ahead, leaseRow{"me", holdA + holdB, ahead, 20 * time.Second, 10 * time.Second}},
		{"acquire: the last hold", row("me", long[len(holdB):], old, ttl, ttl), acquireOf("me", holdB, ttl, false), old, leaseRow{"me", long, old, ttl, ttl}},
		{"acquire: one hold too many", row("me", long, old, ttl, ttl), acquireOf("me", holdA, ttl, false), 2, leaseRow{"me", long, old, ttl, ttl}},
		{"acquire: held by the owner's name in another process", two, acquireOf("me", holdD, ttl, false), fresh, leaseRow{"me", holdD, fresh, ttl, ttl}},
		{"acquire: the same, ahead of the clock", row("me", holdA, ahead, ttl, ttl), acquireOf("me", holdD, ttl, false), ahead + 1, leaseRow{"me", holdD, ahead + 1, ttl, ttl}},
		{"acquire: the same, with a full list", row("me", long, old, ttl, ttl), acquireOf("me", holdD, ttl, false), fresh, leaseRow{"me", holdD, fresh, ttl, ttl}},
		{"acquire: the same, too late", held, acquireOf("me", holdD, ttl, true), 3, *held},
		{"acquire: too late", free, acquireOf("you", holdB, ttl, true), 3, *free},
		{"acquire: never held, too late", row("-", "", 0, 0, -time.Hour), acquireOf("you", holdB, ttl, true), 3, leaseRow{"-", "", 0, 0, -time.Hour}},
		{"acquire: re-entered too late", held, acquireOf("me", holdB, ttl, true), 3, *held},
		{"release: missing", nil, releaseOf(holdA), 0, leaseRow{}},
		{"release: the only hold", held, releaseOf(holdA), old, leaseRow{"me", "", old, 20 * time.Second, 0}},
		{"release: the first hold", two, releaseOf(holdA), old, leaseRow{"me", holdB + holdC, old, 20 * time.Second, 10 * time.Second}},
		{"release: a hold in the middle", two, releaseOf(holdB), old, leaseRow{"me", holdA + holdC, old, 20 * time.Second, 10 * time.Second}},
		{"release: the last in the list", two, releaseOf(holdC), old, leaseRow{"me", holdA + holdB, old, 20 * time.Second, 10 * time.Second}},
		{"release: somebody else's", held, releaseOf(holdB), 1, *held},
		{"release: another case", held, releaseOf(strings.ToUpper(holdA)), 1, *held},
		{"release: free already", free, releaseOf(holdA), 1, *free},
		{"release: expired", expired, releaseOf(holdA), 2, leaseRow{"me", "", old, 20 * time.Second, -10 * time.Second}},
		{"release: ahead of the clock", row("me", holdA, ahead, ttl, time.Hour), releaseOf(holdA), ahead, leaseRow{"me", "", ahead, ttl, 0}},
		{"renew: missing", nil, renewOf("me", holdA, old), 0, leaseRow{}},
		{"renew: ours", held, renewOf("me", holdA, old), old, leaseRow{"me", holdA, old, 20 * time.Second, 20 * time.Second}},
		{"renew: ours, one of three holds", two, renewOf("me", holdB, old), old, leaseRow{"me", holdA + holdB + holdC, old, 20 * time.Second, 20 * time.Second}},
		{"renew: ours, ahead of the clock", row("me", holdA, ahead, 20*time.Second, time.Hour), renewOf("me", holdA, ahead), ahead, leaseRow{"me", holdA, ahead, 20 * time.Second, 20 * time.Second}},
		{"renew: another owner", held, renewOf("you", holdA, old), 1, *held},
		{"renew: another token", held, renewOf("me", holdA, old-1), 1, *held},
		{"renew: another hold", held, renewOf("me", holdB, old), 1, *held},
		{"renew: expired", expired, renewOf("me", holdA, old), 1, *expired},
		{"renew: released", free, renewOf("me", holdA, old), 1, *free},
		{"force: missing", nil, forceRelease, 0, leaseRow{}},
		{"force: held", two, forceRelease, old, leaseRow{"me", "", old + 1, 20 * time.Second, 0}},
		{"force: free", free, forceRelease, 1, *free},
		{"force: expired", expired, forceRelease, 1, *expired},
	}
}

// TestStatements proves that each statement takes, renews and releases what it
// should, replies so, and touches nothing else, under every sql_mode, prepared and
// as text, which LOCKSTEP_LONG=1 sends under each of them, too; and that it passes over a
// row that somebody has locked.
func TestStatements(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, mode := range sqlModes(db.Engine()) {
			for _, text := range []bool{false, true} {
				if text && testdb.Long(mode != "" && mode != "ANSI", false) {
					continue
				}
				t.Run(fmt.Sprintf("%s/text=%v", mode, text), func(t *testing.T) {
					t.Parallel()
					pool := newPool(t, db, false, func(cfg *mysql.Config) {
						cfg.Params = map[string]string{"sql_mode": "'" + mode + "'"}
						cfg.InterpolateParams = text
					})
					for _, s := range statements() {
						s.check(t, db, pool)
						if db.Engine() == testdb.MariaDB {
							s.name += ", refusing to wait"
							s.check(t, db, noWait{pool})
						}
					}
				})
			}
		}
	})
}

func (s statement) check(t *testing.T, db *testdb.DB, pool gen.DBTX) {
	name := named().String()
	if s.row != nil {
		exec(t, db, "INSERT INTO lockstep_leases SELECT ?, 0, ?, ?, ?, ?, UNIX_TIMESTAMP() * 1000000 + ?, 7, 8, 0, X'', 0, X''",
			name, s.row.owner, s.row.holds, s.row.token, s.row.ttl.Microseconds(), s.row.left.Microseconds())
		tx, err := db.Admin().Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("SELECT token FROM lockstep_leases WHERE name = ? FOR UPDATE", name); err != nil {
			t.Fatal(err)
		}
		if reply, err := s.send(t.Context(), pool, []byte(name)); err != nil || reply != 0 {
			t.Errorf("%s: of a locked row: reply %d, %v", s.name, reply, err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		s.compare(t, s.name+", locked", readRow(t, db, name), *s.row)
	}
	reply, err := s.send(t.Context(), pool, []byte(name))
	if err != nil {
		t.Errorf("%s: %v", s.name, err)
	}
	if isFresh(reply) {
		reply = fresh
	}
	if reply != s.reply {
		t.Errorf("%s: reply %d, want %d", s.name, reply, s.reply)
	}
	if s.row == nil {
		if n := number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ?", name); n != 0 {
			t.Errorf("%s: the row is there", s.name)
		}
		return
	}
	s.compare(t, s.name, readRow(t, db, name), s.want)
	if n := number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot = 0 AND used_for = 7 AND guards = 8", name); n != 1 {
		t.Errorf("%s: has touched something else of the row", s.name)
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
	err := db.Admin().QueryRow("SELECT owner, holds, token, ttl_us, CAST(expires_us - UNIX_TIMESTAMP() * 1000000 AS SIGNED) FROM lockstep_leases WHERE name = ?", name).
		Scan(&r.owner, &r.holds, &r.token, &ttl, &left)
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
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

// TestTooManyHolds proves that an owner whose list of holds is full is told so, and
// that nothing is cut off or entered, whatever the sql_mode; and that there is room
// again after a release.
func TestTooManyHolds(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, mode := range sqlModes(db.Engine()) {
			pool := newPool(t, db, true, func(cfg *mysql.Config) {
				cfg.Params = map[string]string{"sql_mode": "'" + mode + "'"}
			})
			m, other := newManager(t, pool), newManager(t, pool)
			key := named()
			ctx := lease.WithOwner(t.Context(), "owner of "+key.String())
			l, err := m.Acquire(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			exec(t, db, "UPDATE lockstep_leases SET holds = CONCAT(REPEAT(CONCAT(LEFT(holds, 9), 'bbbbbbbbbbbbbb'), ?), holds) WHERE name = ?", fullList-1, key.String())
			before := readRow(t, db, key.String())
			for what, acquire := range map[string]func(context.Context, txlock.Key, ...lease.AcquireOption) (*lease.Lease, error){
				"Acquire": other.Acquire, "TryAcquire": other.TryAcquire,
			} {
				_, err := acquire(ctx, key)
				wants(t, what+" of a full list under "+mode, err, txlock.ErrTooManyHolds)
				if errors.Is(err, txlock.ErrBusy) {
					t.Errorf("%s: %v", what, err)
				}
			}
			tx, err := pool.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = other.AcquireTx(ctx, tx, key)
			wants(t, "AcquireTx of a full list under "+mode, err, txlock.ErrTooManyHolds)
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
			after := readRow(t, db, key.String())
			if after.holds != before.holds || after.token != before.token {
				t.Errorf("under %s the row was changed", mode)
			}
			release(t, l)
			again, err := other.Acquire(ctx, key)
			if err != nil {
				t.Fatalf("Acquire after a release under %s: %v", mode, err)
			}
			if again.Token() != l.Token() {
				t.Errorf("token %d, want that of the other holds, %d", again.Token(), l.Token())
			}
			release(t, again)
		}
	})
}
