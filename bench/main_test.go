package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/bench/crowd"
	"github.com/dca00107/lockstep/bench/scenario"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

var must = leasetest.Must

func TestMain(m *testing.M) {
	if os.Getenv(crowd.Variable) != "" {
		crowd.Main()
		return
	}
	testdb.Main(m)
}

// environment has both servers, but for what is changed: name and value in turn.
func environment(changed ...string) func(string) string {
	env := map[string]string{"LOCKSTEP_MARIADB_DSN": "a@tcp(192.0.2.1)/", "LOCKSTEP_MYSQL_DSN": "b@tcp(192.0.2.2)/"}
	for i := 0; i < len(changed); i += 2 {
		env[changed[i]] = changed[i+1]
	}
	return func(name string) string { return env[name] }
}

// TestOptions proves what is measured where nothing is said, and what narrows it.
func TestOptions(t *testing.T) {
	t.Parallel()
	o, err := parse(nil, environment())
	must(t, err)
	if len(o.scenarios) != 8 || len(o.links) != 3 || len(o.dsns) != 2 || !o.needsRedis() || len(o.leftOut()) != 0 || o.effort.Rounds != scenario.Whole.Rounds {
		t.Errorf("by default: %+v", o)
	}
	if o, err = parse([]string{"-quick", "-scenarios=g, a", "-contenders=Lockstep,for update", "-links=1ms", "-rounds=2"}, environment("LOCKSTEP_ENGINES", "mysql")); err != nil {
		t.Fatal(err)
	}
	if len(o.scenarios) != 2 || o.scenarios[0].Letter != "a" || o.scenarios[1].Letter != "g" {
		t.Errorf("scenarios %v", o.scenarios)
	}
	if len(o.links) != 1 || o.links[0] != time.Millisecond || len(o.linksOf(o.scenarios[1])) != 1 || o.effort.Rounds != 2 {
		t.Errorf("links %v, %d rounds", o.links, o.effort.Rounds)
	}
	if !o.wants("lockstep 4 segments") || !o.wants("FOR UPDATE") || o.wants("GET_LOCK") || o.needsRedis() || len(o.dsns) != 1 {
		t.Errorf("contenders %v, servers %v", o.contenders, o.dsns)
	}
	if left := strings.Join(o.leftOut(), " "); !strings.Contains(left, "GET_LOCK") || strings.Contains(left, "lockstep") {
		t.Errorf("left out: %s", left)
	}
	if o, err = parse([]string{"-quick"}, environment()); err != nil || len(o.linksOf(o.scenarios[0])) != 3 || len(o.linksOf(o.scenarios[1])) != 1 {
		t.Errorf("a quick run: %v, %v", o, err)
	}
}

// TestWrongOptions proves that nothing is left out silently.
func TestWrongOptions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		env  func(string) string
		want string
	}{
		{nil, environment("LOCKSTEP_MYSQL_DSN", ""), "LOCKSTEP_MYSQL_DSN"},
		{nil, environment("LOCKSTEP_ENGINES", "mariadb,oracle"), "oracle"},
		{[]string{"-contenders=lockstep,zookeeper"}, environment(), "zookeeper"},
		{[]string{"-scenarios=a,z"}, environment(), `"z"`},
		{[]string{"-links=far"}, environment(), "far"},
		{[]string{"-links=-1ms"}, environment(), "-1ms"},
		{[]string{"quick"}, environment(), "quick"},
	} {
		_, err := parse(c.args, c.env)
		leasetest.Fails(t, fmt.Sprintf("parse(%q)", c.args), err, c.want)
	}
}

// TestRun proves that every contender that needs no Redis runs in every scenario, and
// that the page has what was measured.
func TestRun(t *testing.T) {
	testdb.NeedsServer(t)
	for _, engine := range testdb.Engines() {
		page := runs(t, engine, "-scenarios=a,b,d,e,f,g", "-contenders=no lock,bare,lockstep,for update,get_lock,shedlock,spring,gocron")
		leasetest.Says(t, "the page of "+string(engine), page,
			"innodb_flush_log_at_trx_commit", "Left out by CONTENDERS: redislock 100 ms", "## (a)", "## (g)",
			"| lockstep Run |", "| lockstep lease |", "| 16 workers | no lock |", "| lockstep 16 segments |", "100 keys", "100 leases",
			"](bench/a-time-"+string(engine)+".svg)", "](bench/f.csv)",
		)
		page = runs(t, engine, "-scenarios=c", "-contenders=lockstep run,spring") // the processes take long to start
		leasetest.Says(t, "the page of "+string(engine), page,
			"| 8 workers | lockstep Run |", "64 workers", "load of waiting", "](bench/c-hand-over-"+string(engine)+".svg)")
	}
}

// TestFailure proves that a scenario that fails costs the figures of no other, and is named.
func TestFailure(t *testing.T) {
	testdb.NeedsServer(t)
	engine := testdb.Engines()[0]
	wrong := errors.New("a contender\nis wrong")
	o, dir := least(t, engine, "-scenarios=a,f", "-contenders=lockstep run")
	o.scenarios[0].Run = func(context.Context, *scenario.Ground) error { return wrong }
	if err := o.run(t.Context()); !errors.Is(err, wrong) || !strings.Contains(err.Error(), "(a) on") {
		t.Errorf("the error is %v", err)
	}
	page := read(t, dir)
	leasetest.Says(t, "the page", page, "Not measured to its end: `(a) on ", "loopback: a contender; is wrong`", "## (f)", "| lockstep Run |")
}

// TestKept proves that a run of some scenarios leaves those of others on the page, in their
// order.
func TestKept(t *testing.T) {
	testdb.NeedsServer(t)
	engine := testdb.Engines()[0]
	o, dir := least(t, engine, "-scenarios=a,g", "-contenders=lockstep run")
	must(t, o.run(t.Context()))
	before := read(t, dir)
	o.scenarios = slices.DeleteFunc(o.scenarios, func(s scenario.Scenario) bool { return s.Letter == "g" })
	o.scenarios[0].Title = "measured again"
	must(t, o.run(t.Context()))
	after := read(t, dir)
	section := func(page, letter string) string {
		_, begun, _ := strings.Cut(page, "\n## ("+letter+") ")
		text, _, _ := strings.Cut(begun, "\n## (")
		return strings.TrimSpace(text)
	}
	if kept := section(after, "g"); kept == "" || kept != section(before, "g") {
		t.Errorf("the page has become\n%s\nand was\n%s", after, before)
	}
	if !strings.HasPrefix(section(after, "a"), "measured again") || strings.Count(after, "\n## (") != 2 || strings.Index(after, "## (a)") > strings.Index(after, "## (g)") {
		t.Errorf("the page is\n%s", after)
	}
	o.quick = false
	must(t, o.run(t.Context()))
	if after := read(t, dir); strings.Contains(after, "## (g)") {
		t.Errorf("a whole run keeps what a quick one has measured:\n%s", after)
	}
}

// runs measures as little as can be, and returns the page.
func runs(t *testing.T, engine testdb.Engine, args ...string) string {
	t.Helper()
	o, dir := least(t, engine, args...)
	if err := o.run(t.Context()); err != nil {
		t.Fatalf("%s: %v", engine, err)
	}
	return read(t, dir)
}

// least are options that measure as little as can be, and the directory of the page.
func least(t *testing.T, engine testdb.Engine, args ...string) (o *options, dir string) {
	t.Helper()
	dir = t.TempDir()
	o, err := parse(append(args, "-quick", "-out", dir),
		environment("LOCKSTEP_ENGINES", string(engine), engine.DSNVariable(), testdb.Shared(t, engine).Config().FormatDSN()))
	must(t, err)
	o.links = o.links[:1]
	o.effort = scenario.Effort{
		Rounds: 1, Operations: 2, Slice: 10 * time.Millisecond,
		HotRounds: 1, HotSlice: 300 * time.Millisecond, Waiters: 4, Waiting: 10 * time.Millisecond, Processes: 2,
		Sizes: []int64{10, 100}, Held: []int64{10, 100}, HeldRounds: 1, RenewEvery: 100 * time.Millisecond,
	}
	return o, dir
}

func read(t *testing.T, dir string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(dir, "bench.md"))
	must(t, err)
	return string(page)
}
