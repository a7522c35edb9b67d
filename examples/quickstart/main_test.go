package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

var check = leasetest.Must

func TestMain(m *testing.M) { testdb.Main(m) }

// small is the demo in the size of a test.
var small = config{buyers: 16, products: 4, items: 15}

// eachServer runs a test on every engine.
func eachServer(t *testing.T, test func(t *testing.T, s server)) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		test(t, server{string(engine), testdb.Shared(t, engine).Config().FormatDSN()})
	})
}

func TestDemo(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		var out bytes.Buffer
		results, err := demo(t.Context(), small, []server{s}, &progress{out: &out})
		check(t, err)
		if len(results) != len(ways) {
			t.Fatalf("%d results, want %d", len(results), len(ways))
		}
		for i, r := range results {
			if r.engine != s.engine || r.way.name != ways[i].name {
				t.Errorf("result %d is of %s, %s", i, r.engine, r.way.name)
			}
			if int64(len(r.latencies)) != r.sold || r.took <= 0 || r.latency(0.5) > r.latency(0.99) {
				t.Errorf("%s: %d latencies of %d sales", r.way.name, len(r.latencies), r.sold)
			}
			if !r.way.locked {
				if r.oversold == 0 && r.lost == 0 {
					t.Errorf("%s: nothing was oversold or lost", r.way.name)
				}
				continue
			}
			if r.sold != small.stock() || r.orders != small.stock() || r.oversold != 0 || r.lost != 0 {
				t.Errorf("%s: sold %d, orders %d, oversold %d, lost %d, want %d, %[2]d, 0, 0",
					r.way.name, r.sold, r.orders, r.oversold, r.lost, small.stock())
			}
		}
		check(t, report(&out, small, results))
		t.Log(out.String())
	})
}

// interrupting is a counter at which the demo is interrupted during a purchase.
type interrupting struct {
	counter
	bought    atomic.Int64
	interrupt context.CancelFunc
}

func (c *interrupting) buy(ctx context.Context, product, buyer int64) error {
	if c.bought.Add(1) == 20 {
		c.interrupt()
	}
	return c.counter.buy(ctx, product, buyer)
}

func TestInterruptedDemoDropsItsDatabase(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		shop, err := newShop(t.Context(), small, s)
		check(t, err)
		for _, w := range ways {
			ctx, interrupt := context.WithCancel(t.Context())
			open := w.open
			w.open = func(dsn string, buyers int) (counter, error) {
				c, err := open(dsn, buyers)
				return &interrupting{counter: c, interrupt: interrupt}, err
			}
			_, err := shop.sellAll(ctx, w, &progress{out: &bytes.Buffer{}})
			leasetest.Wants(t, w.name, err, context.Canceled)
			interrupt()
		}
		if err := shop.drop(); err != nil { // which waits for transactions that are open
			t.Fatal(err)
		}
		expectNoDatabase(t, s, shop.database.Name())
	})
}

func expectNoDatabase(t *testing.T, s server, name string) {
	t.Helper()
	pool, err := sql.Open("mysql", s.dsn)
	check(t, err)
	defer func() { _ = pool.Close() }()
	var left int
	err = pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", name).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("%d databases %s are left behind, %v", left, name, err)
	}
}

func TestStartNeedsAServer(t *testing.T) {
	t.Parallel()
	err := start(t.Context(), func(string) string { return "" }, nil)
	if !errors.Is(err, errNoServer) || strings.Contains(err.Error(), "\n") {
		t.Errorf("start = %v, want errNoServer in a line", err)
	}
}

func TestServersOf(t *testing.T) {
	t.Parallel()
	servers := serversOf(func(name string) string {
		return map[string]string{"LOCKSTEP_MYSQL_DSN": "root@/"}[name]
	})
	if len(servers) != 1 || servers[0] != (server{"mysql", "root@/"}) {
		t.Errorf("serversOf = %v", servers)
	}
}

func TestReportFindsWhatDoesNotHold(t *testing.T) {
	t.Parallel()
	right := result{engine: "mysql", way: ways[1], stock: 60, sold: 60, orders: 60, took: time.Second}
	wrong := result{engine: "mysql", way: ways[0], stock: 60, sold: 90, orders: 90, oversold: 30, lost: 30, took: time.Second}
	for name, test := range map[string]struct {
		change func(locked, unlocked *result)
		want   string
	}{
		"as it should be":     {func(_, _ *result) {}, ""},
		"oversold":            {func(locked, _ *result) { locked.oversold = 1 }, "the lock did not hold"},
		"lost":                {func(locked, _ *result) { locked.lost = 1 }, "the lock did not hold"},
		"not all sold":        {func(locked, _ *result) { locked.sold, locked.orders = 59, 59 }, "the lock did not hold"},
		"sold but no order":   {func(locked, _ *result) { locked.orders = 59 }, "the lock did not hold"},
		"no lock, no mistake": {func(_, unlocked *result) { *unlocked = right; unlocked.way = ways[0] }, "proves nothing"},
	} {
		locked, unlocked := right, wrong
		test.change(&locked, &unlocked)
		var out bytes.Buffer
		err := report(&out, small, []result{unlocked, locked})
		if test.want == "" {
			if err != nil {
				t.Errorf("%s: report = %v", name, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: report = %v, want %q", name, err, test.want)
		}
		leasetest.Says(t, name+": the table", out.String(), ways[1].name)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{false, true} {
		var out bytes.Buffer
		var sold atomic.Int64
		stop := (&progress{out: &out, terminal: terminal}).watch("mysql, no lock", &sold)
		sold.Store(42)
		stop()
		if said := out.String(); !strings.Contains(said, "mysql, no lock: 42 sold") || strings.HasSuffix(said, "\n") == terminal {
			t.Errorf("terminal %t: it shows %q", terminal, said)
		}
	}
}
