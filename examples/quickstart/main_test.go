package main

import (
	"bytes"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// small is the demo in the size of a test.
var small = config{buyers: 16, products: 4, items: 15}

func TestDemo(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		s := server{string(engine), testdb.Shared(t, engine).Config().FormatDSN()}
		var out bytes.Buffer
		results := testdb.Got(demo(t.Context(), small, []server{s}, &progress{out: &out}))(t)
		testdb.FatalIf(t, len(results) != len(ways), "%d results, want %d", len(results), len(ways))
		for i, r := range results {
			testdb.ErrorIf(t, r.engine != s.engine || r.way.name != ways[i].name, "result %d is of %s, %s", i, r.engine, r.way.name)
			testdb.ErrorIf(t, int64(len(r.latencies)) != r.sold || r.took <= 0 || r.latency(0.5) > r.latency(0.99),
				"%s: %d latencies of %d sales", r.way.name, len(r.latencies), r.sold)
			if !r.way.locked {
				testdb.ErrorIf(t, r.oversold == 0 && r.lost == 0, "%s: nothing was oversold or lost", r.way.name)
				continue
			}
			if r.sold != small.stock() || r.orders != small.stock() || r.oversold != 0 || r.lost != 0 {
				t.Errorf("%s: sold %d, orders %d, oversold %d, lost %d, want %d, %[2]d, 0, 0",
					r.way.name, r.sold, r.orders, r.oversold, r.lost, small.stock())
			}
		}
		testdb.Must(t, report(&out, small, results))
		t.Log(out.String())
	})
}
