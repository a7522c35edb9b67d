package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// leaseModes are the SQL modes in which the statements of leases are tried.
func leaseModes(engine testdb.Engine) []string {
	modes := []string{"", "ANSI", "TRADITIONAL", "NO_UNSIGNED_SUBTRACTION", "HIGH_NOT_PRECEDENCE"}
	if engine == testdb.MariaDB {
		modes = append(modes, "ORACLE", "SIMULTANEOUS_ASSIGNMENT", "EMPTY_STRING_IS_NULL")
	}
	return modes
}

// inLeaseModes runs a test in each of the modes, also with CLIENT_FOUND_ROWS, which changes the
// count of affected rows, and with text in place of prepared statements, which LOCKSTEP_LONG=1 sends
// in each of the modes.
func inLeaseModes(t *testing.T, test func(t *testing.T, db *testdb.DB, s *Store)) {
	t.Helper()
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, mode := range leaseModes(db.Engine()) {
			for _, kind := range []string{"prepared", "found", "text"} {
				if kind == "text" && testdb.Long(mode != "" && mode != "ANSI", false) {
					continue
				}
				t.Run(mode+"/"+kind, func(t *testing.T) {
					t.Parallel()
					test(t, db, newStore(t, db, func(c *mysql.Config) {
						c.Params = map[string]string{"sql_mode": "'" + mode + "'"}
						c.ClientFoundRows, c.InterpolateParams = kind == "found", kind == "text"
					}))
				})
			}
		}
	})
}

// TestRenewManyReplies: of several leases those are renewed that are still held so and not locked,
// and the questions of these are returned that their holders weren't told of, in what the first
// statement replies or in one read more.
func TestRenewManyReplies(t *testing.T) {
	inLeaseModes(t, testRenewManyReplies)
}

func testRenewManyReplies(t *testing.T, db *testdb.DB, s *Store) {
	ctx, unique := leasetest.Limited(t, time.Minute), fmt.Sprint(rand.Int64(), "'/") // a locked row would be waited for
	blocker := testdb.Got(db.Admin().BeginTx(t.Context(), nil))(t)
	defer func() { _ = blocker.Rollback() }() // it has written nothing
	cases := []struct {
		name, set string
		standing  store.Standing // 0 for a lease that is lost
		asked     bool
	}{
		{"held", "", store.Renewed, false},
		{"told", "asked_us = 40, release_reason = 'old'", store.Renewed, false},
		{"asked", "asked_us = 50, release_reason = 'why'", store.Renewed, true},
		{"locked", "asked_us = 50, release_reason = 'locked'", store.Skipped, false},
		{"expired", "expires_us = 5", 0, false},
		{"another token", "token = 1001, asked_us = 50", 0, false},
	}
	claims := make(map[string]store.Claim)
	for _, c := range cases {
		set := "owner = 'me', holders = '" + hold("m") + "', ttl_us = 60000000, asked_us = 0, expires_us = " + future
		if c.set != "" {
			set += ", " + c.set
		}
		claims[c.name] = store.Claim{Row: store.Row{Key: unique + c.name}, Owner: "me", Hold: hold("m"), Token: 1000, Told: 40}
		makeRow(t, db, unique+c.name, set)
	}
	testdb.Got(blocker.ExecContext(t.Context(), "SELECT 1 FROM lockstep_leases WHERE name = ? FOR UPDATE", unique+"locked"))(t)
	for _, only := range [][]string{nil, {"held", "told"}, {"asked"}, {"expired"}, {"locked"}} {
		var of []store.Claim
		found, questions := make(map[store.Row]store.Standing), []store.Question(nil)
		for _, c := range cases {
			if only != nil && !slices.Contains(only, c.name) {
				continue
			}
			of = append(of, claims[c.name])
			if c.standing != 0 {
				found[claims[c.name].Row] = c.standing
			}
			if c.asked {
				questions = append(questions, store.Question{Row: claims[c.name].Row, At: 50, Why: "why"})
			}
		}
		got, asked, err := s.RenewMany(ctx, of)
		testdb.ErrorIf(t, err != nil || !maps.Equal(got, found) || !slices.Equal(asked, questions),
			"of %v: %v, %v, %v, want %v, %v", only, got, asked, err, found, questions)
	}
}

// TestRepliesAreKnown proves that each statement of leases that answers with an insert id has
// an entry with all its replies, and feeds the reader what is none of them.
func TestRepliesAreKnown(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`-- name: (\w+) :exec(?:lastid|result)`)
	found := 0
	for _, file := range []string{"leases", "shared"} {
		text := testdb.Got(os.ReadFile("../../../gen/" + file + ".sql.go"))(t)
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			found++
			_, known := meanings[m[1]]
			testdb.ErrorIf(t, !known, "%s has no entry in meanings", m[1])
		}
	}
	testdb.ErrorIf(t, found != len(meanings), "%d statements, and %d entries in meanings", found, len(meanings))
	for statement, m := range meanings {
		ids := []int64{math.MinInt64, -1, 15, 16, 1 << 50, store.MaxToken, SharedBit, SharedBit + 15, SharedBit + 16, math.MaxInt64}
		for id := range int64(8) {
			ids = append(ids, id)
		}
		for _, id := range ids {
			want, known := m.others[id]
			token := id &^ SharedBit
			isToken := !known && m.token && id >= 0 && token >= firstToken && (m.bit || token == id)
			if isToken {
				want, known = store.Done, true
			}
			a, err := answerOf(statement, 3)(id, nil)
			testdb.ErrorIf(t, known != (err == nil) || !known && !errors.Is(err, fault.ErrReply) || known && a.Reply != want || a.Slot != 3,
				"%s: the insert id %d is read as %+v, %v", statement, id, a, err)
			testdb.ErrorIf(t, isToken && (int64(a.Token) != token || a.Shared != (id != token)),
				"%s: the insert id %d is read as the token %d, shared %t", statement, id, a.Token, a.Shared)
		}
	}
	a, err := answerOf("NoSuchStatement", 0)(1<<50, nil)
	testdb.ErrorIf(t, !errors.Is(err, fault.ErrReply), "a statement without an entry is read as %+v, %v", a, err)
}

// TestClocksMove looks for comparisons with the clock that stand still on MySQL 8.0: it
// executes a prepared "column < UNIX_TIMESTAMP() * 1000000" with the time at which it
// was executed first, unless something in the expression is no constant to it. On a
// server that does so, TestTokensOutliveRows fails. And it looks for what depends on the time zone
// of the session, in which a change of daylight saving time makes tokens fall.
func TestClocksMove(t *testing.T) {
	t.Parallel()
	compared := regexp.MustCompile(`[<>=]\s*UNIX_TIMESTAMP\(\) \* 1000000( [+-] (?:MICROSECOND\(NOW\(6\)\)|CAST\(\?))?`)
	noZone := regexp.MustCompile(`(?m)^\s*(//|--).*$|MICROSECOND\(NOW\(6\)\)|TIMESTAMPDIFF\(\w+, NOW\(6?\), SYSDATE\(6?\)\)`)
	zoned := regexp.MustCompile(`\b(NOW|SYSDATE|FROM_UNIXTIME|CURRENT_TIMESTAMP|LOCALTIME|LOCALTIMESTAMP|CURDATE|CURTIME)\b|UNIX_TIMESTAMP\([^)]`)
	files, err := filepath.Glob("../../../gen/*.sql.go")
	must(t, err)
	rawsql, err := filepath.Glob("../../rawsql/*[a-z].go")
	must(t, err)
	files = append(files, slices.DeleteFunc(rawsql, func(file string) bool { return strings.HasSuffix(file, "_test.go") })...)
	found := 0
	for _, file := range files {
		text := testdb.Got(os.ReadFile(file))(t)
		for _, clock := range zoned.FindAllString(noZone.ReplaceAllString(string(text), ""), -1) {
			t.Errorf("%s: %q is in the time zone of the session", file, clock)
		}
		for _, match := range compared.FindAllStringSubmatch(string(text), -1) {
			found++
			testdb.ErrorIf(t, match[1] == "", "%s: %q: add MICROSECOND(NOW(6))", file, match[0])
		}
	}
	testdb.ErrorIf(t, found == 0, "no comparison with the clock was found")
}

// TestRepliesForSeveral feeds the reader of the statements for several leases what is none
// of their replies.
func TestRepliesForSeveral(t *testing.T) {
	t.Parallel()
	const near, bit = 1 << 50, 1 << 30
	for _, c := range []struct {
		id, affected int64
		rows         int
		ok           bool
	}{
		{0, 0, 3, true},
		{bit + 5, 2, 3, true},
		{bit + 5, 3, 3, true}, // with the row of a history
		{7*bit + 5, 6, 3, true},
		{bit + 5, 4, 3, false},
		{bit + 5, 1, 3, false},
		{bit + 5, -2, 3, false},
		{5, 2, 3, false},
		{8 * bit, 2, 3, false}, // of a fourth row
		{-1, 64, 32, false},
		{math.MinInt64 + bit, 2, 3, false},
	} {
		done, clock, ok := rawsql.Reply(c.id, c.affected, near, c.rows)
		testdb.ErrorIf(t, ok != c.ok, "the insert id %d with %d changed rows is read as %b, %d, %t", c.id, c.affected, done, clock, ok)
	}
}

// TestSwapComparesTheVersion proves that what was decided by a row is not written once that has
// changed: by whatever verb, in the moment before it expires, or because another row has taken
// its place. A contender that has read the row before a renewal commits would else take over a
// lease that was just renewed.
func TestSwapComparesTheVersion(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s := newStore(t, db)
		const held = "owner = 'me', ttl_us = 60000000, version = 5, holders = "
		set := func(to string) func(ctx context.Context, c store.Claim) error {
			return func(ctx context.Context, c store.Claim) error {
				_, err := db.Admin().ExecContext(ctx, "UPDATE lockstep_leases SET "+to+" WHERE name = ?", c.Key)
				return err
			}
		}
		for what, change := range map[string]func(ctx context.Context, c store.Claim) error{
			"a renewal":    func(ctx context.Context, c store.Claim) error { _, err := s.Renew(ctx, c); return err },
			"a release":    func(ctx context.Context, c store.Claim) error { _, err := s.Release(ctx, c.Row, c.Hold); return err },
			"a forced one": func(ctx context.Context, c store.Claim) error { _, err := s.Force(ctx, c.Row, 0); return err },
			"another use":  func(ctx context.Context, c store.Claim) error { _, err := s.Use(ctx, c.Key, store.Shared); return err },
			"a guard":      func(ctx context.Context, c store.Claim) error { _, err := s.Guard(ctx, c); return err },
			"a request": func(ctx context.Context, c store.Claim) error {
				_, err := s.AskHolders(ctx, c.Key, "why", rules.Latest)
				return err
			},
			"a restored row": set("token = 999"),
			"renewals": func(ctx context.Context, c store.Claim) error {
				_, _, err := s.RenewMany(ctx, []store.Claim{c})
				return err
			},
			"releases": func(ctx context.Context, c store.Claim) error {
				_, _, err := s.releases.send(ctx, []rawsql.Wanted{{Name: c.Key, Slot: c.Slot, Hold: c.Hold}})
				return err
			},
		} {
			c := store.Claim{Row: store.Row{Key: what}, Owner: "me", Hold: hold("m"), Token: 1000}
			makeRow(t, db, what, held+"'"+c.Hold+"', expires_us = "+future)
			seen := testdb.Got(s.row(t.Context(), c.Row))(t)
			next, reply := seen.Take(store.Ask{Owner: "you", Hold: hold("y"), TTL: time.Minute}, seen.Expires, seen.Expires)
			testdb.FatalIf(t, reply != store.Done, "%s: an expired row is not free: %v", what, reply)
			if err := change(t.Context(), c); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			swapped, err := s.swap(t.Context(), seen, next, always)
			testdb.ErrorIf(t, swapped || err != nil, "%s was overwritten: %t, %v", what, swapped, err)
		}
	})
}

// TestGuardComparesTheToken proves that a claim guards nothing which has an older token, another owner or
// hold, or has expired.
func TestGuardComparesTheToken(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s := newStore(t, db)
		c := store.Claim{Row: store.Row{Key: "guarded"}, Owner: "me", Hold: hold("m"), Token: 1000}
		makeRow(t, db, c.Key, "owner = 'me', ttl_us = 60000000, holders = '"+c.Hold+"', expires_us = "+future)
		guards := func(what string, want store.Reply) {
			t.Helper()
			reply, err := s.Guard(t.Context(), c)
			testdb.ErrorIf(t, reply != want || err != nil, "%s: %v, %v, want %v", what, reply, err, want)
		}
		guards("ours", store.Done)
		for _, change := range [][2]string{
			{"token = 1001", "token = 1000"}, {"owner = 'you'", "owner = 'me'"}, {"expires_us = 5", "expires_us = " + future},
			{"holders = '" + hold("y") + "'", "holders = '" + c.Hold + "'"},
		} {
			db.Exec(t, "UPDATE lockstep_leases SET "+change[0]+" WHERE name = 'guarded'")
			guards(change[0], store.Refused)
			db.Exec(t, "UPDATE lockstep_leases SET "+change[1]+" WHERE name = 'guarded'")
		}
		guards("ours again", store.Done)
	})
}

// TestPermitsCompareTheHolder proves that a permit that was taken since it was seen free isn't granted
// again before it has expired.
func TestPermitsCompareTheHolder(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s := newStore(t, db)
		makeRow(t, db, "permits", "slot = 1, owner = 'me', ttl_us = 60000000, holders = '"+hold("m")+"', expires_us = "+future)
		makeRow(t, db, "permits", "used_for = -1")
		for _, granted := range []bool{false, true} {
			n, _, err := result(queries.AcquirePermit(t.Context(), s.skippingShared(), gen.AcquirePermitParams{
				Owner: []byte("you"), Hold: hold("y"), Label: []byte{}, TtlUs: 6e7, Slot: 1, Name: []byte("permits"), Permits: 1, NotAfterUs: math.MaxInt64,
			}))
			testdb.ErrorIf(t, (n > 0) != granted || err != nil, "%d rows are changed, granted %t, %v", n, granted, err)
			db.Exec(t, "UPDATE lockstep_leases SET expires_us = 5 WHERE name = 'permits' AND slot = 1")
		}
	})
}

// TestChangeIsDecidedAnew proves that a change is decided anew by a row that has changed
// meanwhile, and that one that changes again and again, or is missing, is given up.
func TestChangeIsDecidedAnew(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s := newStore(t, db)
		makeRow(t, db, "changed", "owner = 'me'")
		for _, c := range []struct {
			key         string
			busy, tries int
			want        store.Reply
		}{{"changed", 1, 2, store.Done}, {"changed", 1000, mostSwaps, store.Absent}, {"missing", 0, 0, store.Absent}} {
			tries := 0
			r, reply, err := s.change(t.Context(), store.Row{Key: c.key}, func(r rules.Row, _ int64) (rules.Row, store.Reply) {
				if tries++; tries <= c.busy {
					db.Exec(t, "UPDATE lockstep_leases SET version = version + 1, guards = guards + 1 WHERE name = 'changed'")
				}
				r.Reason += "+"
				return r, store.Done
			})
			testdb.ErrorIf(t, err != nil || reply != c.want || tries != c.tries || reply == store.Done && (r.Reason != "+" || r.Guards != 8),
				"%+v: %v, %v, %+v, %d tries", c, reply, err, r, tries)
		}
	})
}

// TestSystemVersioning proves that statements for several leases mean the same in a table
// WITH SYSTEM VERSIONING, where MariaDB counts other rows as affected: what is renewed is
// known, of any number and with others that are lost or asked, and so is what is taken.
func TestSystemVersioning(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, found := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", engine, found), func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, engine).OpenLeases(t)
				if engine == testdb.MariaDB {
					db.Exec(t, "ALTER TABLE lockstep_leases ADD SYSTEM VERSIONING")
				}
				s := newStore(t, db, func(c *mysql.Config) { c.ClientFoundRows = found })
				testSeveral(t, db, s)
				testRenewManyReplies(t, db, s)
			})
		}
	}
}

// TestQueuedBehindALock proves that who has waited for a row in vain is told that it is locked, and not
// also that the server hasn't answered.
func TestQueuedBehindALock(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s, name := newStore(t, db), fmt.Sprint(rand.Int64())
		makeRow(t, db, name, "owner = 'me'")
		tx := testdb.Got(db.Admin().BeginTx(t.Context(), nil))(t)
		defer func() { must(t, tx.Rollback()) }()
		must(t, tx.QueryRow("SELECT owner FROM lockstep_leases WHERE name = ? FOR UPDATE", name).Scan(new(string)))
		err := s.Queued(t.Context(), store.Row{Key: name}, 50*time.Millisecond, func(store.Session) error { return nil })
		testdb.ErrorIf(t, !errors.Is(err, store.ErrLocked) || errors.Is(err, txlock.ErrWaitTimeout), "Queued: %v", err)
	})
}

// TestDeniedPastTheLimit proves that a wait whose SELECT MySQL denies after its limit, as it does while users
// are changed, is told that the row is locked, and one whose SELECT is denied before it is not.
func TestDeniedPastTheLimit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		_, denied := testdb.Rewritten(t, func(text string) string {
			if !strings.Contains(text, "-- name: LockLease ") {
				return text
			}
			time.Sleep(20 * time.Millisecond) // of a slow server
			return strings.Replace(text, "FROM lockstep_leases", "FROM mysql.user", 1)
		})
		s := newStore(t, db, denied)
		for limit, locked := range map[time.Duration]bool{10 * time.Millisecond: true, time.Minute: false} {
			err := s.Queued(t.Context(), store.Row{Key: "denied"}, limit, func(store.Session) error { return nil })
			testdb.ErrorIf(t, errors.Is(err, store.ErrLocked) != locked || !locked && !fault.Is(err, 1142), "denied with a limit of %v: %v", limit, err)
		}
	})
}

// TestTurnBesides proves that who asks for the session of a place, to end it by KILL or to learn that it
// is gone, asks its own server, and takes no other session of the same number for it.
func TestTurnBesides(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s, name := newStore(t, db), fmt.Sprint(rand.Int64())
		place := testdb.Got(s.Turn(t.Context(), name, "me", "", func() error { makeRow(t, db, name, "slot = -1"); return nil }))(t)
		turn := place.(*turn)
		defer turn.Leave()
		for name, c := range map[string]struct {
			server, host string
			alive        bool
			err          error
		}{
			"it":                                   {turn.server, turn.host, true, nil},
			"another session of the number":        {turn.server, "other:1", false, nil},
			"the session of a number elsewhere":    {"other/3306", turn.host, false, errElsewhere},
			"another session of the number, there": {"other/3306", "other:1", false, errElsewhere},
		} {
			asked, called := *turn, false
			asked.server, asked.host = c.server, c.host
			alive, err := asked.beside(t.Context(), func(context.Context, *sql.Conn) error { called = true; return nil })
			testdb.ErrorIf(t, alive != c.alive || called != c.alive || !errors.Is(err, c.err), "%s: alive %v, called %v: %v", name, alive, called, err)
		}
	})
}

// TestConnBudget proves how many connections of a pool are kept, and queue, at most: half of it for each, and
// one fewer than all for both, so that one is left to the program.
func TestConnBudget(t *testing.T) {
	t.Parallel()
	for most, want := range map[int][3]int{1: {0, 0, 0}, 2: {1, 0, 1}, 3: {1, 1, 1}, 4: {2, 1, 2}, 6: {3, 2, 3}, 7: {3, 3, 3}} {
		pool := sql.OpenDB(nil)
		pool.SetMaxOpenConns(most)
		taken := func(take func() bool) (n int) {
			for take() {
				n++
			}
			return n
		}
		got := [3]int{taken(func() bool { return budgets.keep(pool) }), taken(func() bool { return budgets.queue(pool, 0) })}
		for range got[0] {
			budgets.unkeep(pool)
		}
		for range got[1] {
			budgets.unqueue(pool)
		}
		got[2] = taken(func() bool { return budgets.queue(pool, 0) })
		testdb.ErrorIf(t, got != want, "of %d connections %d are kept, %d queue beside them and %d without, want %v", most, got[0], got[1], got[2], want)
		must(t, pool.Close())
	}
}
