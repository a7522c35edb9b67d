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
// no compiled package, as that of a newcomer; the download of modules from this machine is
// faster than theirs. LOCKSTEP_LONG follows each on both.
func TestNewcomer(t *testing.T) {
	engines := testdb.Engines()
	for i, document := range []string{"README.md", "README.zh-CN.md"} {
		for j, engine := range testdb.Long([]testdb.Engine{engines[i%len(engines)]}, engines) {
			t.Run(document+"/"+string(engine), func(t *testing.T) {
				env := Released(t, checkout, ".")
				if os.Getenv("LOCKSTEP_BARE") != "" {
					env = append(env, "GOMODCACHE="+t.TempDir(), "GOCACHE="+t.TempDir())
				}
				began, first := time.Now(), time.Duration(0)
				r := Reader{Env: env, Instead: []string{"root:secret@tcp(127.0.0.1:3306)/shop", database(t, engine)}}
				r.Ran = func(command string) {
					if first == 0 && strings.HasPrefix(command, "go run ") {
						first = time.Since(began)
					}
				}
				dir := r.Follow(t, filepath.Join(checkout, document))
				t.Logf("%s on %s: the first lock after %v, all four programs after %v", document, engine, first.Round(time.Second), time.Since(began).Round(time.Second))
				if first == 0 || first > patience {
					t.Errorf("the first lock after %v, want at most %v", first, patience)
				}
				if j == 0 {
					compare(t, dir, filepath.Join(checkout, "examples/start"))
				}
			})
		}
	}
}
