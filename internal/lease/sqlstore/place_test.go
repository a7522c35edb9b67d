package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
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

// verb is a call for a row, and the rule that it follows: that of a place if there is an entry row.
type verb struct {
	send  func(ctx context.Context, s store.Session, at store.Row) (store.Answer, error)
	rule  func(entry *rules.Row, r rules.Row, now int64) (rules.Row, store.Reply)
	takes bool   // it writes nothing if it is refused, and replies with a token
	entry string // what is set in the entry row, if it is for a reader's place
}

func takes(owner, hold string, ttl time.Duration, late bool) verb {
	ask, notAfter := store.Ask{Owner: owner, Label: "'\\é", Hold: hold, TTL: ttl, NotAfter: store.Never}, int64(math.MaxInt64)
	if late {
		ask.NotAfter, notAfter = 0, 0 // before the process has begun
	}
	return verb{takes: true, send: func(ctx context.Context, s store.Session, at store.Row) (store.Answer, error) {
		ask := ask
		ask.Row = at
		return s.Take(ctx, ask)
	}, rule: func(entry *rules.Row, r rules.Row, now int64) (rules.Row, store.Reply) {
		if entry != nil {
			return r.TakePlace(*entry, ask, now, notAfter)
		}
		return r.Take(ask, now, notAfter)
	}}
}

// takesPlace takes a reader's place under an entry row.
func takesPlace(entry string) verb {
	v := takes("me", hold("m"), time.Hour, false)
	v.entry = entry
	return v
}

// replying is a verb whose answer is a reply.
func replying(send func(ctx context.Context, s store.Session, at store.Row) (store.Reply, error), by rule) verb {
	return verb{send: func(ctx context.Context, s store.Session, at store.Row) (store.Answer, error) {
		reply, err := send(ctx, s, at)
		return store.Answer{Reply: reply}, err
	}, rule: func(_ *rules.Row, r rules.Row, now int64) (rules.Row, store.Reply) { return by(r, now) }}
}

func releases(hold string) verb {
	return replying(func(ctx context.Context, s store.Session, at store.Row) (store.Reply, error) {
		return s.Release(ctx, at, hold)
	},
		func(r rules.Row, now int64) (rules.Row, store.Reply) { return r.Release(hold, now) })
}

func keeps(hold string) verb {
	return replying(func(ctx context.Context, s store.Session, at store.Row) (store.Reply, error) {
		return s.Keep(ctx, at, hold, time.Hour)
	},
		func(r rules.Row, now int64) (rules.Row, store.Reply) { return r.Keep(hold, time.Hour, now) })
}

func renews(owner, hold string, token uint64) verb {
	c := store.Claim{Owner: owner, Hold: hold, Token: token, Told: 9}
	return replying(func(ctx context.Context, s store.Session, at store.Row) (store.Reply, error) {
		c := c
		c.Row = at
		return s.Renew(ctx, c)
	}, func(r rules.Row, now int64) (rules.Row, store.Reply) { return r.Renew(c, now) })
}

// The holds of a process, and of another, as long as real ones.
const (
	holdA = ";processAaaaaaaaaaaaaaa"
	holdB = ";processAbbbbbbbbbbbbbb"
	holdC = ";processAcccccccccccccc"
	holdD = ";processaaaaaaaaaaaaaaa"
)

// statement is one case.
type statement struct {
	name string
	row  string // what is set in it; "" for a missing one
	verb
	reply store.Reply
}

// statements are all branches of the statements that take, renew and release. The tokens are 1000,
// which is old, or ahead of the clock.
func statements() []statement {
	row := func(holds string, left time.Duration) string {
		return fmt.Sprintf("owner = 'me', holders = '%s', ttl_us = 20000000, expires_us = UNIX_TIMESTAMP() * 1000000 + %d", holds, left.Microseconds())
	}
	const ttl, ahead = 40 * time.Second, ", token = " + future
	held, expired, free := row(holdA, 10*time.Second), row(holdA, -10*time.Second), row("", -10*time.Second)
	three, beyond := row(holdA+holdB+holdC, 10*time.Second), row(holdA, time.Hour)
	list := strings.Repeat(holdB, 8192/len(holdB))
	full := row(list, 20*time.Second)
	const place = "owner = 'x', holders = ';xxxxxxxxxxxxxxxxxxxxxx', token = 2000, ttl_us = 60000000, expires_us = "
	const writer, owner = "used_for = 1, " + place + future, "used_for = 1, " + place + future + ", owner = 'me'"
	return []statement{
		{"acquire: missing", "", takes("me", holdB, ttl, false), store.Absent},
		{"acquire: never held", "owner = '-'", takes("me", holdB, ttl, false), store.Done},
		{"acquire: released", free, takes("you", holdB, ttl, false), store.Done},
		{"acquire: released ahead of the clock", row("", time.Hour) + ahead, takes("you", holdB, ttl, false), store.Done},
		{"acquire: expired", expired, takes("you", holdB, ttl, false), store.Done},
		{"acquire: expired, the same owner", expired, takes("me", holdB, ttl, false), store.Done},
		{"acquire: expired, ahead of the clock", expired + ahead, takes("you", holdB, ttl, false), store.Done},
		{"acquire: held", held, takes("you", holdB, ttl, false), store.Refused},
		{"acquire: held, another case of the owner", held, takes("ME", holdB, ttl, false), store.Refused},
		{"acquire: held beyond its time to live", beyond, takes("you", holdB, ttl, false), store.Refused},
		{"acquire: re-entered for longer", held, takes("me", holdB, ttl, false), store.Done},
		{"acquire: re-entered for shorter", held, takes("me", holdB, time.Second, false), store.Done},
		{"acquire: re-entered, ahead of the clock", held + ahead, takes("me", holdB, time.Second, false), store.Done},
		{"acquire: the last hold", row(list[len(holdB):], ttl), takes("me", holdB, ttl, false), store.Done},
		{"acquire: one hold too many", full, takes("me", holdA, ttl, false), store.Full},
		{"acquire: held by the owner's name in another process", three, takes("me", holdD, ttl, false), store.Done},
		{"acquire: the same, ahead of the clock", held + ahead, takes("me", holdD, ttl, false), store.Done},
		{"acquire: the same, with a full list", full, takes("me", holdD, ttl, false), store.Done},
		{"acquire: the same, too late", held, takes("me", holdD, ttl, true), store.Late},
		{"acquire: too late", free, takes("you", holdB, ttl, true), store.Late},
		{"acquire: never held, too late", "owner = '-'", takes("you", holdB, ttl, true), store.Late},
		{"acquire: re-entered too late", held, takes("me", holdB, ttl, true), store.Late},
		{"release: missing", "", releases(holdA), store.Absent},
		{"release: the only hold", held, releases(holdA), store.Done},
		{"release: the first hold", three, releases(holdA), store.Done},
		{"release: a hold in the middle", three, releases(holdB), store.Done},
		{"release: the last in the list", three, releases(holdC), store.Done},
		{"release: somebody else's", held, releases(holdB), store.Refused},
		{"release: another case", held, releases(strings.ToUpper(holdA)), store.Refused},
		{"release: free already", free, releases(holdA), store.Refused},
		{"release: expired", expired, releases(holdA), store.Expired},
		{"release: ahead of the clock", beyond + ahead, releases(holdA), store.Done},
		{"renew: missing", "", renews("me", holdA, 1000), store.Absent},
		{"renew: ours", held, renews("me", holdA, 1000), store.Done},
		{"renew: ours, one of three holds", three, renews("me", holdB, 1000), store.Done},
		{"renew: ours, ahead of the clock", beyond + ", token = 1 << 61", renews("me", holdA, 1<<61), store.Done},
		{"renew: another owner", held, renews("you", holdA, 1000), store.Refused},
		{"renew: another token", held, renews("me", holdA, 999), store.Refused},
		{"renew: another hold", held, renews("me", holdB, 1000), store.Refused},
		{"renew: expired", expired, renews("me", holdA, 1000), store.Refused},
		{"renew: released", free, renews("me", holdA, 1000), store.Refused},
		{"keep: missing", "", keeps(holdA), store.Absent},
		{"keep: the only hold", held + ", token = UNIX_TIMESTAMP() * 1000000", keeps(holdA), store.Kept},
		{"keep: one of three", three, keeps(holdA), store.Done},
		{"keep: long enough", held, keeps(holdA), store.Done},
		{"keep: expired", expired, keeps(holdA), store.Expired},
		{"keep: somebody else's", held, keeps(holdB), store.Refused},

		{"place: new", "", takesPlace("used_for = 1"), store.Done},
		{"place: free", "guards = 8", takesPlace("used_for = 1"), store.Done},
		{"place: free, before the clock was set back", "expires_us = " + future, takesPlace("used_for = 1"), store.Done},
		{"place: expired", place + "5", takesPlace("used_for = 1"), store.Done},
		{"place: the token is ahead", "token = " + future, takesPlace("used_for = 1"), store.Done},
		{"place: held", place + future, takesPlace("used_for = 1"), store.Refused},
		{"place: held by the owner", place + future + ", owner = 'me'", takesPlace("used_for = 1"), store.Refused},
		{"place: of an exclusive key, new", "", takesPlace("used_for = 0"), store.Absent},
		{"place: of an exclusive key, free", "guards = 8", takesPlace("used_for = 0"), store.Absent},
		{"place: of a semaphore", "guards = 8", takesPlace("used_for = -1"), store.Absent},
		{"place: beside a writer, new", "", takesPlace(writer), store.Absent},
		{"place: beside a writer, free", "guards = 8", takesPlace(writer), store.Absent},
		{"place: beside a writer that has expired", "guards = 8", takesPlace("used_for = 1, " + place + "5"), store.Done},
		{"place: beside the owner as the writer, new", "", takesPlace(owner), store.Done},
		{"place: beside the owner as the writer, free", "guards = 8", takesPlace(owner), store.Done},
		{"place: beside the owner as the writer, held", place + future, takesPlace(owner), store.Refused},
		{"place: beside a writer, held and not allowed", place + future, takesPlace(writer), store.Absent},
	}
}

// TestStatementsByTheRules proves that each statement makes of a row what its rule makes of it, and
// replies the same, in a transaction as well; and that it passes over a row that somebody has locked.
func TestStatementsByTheRules(t *testing.T) {
	inLeaseModes(t, func(t *testing.T, db *testdb.DB, s *Store) {
		for _, c := range statements() {
			if c.row != "" && c.entry == "" { // to take a place waits for who makes its row
				c.passes(t, db, s)
			}
			c.follows(t, db, s, func(at store.Row) (store.Answer, error) { return c.send(t.Context(), s, at) })
			if c.entry != "" {
				continue // none takes a place in a transaction
			}
			c.name += ", in a transaction"
			c.follows(t, db, s, func(at store.Row) (a store.Answer, err error) {
				err = s.Queued(t.Context(), at, time.Minute, func(tx store.Session) (err error) {
					a, err = c.send(t.Context(), tx, at)
					return err
				})
				return a, err
			})
		}
	})
}

// make makes the row of a case, and returns where it is.
func (c statement) make(t *testing.T, db *testdb.DB) store.Row {
	t.Helper()
	at := store.Row{Key: fmt.Sprint(c.name, rand.Int64())}
	if c.entry != "" {
		at.Slot = 1 << 40
	}
	if c.row != "" {
		makeRow(t, db, at.Key, fmt.Sprintf("%s, slot = %d", c.row, at.Slot))
	}
	if c.entry != "" {
		makeRow(t, db, at.Key, c.entry)
	}
	return at
}

// passes sends the statement while its row is locked. To refuse an acquire nothing is written, so that
// needs no lock.
func (c statement) passes(t *testing.T, db *testdb.DB, s *Store) {
	t.Helper()
	at := c.make(t, db)
	before, err := s.row(t.Context(), at)
	must(t, err)
	tx, err := db.Admin().Begin()
	must(t, err)
	must(t, tx.QueryRow("SELECT 1 FROM lockstep_leases WHERE name = ? FOR UPDATE", at.Key).Scan(new(int)))
	a, err := c.send(t.Context(), s, at)
	must(t, errors.Join(err, tx.Rollback()))
	after, err := s.row(t.Context(), at)
	must(t, err)
	next, _ := c.rule(nil, before.Row, before.now)
	if refused := c.takes && a.Reply == c.reply && next == before.Row; a.Reply != store.Absent && !refused || after.Row != before.Row || after.version != before.version {
		t.Errorf("%s: of a locked row: %+v\n%+v, before\n%+v", c.name, a, after, before)
	}
}

// follows sends the statement, and compares the row and the reply with the rule.
func (c statement) follows(t *testing.T, db *testdb.DB, s *Store, send func(at store.Row) (store.Answer, error)) {
	t.Helper()
	at := c.make(t, db)
	var entry *rules.Row
	if c.entry != "" {
		seen, err := s.row(t.Context(), store.Row{Key: at.Key})
		must(t, err)
		entry = &seen.Row
	}
	before, there, err := s.find(t.Context(), at)
	must(t, err)
	a, err := send(at)
	if err != nil || a.Reply != c.reply || c.takes && (a.Slot != at.Slot || a.Shared) {
		t.Fatalf("%s: %+v, %v, want the reply %v", c.name, a, err, c.reply)
	}
	after, exists, err := s.find(t.Context(), at)
	if err != nil || exists != (there || entry != nil && c.reply == store.Done) {
		t.Fatalf("%s: after %+v, %v, %v", c.name, after, exists, err)
	}
	now, version := before.now, before.version
	for _, clock := range []int64{after.Expires - after.TTL, after.Expires} { // what the statement has read
		if clock >= before.now && clock <= after.now {
			now = clock
		}
	}
	want, reply := c.rule(entry, before.Row, now)
	if there && (want != before.Row || !c.takes) {
		version++
	}
	if c.takes && entry == nil && c.reply == store.Done {
		want.Session = after.Session
	}
	granted := c.takes && c.reply == store.Done
	if exists && (reply != a.Reply || after.Row != want || after.version != version || granted && a.Token != want.Token) {
		t.Errorf("%s: %+v\n%+v, version %d, by the rule %v\n%+v, version %d", c.name, a, after.Row, after.version, reply, want, version)
	}
}

// TestRenewManyReplies: of several leases those are renewed that are still held so and not locked,
// and the questions of these are returned that their holders weren't told of, in what the first
// statement replies or in one read more.
func TestRenewManyReplies(t *testing.T) {
	inLeaseModes(t, func(t *testing.T, db *testdb.DB, s *Store) {
		ctx, unique := leasetest.Limited(t, time.Minute), fmt.Sprint(rand.Int64(), "'/") // a locked row would be waited for
		blocker, err := db.Admin().BeginTx(t.Context(), nil)
		must(t, err)
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
		if _, err := blocker.ExecContext(t.Context(), "SELECT 1 FROM lockstep_leases WHERE name = ? FOR UPDATE", unique+"locked"); err != nil {
			t.Fatal(err)
		}
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
			if err != nil || !maps.Equal(got, found) || !slices.Equal(asked, questions) {
				t.Errorf("of %v: %v, %v, %v, want %v, %v", only, got, asked, err, found, questions)
			}
		}
	})
}

// TestRepliesAreKnown proves that each statement of leases that answers with an insert id has
// an entry with all its replies, and feeds the reader what is none of them.
func TestRepliesAreKnown(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`-- name: (\w+) :exec(?:lastid|result)`)
	found := 0
	for _, file := range []string{"leases", "shared"} {
		text, err := os.ReadFile("../../../gen/" + file + ".sql.go")
		must(t, err)
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			found++
			if _, known := meanings[m[1]]; !known {
				t.Errorf("%s has no entry in meanings", m[1])
			}
		}
	}
	if found != len(meanings) {
		t.Errorf("%d statements, and %d entries in meanings", found, len(meanings))
	}
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
			if known != (err == nil) || !known && !errors.Is(err, fault.ErrReply) || known && a.Reply != want || a.Slot != 3 {
				t.Errorf("%s: the insert id %d is read as %+v, %v", statement, id, a, err)
			}
			if isToken && (int64(a.Token) != token || a.Shared != (id != token)) {
				t.Errorf("%s: the insert id %d is read as the token %d, shared %t", statement, id, a.Token, a.Shared)
			}
		}
	}
	if a, err := answerOf("NoSuchStatement", 0)(1<<50, nil); !errors.Is(err, fault.ErrReply) {
		t.Errorf("a statement without an entry is read as %+v, %v", a, err)
	}
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
		if done, clock, ok := rawsql.Reply(c.id, c.affected, near, c.rows); ok != c.ok {
			t.Errorf("the insert id %d with %d changed rows is read as %b, %d, %t", c.id, c.affected, done, clock, ok)
		}
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
			"a forced one": func(ctx context.Context, c store.Claim) error { _, err := s.Force(ctx, c.Row); return err },
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
			seen, err := s.row(t.Context(), c.Row)
			must(t, err)
			next, reply := seen.Take(store.Ask{Owner: "you", Hold: hold("y"), TTL: time.Minute}, seen.Expires, seen.Expires)
			if reply != store.Done {
				t.Fatalf("%s: an expired row is not free: %v", what, reply)
			}
			if err := change(t.Context(), c); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if swapped, err := s.swap(t.Context(), seen, next, always); swapped || err != nil {
				t.Errorf("%s was overwritten: %t, %v", what, swapped, err)
			}
		}
	})
}

// TestGuardComparesTheToken proves that a claim with an older token guards nothing.
func TestGuardComparesTheToken(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s := newStore(t, db)
		c := store.Claim{Row: store.Row{Key: "guarded"}, Owner: "me", Hold: hold("m"), Token: 999}
		makeRow(t, db, c.Key, "owner = 'me', ttl_us = 60000000, holders = '"+c.Hold+"', expires_us = "+future)
		for _, want := range []store.Reply{store.Refused, store.Done} {
			if reply, err := s.Guard(t.Context(), c); reply != want || err != nil {
				t.Errorf("by the token %d: %v, %v, want %v", c.Token, reply, err, want)
			}
			c.Token++
		}
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
			if (n > 0) != granted || err != nil {
				t.Errorf("%d rows are changed, granted %t, %v", n, granted, err)
			}
			db.Exec(t, "UPDATE lockstep_leases SET expires_us = 5 WHERE name = 'permits' AND slot = 1")
		}
	})
}

// TestChangeIsDecidedAnew proves that a change is decided anew by a row that has changed
// meanwhile, that a locked row is Absent and stays as it is, and that one that changes again
// and again is given up.
func TestChangeIsDecidedAnew(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s, at := newStore(t, db), store.Row{Key: "changed"}
		makeRow(t, db, at.Key, "owner = 'me'")
		tries, busy := 0, 1
		decide := func(r rules.Row, _ int64) (rules.Row, store.Reply) {
			if tries++; tries <= busy {
				db.Exec(t, "UPDATE lockstep_leases SET version = version + 1, guards = guards + 1 WHERE name = 'changed'")
			}
			r.Reason += "+"
			return r, store.Done
		}
		if r, reply, err := s.change(t.Context(), at, decide); err != nil || reply != store.Done || r.Reason != "+" || r.Guards != 8 || tries != 2 {
			t.Errorf("after one other change: %v, %v, %+v, %d tries", reply, err, r, tries)
		}
		tries, busy = 0, 1000
		if _, reply, err := s.change(t.Context(), at, decide); err != nil || reply != store.Absent || tries != mostSwaps {
			t.Errorf("always changed: %v, %v, %d tries", reply, err, tries)
		}
		tries, busy = 0, 0
		if _, reply, err := s.changeUntil(t.Context(), at, 1, true, decide); err != nil || reply != store.Absent || tries != 1 {
			t.Errorf("too late: %v, %v, %d tries", reply, err, tries)
		}
		if _, reply, err := s.change(t.Context(), store.Row{Key: "missing"}, decide); err != nil || reply != store.Absent || tries != 1 {
			t.Errorf("missing: %v, %v, %d tries", reply, err, tries)
		}
		tries = 0
		tx, err := db.Admin().Begin()
		must(t, err)
		if _, err := tx.Exec("SELECT token FROM lockstep_leases WHERE name = ? FOR UPDATE", at.Key); err != nil {
			t.Fatal(err)
		}
		_, reply, err := s.change(t.Context(), at, decide)
		must(t, tx.Rollback())
		seen, readErr := s.row(t.Context(), at)
		if err != nil || readErr != nil || reply != store.Absent || tries != 1 || seen.Reason != "+" {
			t.Errorf("locked: %v, %v, %v, %d tries, %+v", reply, err, readErr, tries, seen)
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
				testRenewals(t, db, s)
			})
		}
	}
}

func testRenewals(t *testing.T, db *testdb.DB, s *Store) {
	for _, n := range []int{1, 2, 3, 6, 40} {
		for lost := range min(n+1, 4) {
			var claims []store.Claim
			for i := range n {
				name := fmt.Sprintf("%d/%d/%d", n, lost, i)
				makeRow(t, db, name, "owner = 'me', holders = '"+hold("m")+"', ttl_us = 60000000, expires_us = "+future)
				c := store.Claim{Row: store.Row{Key: name}, Owner: "me", Hold: hold("m"), Token: 1000, Told: 9}
				if i < lost {
					c.Token++ // somebody else's
				}
				claims = append(claims, c)
			}
			if last := claims[n-1]; n > lost {
				if _, err := db.Admin().ExecContext(t.Context(), "UPDATE lockstep_leases SET asked_us = 10, release_reason = 'why' WHERE name = ?", last.Key); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // on the same connection
				renewed, questions, err := s.RenewMany(t.Context(), claims)
				must(t, err)
				if asked := n > lost; len(questions) > 1 || asked != (len(questions) == 1) {
					t.Errorf("%d with %d lost were asked %v", n, lost, questions)
				}
				for i, c := range claims {
					standing, ok := renewed[c.Row]
					if ok != (i >= lost) || ok && standing != store.Renewed {
						t.Errorf("%d with %d lost: number %d is %v %v", n, lost, i, standing, ok)
					}
				}
			}
		}
	}
}
