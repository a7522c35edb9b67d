package doctest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// patience is what a newcomer has, from an empty directory to the first lock.
const patience = 5 * time.Minute

// TestNewcomer follows the README and the quickstart, in English on the one server and in
// Chinese on the other, and measures the time to the first lock. One reader has a checkout and
// the other takes a release. With LOCKSTEP_BARE the machine has no module and no compiled
// package, as that of a newcomer. Where it does other things, too, what counts is the processor
// time of the commands: an idle one with a single processor takes as long. LOCKSTEP_LONG follows
// each on both, in both ways.
func TestNewcomer(t *testing.T) {
	engines := testdb.Engines()
	for i, documents := range [][]string{{"README.md", "docs/quickstart.md"}, {"README.zh-CN.md", "docs/zh-CN/quickstart.md"}} {
		for _, has := range testdb.Long([]bool{i == 0}, []bool{true, false}) {
			for _, engine := range testdb.Long([]testdb.Engine{engines[i%len(engines)]}, engines) {
				way := map[bool]string{true: "checkout", false: "release"}[has]
				t.Run(documents[0]+"/"+way+"/"+string(engine), func(t *testing.T) { newcomer(t, engine, has, documents) })
			}
		}
	}
}

// newcomer follows documents with a checkout or without one.
func newcomer(t *testing.T, engine testdb.Engine, has bool, documents []string) {
	t.Helper()
	root, err := filepath.Abs(checkout)
	check(t, err)
	r := Reader{Env: Released(t, root), Checkout: has, Instead: []string{
		"root:secret@tcp(127.0.0.1:3306)/shop", database(t, engine),
		"git clone https://github.com/dca00107/lockstep", "ln -s " + root, // as it is, committed or not
	}}
	if !has {
		r.Env = Released(t, root, ".", "txlock/locktest", "lockgorm")
	}
	if os.Getenv("LOCKSTEP_BARE") != "" {
		r.Env = append(r.Env, "GOMODCACHE="+t.TempDir(), "GOCACHE="+t.TempDir())
	}
	began, first, busy := time.Now(), time.Duration(0), time.Duration(0)
	r.Ran = func(command string, run func(string) (string, error)) {
		if first == 0 && strings.HasPrefix(command, "go run ") {
			first, busy = time.Since(began), processorTime(t, run)
		}
	}
	dir := r.Follow(t, filepath.Join(root, documents[0]), filepath.Join(root, documents[1]))
	t.Logf("the first lock after %v (%v of processors), all four programs after %v", first.Round(time.Second), busy.Round(time.Second), time.Since(began).Round(time.Second))
	if first == 0 || min(first, busy) > patience {
		t.Errorf("the first lock after %v, want at most %v", first, patience)
	}
	compare(t, dir, filepath.Join(root, "examples/start"))
}

// processorTime returns that of all commands which a shell has run.
func processorTime(t *testing.T, run func(command string) (string, error)) (sum time.Duration) {
	t.Helper()
	printed, err := run("times") // of the shell, and below that of its children
	check(t, err)
	for each := range strings.FieldsSeq(printed) {
		d, err := time.ParseDuration(each)
		if err != nil {
			t.Fatalf("times prints %q: %v", printed, err)
		}
		sum += d
	}
	return sum
}
