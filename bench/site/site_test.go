package site_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/site"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

var must = leasetest.Must

func TestMain(m *testing.M) { testdb.Main(m) }

// TestLinkNames proves that a link is called as it is read.
func TestLinkNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]time.Duration{"loopback": 0, "0.5 ms": 500 * time.Microsecond, "1 ms": time.Millisecond, "20 ms": 20 * time.Millisecond} {
		if d, err := site.ParseLink(name); d != want || err != nil || site.LinkName(d) != name {
			t.Errorf("%s is %v, %v, and called %s", name, d, err, site.LinkName(d))
		}
	}
	for _, name := range []string{"", "0", "0ms", "-1ms", "near"} {
		_, err := site.ParseLink(name)
		leasetest.Fails(t, name, err)
	}
}

// TestDurable proves that a server that keeps commits in memory is called that.
func TestDurable(t *testing.T) {
	t.Parallel()
	type settings = []site.Setting
	flush := func(value string) site.Setting {
		return site.Setting{Name: "innodb_flush_log_at_trx_commit", Value: value}
	}
	log, sync := site.Setting{Name: "log_bin", Value: "ON"}, site.Setting{Name: "sync_binlog", Value: "0"}
	for _, c := range []struct {
		settings settings
		want     bool
	}{
		{settings{flush("1")}, true},
		{settings{flush("2")}, false},
		{settings{flush("1"), sync}, true},
		{settings{flush("1"), sync, log}, false},
	} {
		leasetest.Equal(t, fmt.Sprint(c.settings, ": durable"), (&site.Server{Settings: c.settings}).Durable(), c.want)
	}
	if !(&site.Redis{Settings: settings{{Name: "appendonly", Value: "yes"}, {Name: "appendfsync", Value: "always"}}}).Durable() ||
		(&site.Redis{Settings: settings{{Name: "appendonly", Value: "yes"}, {Name: "appendfsync", Value: "everysec"}}}).Durable() {
		t.Error("what is durable is not called that, or what isn't is")
	}
}

// TestDatabase proves that a database has what contenders need, that rows are copied, and
// that links count what goes through them.
func TestDatabase(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		name := map[testdb.Engine]string{testdb.MariaDB: "MariaDB", testdb.MySQL: "MySQL"}[engine]
		server, err := site.Connect(t.Context(), name, testdb.Shared(t, engine).Config().FormatDSN())
		must(t, err)
		if server.Version == "" || len(server.Settings) < 5 {
			t.Errorf("%s: version %q, settings %v", engine, server.Version, server.Settings)
		}
		d, err := server.NewDatabase(t.Context(), 20, false)
		must(t, err)
		t.Cleanup(func() { must(t, d.Drop()) })
		count := func(table string) (n int) {
			must(t, d.Pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n))
			return n
		}
		leasetest.Equal(t, fmt.Sprint(engine, ": the rows of the stock"), count(contender.Stock), 20)
		if n := count("information_schema.routines WHERE routine_schema = DATABASE()"); engine == testdb.MySQL && n == 0 {
			t.Errorf("%s: no procedures, and so a round trip more for each lock", engine)
		}

		link, err := site.NewLink(server, nil, 0)
		must(t, err)
		t.Cleanup(func() { must(t, link.Close()) })
		m, err := contender.ByName(contender.BareUpsert)
		must(t, err)
		bare, err := m.OpenTransactor(t.Context(), link.Counted(d, 1, 1))
		must(t, err)
		before := link.Counts()
		must(t, bare.Transact(t.Context(), []int64{1}, func(contender.Tx) error { return nil }))
		if counts := link.Counts().Minus(before); counts.Trips != 3 || counts.Commands != 3 || counts.Answering <= 0 { // BEGIN, upsert, COMMIT
			t.Errorf("%s: %+v of one transaction", engine, counts)
		}
		must(t, bare.Close())
		must(t, d.CopyRows(t.Context(), m.Table, m.Column, 10_010))
		leasetest.Equal(t, fmt.Sprint(engine, ": rows"), count(m.Table), 10_010)
		if bytes, err := d.TableBytes(t.Context(), m.Table); bytes < 10_010*30 || err != nil {
			t.Errorf("%s: the table has %d bytes, %v", engine, bytes, err)
		}
	}
}
