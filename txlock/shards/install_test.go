package shards_test

import (
	"database/sql"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/shards"
)

// TestServerRoutes compares the routes with those that the servers compute.
func TestServerRoutes(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		s := on.process(t, "a", "b", "c")
		for id := 1; id <= 100; id++ {
			var name string
			must(t, on["a"].Admin().QueryRowContext(t.Context(), `SELECT name FROM (SELECT 'a' AS name UNION SELECT 'b' UNION SELECT 'c') s
				ORDER BY SHA2(CONCAT(name, X'00', ?), 256) DESC LIMIT 1`, orders.Key(id).String()).Scan(&name))
			if got := s.Name(orders.Key(id)); got != name {
				t.Errorf("%s goes to %s, and by the server to %s", orders.Key(id), got, name)
			}
		}
	})
}

func TestInstall(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		s := on.process(t, "a", "b", "c")
		wants(t, "before Install", second(s.For(t.Context(), orders.Key(1))), shards.ErrSet)
		var all sync.WaitGroup
		for range 8 { // processes that are started at once
			other := on.process(t, "c", "b", "a")
			all.Go(func() {
				if err := other.Install(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got := on.records(t); got != "a: a,b,c; b: a,b,c; c: a,b,c; d: " {
			t.Errorf("the records are %s", got)
		}
		on.granted(t, s, orders.Keys(1, 2, 3, 4, 5, 6, 7, 8, 9)...)

		for _, names := range [][]string{{"a", "b", "c", "d"}, {"a", "b"}, {"c", "d"}} {
			other := on.process(t, names...)
			wants(t, "Install of another set", other.Install(t.Context()), shards.ErrSet)
			for id := 1; id < 10; id++ {
				wants(t, "For with another set", second(other.For(t.Context(), orders.Key(id))), shards.ErrSet)
			}
		}
		by := newSet(t, on.pools(t, "a", "b", "c"), shards.RouteBy("customer", txlock.Key.String))
		wants(t, "Install of the same databases, routed otherwise", by.Install(t.Context()), shards.ErrSet)

		pools := on.pools(t, "a", "b", "c")
		pools["a"], pools["b"] = pools["b"], pools["a"]
		exchanged := newSet(t, pools)
		wants(t, "Install of databases that were exchanged", exchanged.Install(t.Context()), shards.ErrSet)
		for id := 1; id < 10; id++ {
			if key := orders.Key(id); exchanged.Name(key) != "c" {
				wants(t, "For with databases that were exchanged", second(exchanged.For(t.Context(), key)), shards.ErrSet)
			}
		}

		on["b"].Exec(t, "DELETE FROM lockstep_once") // its data are lost
		wants(t, "Install with a database that is empty", on.process(t, "a", "b", "c").Install(t.Context()), shards.ErrSet)
		if got := on.records(t); got != "a: a,b,c; b: ; c: a,b,c; d: " {
			t.Errorf("the records are %s", got)
		}
	})
}

// TestInstallOfTwoSets starts processes with different first sets at once: one set at most
// comes to be used.
func TestInstallOfTwoSets(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		sets := []*shards.Shards{on.process(t, "a", "b"), on.process(t, "b", "c"), on.process(t, "a", "b", "c", "d")}
		var all sync.WaitGroup
		for _, s := range sets {
			all.Go(func() { _ = s.Install(t.Context()) })
		}
		all.Wait()
		uses := 0
		for _, s := range sets {
			usable := 0
			for id := 1; id < 50; id++ {
				if _, err := s.For(t.Context(), orders.Key(id)); err == nil {
					usable = 1
				}
			}
			uses += usable
		}
		if uses > 1 {
			t.Errorf("%d sets are used: %s", uses, on.records(t))
		}
	})
}

// TestInstallInPart has a database that nobody can reach, at first and later.
func TestInstallInPart(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		away := func() *sql.DB {
			cfg := on["c"].Config()
			cfg.Addr, cfg.Logger = "127.0.0.1:1", &mysql.NopLogger{}
			connector, err := mysql.NewConnector(cfg)
			must(t, err)
			pool := sql.OpenDB(locksqlc.Connector(connector))
			t.Cleanup(func() { must(t, pool.Close()) })
			return pool
		}
		pools := on.pools(t, "a", "b")
		pools["c"] = away()
		s := newSet(t, maps.Clone(pools))
		if err := s.Install(t.Context()); err == nil {
			t.Error("Install has succeeded without a database")
		}
		if got := on.records(t); got != "a: ; b: ; c: ; d: " {
			t.Errorf("the records are %s", got)
		}
		whole := on.process(t, "a", "b", "c")
		on["a"].Exec(t, "INSERT INTO lockstep_once VALUES ('lockstep:shard:a', '-', '- -> a,b,c', 1, 4611686018427387904)") // interrupted
		for id := 1; id < 30; id++ {
			if key := orders.Key(id); whole.Name(key) == "a" {
				wants(t, "For before all have the record", second(whole.For(t.Context(), key)), shards.ErrSet)
			}
		}
		must(t, whole.Install(t.Context()))
		if err := s.Install(t.Context()); err == nil || !strings.Contains(err.Error(), "shard c: ") {
			t.Errorf("Install without a database: %v", err)
		}
		for id := 1; id < 30; id++ {
			_, err := s.For(t.Context(), orders.Key(id))
			if down := s.Name(orders.Key(id)) == "c"; down != (err != nil) {
				t.Errorf("For(%d) in %s: %v", id, s.Name(orders.Key(id)), err)
			}
		}
	})
}
