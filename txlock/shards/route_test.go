package shards

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dca00107/lockstep/txlock"
)

var abc, abcd = []string{"a", "b", "c"}, []string{"a", "b", "c", "d"}

// golden are routes that were computed by another program, in Python. They never change.
var golden = []struct{ text, abc, abcd, others string }{
	{"order:1", "c", "c", "us_2"},
	{"order:2", "c", "c", "us_2"},
	{"order:3", "b", "b", "eu-1.db"},
	{"order:42", "a", "a", "us_2"},
	{"@shop/order:42", "c", "d", "eu-1.db"},
	{"nightly-report", "c", "c", "eu-1.db"},
	{"Grüße", "b", "b", "eu-1.db"},
	{"a", "c", "d", "us_2"},
}

var others = []string{"eu-1.db", "us_2"}

func TestGoldenRoutes(t *testing.T) {
	t.Parallel()
	for _, g := range golden {
		if got := []string{route(abc, g.text), route(abcd, g.text), route(others, g.text)}; !slices.Equal(got, []string{g.abc, g.abcd, g.others}) {
			t.Errorf("%q goes to %v, and should go to %v", g.text, got, g)
		}
	}
}

// TestRoutesMoveLittle adds a shard to sets and takes it away again: exactly the keys of that
// shard move, about their share of all, whatever the order of the names.
func TestRoutesMoveLittle(t *testing.T) {
	t.Parallel()
	const keys = 20_000
	for n := 1; n <= 16; n += 5 {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("shard-%d", i))
		}
		more := append(slices.Clone(names), "new")
		reversed := slices.Clone(more)
		slices.Reverse(reversed)
		counts := make(map[string]int)
		for i := range keys {
			text := fmt.Sprintf("order:%d", i)
			before, after := route(names, text), route(more, text)
			counts[after]++
			if after != before && after != "new" {
				t.Fatalf("%s moves from %s to %s", text, before, after)
			}
			if route(reversed, text) != after {
				t.Fatalf("the route of %s depends on the order", text)
			}
		}
		for name, count := range counts {
			if share := keys / (n + 1); count < share*8/10 || count > share*12/10 {
				t.Errorf("%s of %d has %d of %d keys", name, n+1, count, keys)
			}
		}
	}
}

func TestRecordsAreTexts(t *testing.T) {
	t.Parallel()
	x, y := set{names: abc}, set{names: abcd, by: "customer"}
	for text, r := range map[string]record{
		"a,b,c":                        stable(x),
		"a,b,c,d by customer":          stable(y),
		"- -> a,b,c":                   {to: x},
		"a,b,c -> a,b,c,d by customer": {from: x, to: y},
		"a,b,c,d by customer => a,b,c": {from: y, to: x, drained: true},
	} {
		if r.String() != text || parseRecord(text).String() != text {
			t.Errorf("%q is written as %q, and read as %q", text, r, parseRecord(text))
		}
	}
}

// TestNoTwoShards goes through all combinations of records that Begin, Finish and a Finish
// back can leave in the databases, one after the other: no two processes, with whatever sets,
// may use one key in two databases. Only what a process relies on without looking is left
// out, for which Begin waits.
func TestNoTwoShards(t *testing.T) {
	t.Parallel()
	sets := []set{{names: abc}, {names: abcd}, {names: []string{"a", "b"}}, {names: []string{"d", "e"}}, {names: abc, by: "customer"}}
	for _, from := range sets {
		if found := twoShards(sets, from, set{}, record{}, stable(from)); found != "" {
			t.Errorf("Install: %s", found)
		}
		for _, to := range sets {
			if from.String() == to.String() {
				continue
			}
			moving, drained := record{from: from, to: to}, record{from: from, to: to, drained: true}
			for _, step := range [][2]record{{stable(from), moving}, {moving, drained}, {drained, stable(to)}, {drained, stable(from)}, {moving, stable(from)}} {
				if found := twoShards(sets, from, to, step[0], step[1]); found != "" {
					t.Errorf("%s to %s: %s", step[0], step[1], found)
				}
			}
			if twoShards(sets, from, to, stable(from), stable(to)) == "" {
				t.Errorf("a change from %s to %s at once is not found", from, to)
			}
		}
	}
}

// twoShards finds a key that two sets may use in two databases, while the record of some
// databases is the old one and that of others the new one. Only databases of the set from
// have the record of that set.
func twoShards(sets []set, from, to set, old, next record) string {
	both := union(from.names, to.names)
	for changed := range 1 << len(both) { // in any order of the databases
		records := make(map[string]record)
		for i, name := range both {
			records[name] = []record{old, next}[changed>>i&1]
			if records[name].String() == from.String() && !from.has(name) {
				records[name] = record{}
			}
		}
		for i := range 30 {
			text := fmt.Sprint("order:", i)
			used := make(map[string]set)
			for _, s := range sets {
				own := text
				if s.by != "" {
					own = fmt.Sprint("customer:", i%7)
				}
				at := route(s.names, own)
				if r := records[at]; r.knows(s) && !r.moves(own) {
					used[at] = s
				}
			}
			if len(used) > 1 {
				return fmt.Sprintf("%s is used by %v under the records %v", text, used, records)
			}
		}
	}
	return ""
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// TestErrorsBeforeSQL has databases that nobody can reach: what is wrong is said before.
func TestErrorsBeforeSQL(t *testing.T) {
	t.Parallel()
	orders := txlock.NewFamily[int64]("order")
	s := unreachable(t)
	wants(t, "no key", second(s.For(t.Context())), txlock.ErrInvalidKey)
	wants(t, "the zero key", second(s.For(t.Context(), txlock.Key{})), txlock.ErrInvalidKey)
	wants(t, "two shards", second(s.For(t.Context(), orders.Key(1), orders.Key(2), orders.Key(3), orders.Key(4))), ErrSplit)
	wants(t, "two shards, shared", s.Confirm(t.Context(), orders.Key(1), txlock.Shared(orders.Key(2)), orders.Key(3), orders.Key(4)), ErrSplit)
	wants(t, "a guard without a scope", s.Guard(t.Context(), nil, orders.Key(1)), txlock.ErrNoTransaction)
	wants(t, "nothing to change", Begin(t.Context(), s, s), txlock.ErrInvalidOption)
	other := unreachable(t, RouteBy("id", func(key txlock.Key) string { return key.String() }))
	wants(t, "a lost shard of the new set", Finish(t.Context(), s, other, "a"), txlock.ErrInvalidOption)
	wants(t, "the first call that needs a server", second(s.For(t.Context(), orders.Key(1))), errRefused)
}
