package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

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
	before := testdb.Got(s.row(t.Context(), at))(t)
	tx := testdb.Got(db.Admin().Begin())(t)
	must(t, tx.QueryRow("SELECT 1 FROM lockstep_leases WHERE name = ? FOR UPDATE", at.Key).Scan(new(int)))
	a, err := c.send(t.Context(), s, at)
	must(t, errors.Join(err, tx.Rollback()))
	after := testdb.Got(s.row(t.Context(), at))(t)
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
		seen := testdb.Got(s.row(t.Context(), store.Row{Key: at.Key}))(t)
		entry = &seen.Row
	}
	before, there, err := s.find(t.Context(), at)
	must(t, err)
	a, err := send(at)
	testdb.FatalIf(t, err != nil || a.Reply != c.reply || c.takes && (a.Slot != at.Slot || a.Shared), "%s: %+v, %v, want the reply %v", c.name, a, err, c.reply)
	after, exists, err := s.find(t.Context(), at)
	testdb.FatalIf(t, err != nil || exists != (there || entry != nil && c.reply == store.Done), "%s: after %+v, %v, %v", c.name, after, exists, err)
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
	testdb.ErrorIf(t, exists && (reply != a.Reply || after.Row != want || after.version != version || granted && a.Token != want.Token),
		"%s: %+v\n%+v, version %d, by the rule %v\n%+v, version %d", c.name, a, after.Row, after.version, reply, want, version)
}
