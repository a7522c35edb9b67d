package rules

import (
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// The holds of two processes, as long as real ones.
const (
	holdA = ";processAaaaaaaaaaaaaaa"
	holdB = ";processAbbbbbbbbbbbbbb"
	holdC = ";processCcccccccccccccc"
)

// now is the server's clock in all cases, and ttl the TTL that is asked for.
const (
	now = 1000
	ttl = 40 * time.Microsecond
)

// held is a row of which 40 microseconds are left, granted at 900.
var held = Row{Owner: "me", Label: "mine", Holders: holdA, Token: 900, TTL: 50, Expires: 1040, Guards: 7, Session: 8, Asked: 950, Reason: "why"}

// with returns a row that is changed.
func (r Row) with(changes ...func(*Row)) Row {
	for _, change := range changes {
		change(&r)
	}
	return r
}

func holders(list string) func(*Row) { return func(r *Row) { r.Holders = list } }
func owner(name string) func(*Row)   { return func(r *Row) { r.Owner = name } }
func token(n uint64) func(*Row)      { return func(r *Row) { r.Token = n } }
func ttlOf(us int64) func(*Row)      { return func(r *Row) { r.TTL = us } }
func expires(us int64) func(*Row)    { return func(r *Row) { r.Expires = us } }
func use(u store.Use) func(*Row)     { return func(r *Row) { r.Use = u } }
func asked(us int64) func(*Row)      { return func(r *Row) { r.Asked = us } }

// ask is a request of an owner, with a hold.
func ask(owner, hold string) store.Ask {
	return store.Ask{Owner: owner, Label: "new", Hold: hold, TTL: ttl}
}

// granted is what a grant makes of a row.
func granted(r Row, by, hold string, token uint64) Row {
	r.Owner, r.Label, r.Holders, r.Token, r.TTL, r.Expires, r.Asked = by, "new", hold, token, 40, 1040, 0
	return r
}

// rule is one case.
type rule struct {
	name  string
	row   Row
	apply func(r Row) (Row, store.Reply)
	reply store.Reply
	want  Row
}

func take(a store.Ask, notAfter int64) func(Row) (Row, store.Reply) {
	return func(r Row) (Row, store.Reply) { return r.Take(a, now, notAfter) }
}

func release(hold string) func(Row) (Row, store.Reply) {
	return func(r Row) (Row, store.Reply) { return r.Release(hold, now) }
}

func keep(atLeast time.Duration) func(Row) (Row, store.Reply) {
	return func(r Row) (Row, store.Reply) { return r.Keep(holdA, atLeast*time.Microsecond, now) }
}

func claim(owner, hold string, token uint64) store.Claim {
	return store.Claim{Owner: owner, Hold: hold, Token: token, Told: 960}
}

func renew(c store.Claim) func(Row) (Row, store.Reply) {
	return func(r Row) (Row, store.Reply) { return r.Renew(c, now) }
}

func raise(c store.Claim) func(Row) (Row, store.Reply) {
	return func(r Row) (Row, store.Reply) { return r.Raise(c, now) }
}

func useFor(u store.Use) func(Row) (Row, store.Reply) {
	return func(r Row) (Row, store.Reply) { return r.UseFor(u, now), store.Done }
}

func request(since int64) func(Row) (Row, store.Reply) {
	return func(r Row) (Row, store.Reply) { return r.Request("new", since, now) }
}

func place(entry Row, a store.Ask, notAfter int64) func(Row) (Row, store.Reply) {
	return func(r Row) (Row, store.Reply) { return r.TakePlace(entry, a, now, notAfter) }
}

func permit(entry Row, n int, notAfter int64) func(Row) (Row, store.Reply) {
	a := ask("you", holdC)
	a.Permits = n
	return func(r Row) (Row, store.Reply) { return r.TakePermit(entry, a, now, notAfter) }
}

func force(only uint64) func(Row) (Row, store.Reply) {
	return func(r Row) (Row, store.Reply) { return r.Force(only, now) }
}

func reap(r Row) (Row, store.Reply)   { return r.Reap(now) }
func resize(r Row) (Row, store.Reply) { return r.Resize(5) }

func cases() []rule {
	const far = 1 << 40
	free, expired := held.with(holders("")), held.with(expires(now))
	two, full := held.with(holders(holdA+holdB)), held.with(holders(strings.Repeat(holdB, maxHolders/len(holdB))))
	others := ask("you", holdC)
	named := held.with(owner(strings.Repeat("n", 255)))
	keptRow := func(r Row) Row { return r.with(holders(","+holdA[1:]), ttlOf(200), expires(1100), asked(0)) }
	shared, writer := Row{Use: store.Shared}, held.with(use(store.Shared))
	three := Row{Use: -3}
	return []rule{
		{"take: never held", New, take(others, far), store.Done, granted(New, "you", holdC, now)},
		{"take: free", free, take(others, far), store.Done, granted(free, "you", holdC, now)},
		{"take: free, the token ahead of the clock", free.with(token(2000)), take(others, far), store.Done, granted(free, "you", holdC, 2001)},
		{"take: at the last moment", free, take(others, now), store.Done, granted(free, "you", holdC, now)},
		{"take: too late", free.with(expires(900)), take(others, now-1), store.Late, free.with(expires(900))},
		{"take: held", held, take(others, far), store.Refused, held},
		{"take: in its last microsecond", held.with(expires(now + 1)), take(others, far), store.Refused, held.with(expires(now + 1))},
		{"take: expired", expired, take(others, far), store.Done, granted(expired, "you", holdC, now)},
		{"take: shared before", free.with(use(store.Shared)), take(others, far), store.Done, granted(free.with(use(store.Shared)), "you", holdC, now)},
		{"take: a semaphore's", three, take(others, far), store.Other, three},
		{"take: re-entered for shorter", held, take(ask("me", holdB), far), store.Done, two},
		{"take: re-entered for longer", held.with(expires(1010), ttlOf(30)), take(ask("me", holdB), far), store.Done, two.with(ttlOf(40))},
		{"take: re-entered too late", held, take(ask("me", holdB), now-1), store.Late, held},
		{"take: expired, by the same owner", expired, take(ask("me", holdB), far), store.Done, granted(expired, "me", holdB, now)},
		{"take: the same owner in another process", held, take(ask("me", holdC), far), store.Done, granted(held, "me", holdC, now)},
		{"take: the same, with a full list", full, take(ask("me", holdC), far), store.Done, granted(full, "me", holdC, now)},
		{"take: one hold too many", full, take(ask("me", holdA), far), store.Full, full},
		{"take: a full list of another owner", full, take(others, far), store.Refused, full},
		{"take: the clock was set back", held.with(expires(far)), take(others, far), store.Refused, held.with(expires(1050))},
		{"take: kept by HoldAtLeast", keptRow(held).with(owner(store.Released + "me")), take(others, far), store.Refused, keptRow(held).with(owner(store.Released + "me"))},

		{"place: new", Row{}, place(shared, others, far), store.Done, granted(Row{}, "you", holdC, now)},
		{"place: held", held, place(shared, others, far), store.Refused, held},
		{"place: expired", expired, place(shared, others, far), store.Done, granted(expired, "you", holdC, now)},
		{"place: beside a writer", Row{}, place(writer, others, far), store.Absent, Row{}},
		{"place: beside a writer that has expired", Row{}, place(writer.with(expires(now)), others, far), store.Done, granted(Row{}, "you", holdC, now)},
		{"place: of the writer", Row{}, place(writer, ask("me", holdB), far), store.Done, granted(Row{}, "me", holdB, now)},
		{"place: of an exclusive key", Row{}, place(New, others, far), store.Absent, Row{}},
		{"place: too late", Row{}, place(shared, others, now-1), store.Absent, Row{}},

		{"permit: free", New, permit(three, 3, far), store.Done, granted(New, "you", holdC, now)},
		{"permit: held", held, permit(three, 3, far), store.Absent, held},
		{"permit: expired", expired, permit(three, 3, far), store.Done, granted(expired, "you", holdC, now)},
		{"permit: of another number", New, permit(three, 4, far), store.Absent, New},
		{"permit: too late", New, permit(three, 3, now-1), store.Absent, New},

		{"release: the only hold", held, release(holdA), store.Done, held.with(holders(""), expires(now))},
		{"release: one of two", two, release(holdA), store.Done, held.with(holders(holdB))},
		{"release: no such hold", held, release(holdB), store.Refused, held},
		{"release: expired", held.with(expires(990)), release(holdA), store.Expired, held.with(holders(""), expires(990))},
		{"release: expired, one of two", two.with(expires(990)), release(holdB), store.Expired, held.with(expires(990))},

		{"keep: the only hold", held, keep(200), store.Kept, keptRow(held).with(owner(store.Released + "me"))},
		{"keep: a long name", named, keep(200), store.Kept, keptRow(named).with(owner(store.Released + strings.Repeat("n", 245)))},
		{"keep: the token ahead of the clock", held.with(token(5000)), keep(200), store.Kept, keptRow(held).with(owner(store.Released+"me"), token(5000), expires(1200))},
		{"keep: long enough held", held, keep(100), store.Done, held.with(holders(""), expires(now))},
		{"keep: one of two", two, keep(200), store.Done, held.with(holders(holdB))},
		{"keep: expired", expired, keep(200), store.Expired, held.with(holders(""), expires(now))},
		{"keep: again", keptRow(held), keep(200), store.Refused, keptRow(held)},

		{"renew: ours", held, renew(claim("me", holdA, 900)), store.Done, held.with(expires(1050))},
		{"renew: one of two holds", two, renew(claim("me", holdB, 900)), store.Done, two.with(expires(1050))},
		{"renew: asked since", held.with(asked(961)), renew(claim("me", holdA, 900)), store.Questioned, held.with(asked(961), expires(1050))},
		{"renew: another owner", held, renew(claim("you", holdA, 900)), store.Refused, held},
		{"renew: another hold", held, renew(claim("me", holdB, 900)), store.Refused, held},
		{"renew: another token", held, renew(claim("me", holdA, 901)), store.Refused, held},
		{"renew: expired", expired, renew(claim("me", holdA, 900)), store.Refused, expired},

		{"raise: higher", held, raise(claim("me", holdA, 950)), store.Done, held.with(token(950))},
		{"raise: lower", held, raise(claim("me", holdA, 10)), store.Done, held},
		{"raise: another owner", held, raise(claim("you", holdA, 950)), store.Refused, held},
		{"raise: expired", expired, raise(claim("me", holdA, 950)), store.Refused, expired},

		{"force: held", two, force(0), store.Done, held.with(holders(""), token(901), expires(now))},
		{"force: this grant", two, force(900), store.Done, held.with(holders(""), token(901), expires(now))},
		{"force: another grant", two, force(899), store.Refused, two},
		{"force: free", free, force(0), store.Refused, free},
		{"force: expired", expired, force(0), store.Refused, expired},

		{"reap: expired", expired, reap, store.Done, expired.with(holders(""))},
		{"reap: held", held, reap, store.Refused, held},
		{"reap: free", free, reap, store.Refused, free},

		{"use: shared", held, useFor(store.Shared), store.Done, held.with(use(store.Shared))},
		{"use: a semaphore", free, useFor(-3), store.Done, free.with(use(-3))},
		{"use: a semaphore of a held lease", held, useFor(-3), store.Done, held},
		{"use: a semaphore of an expired lease", expired, useFor(-3), store.Done, expired.with(use(-3))},
		{"use: shared already", shared, useFor(-3), store.Done, shared},
		{"use: a semaphore already", three, useFor(store.Shared), store.Done, three},

		{"resize: a semaphore", three, resize, store.Done, Row{Use: -5}},
		{"resize: a shared key", shared, resize, store.Refused, shared},
		{"resize: a lease", held, resize, store.Refused, held},

		{"request: of everyone", held, request(Latest), store.Done, held.with(asked(now), func(r *Row) { r.Reason = "new" })},
		{"request: again in one moment", held.with(asked(now)), request(Latest), store.Done, held.with(asked(now+1), func(r *Row) { r.Reason = "new" })},
		{"request: since a moment ahead of the clock", held, request(1500), store.Done, held.with(asked(1500), func(r *Row) { r.Reason = "new" })},
		{"request: asked since", held, request(950), store.Questioned, held},
		{"request: granted later", held, request(899), store.Refused, held},
		{"request: free", free, request(Latest), store.Refused, free},
		{"request: expired", expired, request(Latest), store.Refused, expired},
		{"request: kept by HoldAtLeast", keptRow(held), request(Latest), store.Refused, keptRow(held)},
	}
}

// TestRules proves each rule: what it replies and what it makes of a row, of which it changes
// nothing else.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, c := range cases() {
		got, reply := c.apply(c.row)
		testdb.ErrorIf(t, reply != c.reply || got != c.want, "%s: %v, %+v\nwant %v, %+v", c.name, reply, got, c.reply, c.want)
	}
}
