package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dca00107/lockstep/bench/crowd"
	"github.com/dca00107/lockstep/bench/scenario"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

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
		testdb.Fails(t, fmt.Sprintf("parse(%q)", c.args), err, c.want)
	}
}

// TestRun proves that every contender that needs no Redis runs in every scenario, and
// that the page has what was measured.
func TestRun(t *testing.T) {
	testdb.NeedsServer(t)
	for _, engine := range testdb.Engines() {
		page := runs(t, engine, "-scenarios=a,b,d,e,f,g", "-contenders=no lock,bare,lockstep,for update,get_lock,shedlock,spring,gocron")
		testdb.Says(t, "the page of "+string(engine), page,
			"innodb_flush_log_at_trx_commit", "Left out by CONTENDERS: redislock 100 ms", "## (a)", "## (g)",
			"| lockstep Run |", "| lockstep lease |", "| 16 workers | no lock |", "| lockstep 16 segments |", "100 keys", "100 leases",
			"](bench/a-time-"+string(engine)+".svg)", "](bench/f.csv)",
		)
		page = runs(t, engine, "-scenarios=c", "-contenders=lockstep run,spring") // the processes take long to start
		testdb.Says(t, "the page of "+string(engine), page,
			"| 8 workers | lockstep Run |", "64 workers", "load of waiting", "](bench/c-hand-over-"+string(engine)+".svg)")
	}
}

// runs measures as little as can be, and returns the page.
func runs(t *testing.T, engine testdb.Engine, args ...string) string {
	t.Helper()
	o, dir := least(t, engine, args...)
	err := o.run(t.Context())
	testdb.FatalIf(t, err != nil, "%s: %v", engine, err)
	return read(t, dir)
}

// least are options that measure as little as can be, and the directory of the page.
func least(t *testing.T, engine testdb.Engine, args ...string) (o *options, dir string) {
	t.Helper()
	dir = t.TempDir()
	o = testdb.Got(parse(append(args, "-quick", "-out", dir),
		environment("LOCKSTEP_ENGINES", string(engine), engine.DSNVariable(), testdb.Shared(t, engine).Config().FormatDSN())))(t)
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
	return string(testdb.Got(os.ReadFile(filepath.Join(dir, "bench.md")))(t))
}
