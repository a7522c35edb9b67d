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

// TestNewcomer follows the README, in English on the one server and in Chinese on the other,
// and measures the time to the first lock. With LOCKSTEP_BARE the machine has no module and
// no compiled package, as that of a newcomer. Where it does other things, too, what counts is
// the processor time of the commands: an idle one with a single processor takes as long.
// LOCKSTEP_LONG follows each on both.
func TestNewcomer(t *testing.T) {
	engines := testdb.Engines()
	for i, document := range []string{"README.md", "README.zh-CN.md"} {
		for j, engine := range testdb.Long([]testdb.Engine{engines[i%len(engines)]}, engines) {
			t.Run(document+"/"+string(engine), func(t *testing.T) {
				env := Released(t, checkout, ".", "lockgorm")
				if os.Getenv("LOCKSTEP_BARE") != "" {
					env = append(env, "GOMODCACHE="+t.TempDir(), "GOCACHE="+t.TempDir())
				}
				began, first, busy := time.Now(), time.Duration(0), time.Duration(0)
				r := Reader{Env: env, Instead: []string{"root:secret@tcp(127.0.0.1:3306)/shop", database(t, engine)}}
				r.Ran = func(command string, run func(string) (string, error)) {
					if first == 0 && strings.HasPrefix(command, "go run ") {
						first, busy = time.Since(began), processorTime(t, run)
					}
				}
				dir := r.Follow(t, filepath.Join(checkout, document))
				t.Logf("%s on %s: the first lock after %v (%v of processors), all four programs after %v", document, engine, first.Round(time.Second), busy.Round(time.Second), time.Since(began).Round(time.Second))
				if first == 0 || min(first, busy) > patience {
					t.Errorf("the first lock after %v, want at most %v", first, patience)
				}
				if j == 0 {
					compare(t, dir, filepath.Join(checkout, "examples/start"))
				}
			})
		}
	}
}

// processorTime returns that of all commands which a shell has run.
func processorTime(t *testing.T, run func(command string) (string, error)) (sum time.Duration) {
	t.Helper()
	printed, err := run("times") // of the shell, and below that of its children
	if err != nil {
		t.Fatal(err)
	}
	for each := range strings.FieldsSeq(printed) {
		d, err := time.ParseDuration(each)
		if err != nil {
			t.Fatalf("times prints %q: %v", printed, err)
		}
		sum += d
	}
	return sum
}
