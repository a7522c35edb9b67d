package shards_test

import (
	"database/sql"
	"sync"
	"testing"

	"github.com/dca00107/lockstep/txlock/shards"
)

// renamed is the same databases under other names.
func renamed(t *testing.T, pools map[string]*sql.DB, names ...string) *shards.Shards {
	t.Helper()
	others := make(map[string]*sql.DB)
	for i, name := range []string{"a", "b"} {
		others[names[i]] = pools[name]
	}
	return newSet(t, others)
}

// TestRenamedShards has processes that give the same databases other names, and would route
// a key to another of them: they aren't installed beside the first, also not at once, but
// come by Begin and Finish.
func TestRenamedShards(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		pools := on.pools(t, "a", "b", "c")
		first, other := newSet(t, map[string]*sql.DB{"a": pools["a"], "b": pools["b"]}), renamed(t, pools, "x", "y")
		must(t, first.Install(t.Context()))
		wants(t, "Install under other names", other.Install(t.Context()), shards.ErrSet)
		exchanged := renamed(t, pools, "b", "a")
		wants(t, "Install of databases that are all exchanged", exchanged.Install(t.Context()), shards.ErrSet)
		wants(t, "Install of one name more", newSet(t, map[string]*sql.DB{"c": pools["c"], "more": pools["a"]}).Install(t.Context()), shards.ErrSet)
		must(t, first.Install(t.Context()))
		on.granted(t, first, orders.Keys(1, 2, 3, 4, 5)...)
		for id := 1; id < 10; id++ {
			wants(t, "For of databases that are all exchanged", second(exchanged.For(t.Context(), orders.Key(id))), shards.ErrSet)
			wants(t, "For under other names", second(other.For(t.Context(), orders.Key(id))), shards.ErrSet)
		}

		twice := newSet(t, map[string]*sql.DB{"a": pools["a"], "b": pools["b"], "b2": pools["b"], "d": on.pools(t, "b")["b"]})
		must(t, shards.Begin(t.Context(), first, twice))
		must(t, shards.Finish(t.Context(), first, twice))
		must(t, twice.Install(t.Context()))
		must(t, shards.Begin(t.Context(), twice, first))
		must(t, shards.Finish(t.Context(), twice, first))

		foreign := newSet(t, map[string]*sql.DB{"f": pools["c"]})
		must(t, foreign.Install(t.Context()))
		wants(t, "Begin with a database of another set", shards.Begin(t.Context(), first, newSet(t, map[string]*sql.DB{"a": pools["a"], "b": pools["b"], "d": pools["c"]})), shards.ErrSet)
		on.granted(t, first, orders.Keys(1, 2, 3, 4, 5)...)

		for range 2 { // and back
			must(t, shards.Begin(t.Context(), first, other))
			must(t, other.Install(t.Context()))
			must(t, shards.Finish(t.Context(), first, other))
			must(t, other.Install(t.Context()))
			wants(t, "Install under the old names", first.Install(t.Context()), shards.ErrSet)
			first, other = other, first
		}
	})
}

// TestRenamedAtOnce starts processes with different names for the same databases at once:
// one at most comes to use them.
func TestRenamedAtOnce(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		for range 5 {
			pools := on.pools(t, "a", "b")
			var all sync.WaitGroup
			var installed [3]error
			for i, names := range [][]string{{"a", "b"}, {"x", "y"}, {"y", "x"}} {
				s := renamed(t, pools, names...)
				all.Go(func() { installed[i] = s.Install(t.Context()) })
			}
			all.Wait()
			n := 0
			for _, err := range installed {
				if err == nil {
					n++
				} else {
					wants(t, "Install at once", err, shards.ErrSet)
				}
			}
			if n > 1 {
				t.Errorf("%d sets are installed over the same databases", n)
			}
			for _, name := range []string{"a", "b"} {
				on[name].Exec(t, "DELETE FROM lockstep_once")
			}
		}
	})
}
