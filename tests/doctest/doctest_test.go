package doctest

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// freePorts returns pairs for Reader.Instead: addresses of a document, and free ones.
func freePorts(t *testing.T, ports ...int) []string {
	t.Helper()
	var pairs []string
	for _, port := range ports {
		l := testdb.Got(net.Listen("tcp", "localhost:0"))(t)
		defer l.Close() // after all have been chosen
		pairs = append(pairs, fmt.Sprintf("localhost:%d", port), l.Addr().String())
	}
	return pairs
}

// What doesn't come true is noticed.
func TestDo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"'''console\n$ false\n'''\n":                   "$ false\nends with exit status 1",
		"'''console fails\n$ true\n'''\n":              "should fail",
		"'''console fails\n$ false\n$ false\n'''\n":    "ends with exit status 1",
		"'''console\n$ echo one\ntwo\n'''\n":           "prints\none\nin place of\ntwo",
		"'''console\n$ echo one; echo two\none\n'''\n": "prints\none\ntwo\nin place of\none",
		"'''console\n$ exit 1\n'''\n":                  "the shell has ended",
		"'''console\n$ if\n'''\n":                      "ends with",
		"'''console installs\n$ false\n'''\n":          "ends with exit status 1",
	} {
		blocks := testdb.Got(parse(strings.ReplaceAll(text, "'''", "```")))(t)
		var r Reader
		testdb.Fails(t, text, r.do(t, r.open(t, t.TempDir()), blocks[0]), want)
	}
}

const checkout = "../.."

var update = flag.Bool("update", false, "write the examples that tutorials make")

func TestMain(m *testing.M) { testdb.Main(m) }

var tutorials = []struct {
	document, variable string
	database           string // as the document has it
	example            string // what it makes, if that is in the repository
}{
	{"docs/tutorials/sqlc.md", "SHOP_DSN", "root:secret@tcp(127.0.0.1:3306)/shop", "examples/sqlcorders"},
	{"docs/tutorials/gorm.md", "BANK_DSN", "root:secret@tcp(127.0.0.1:3306)/bank", ""},
	{"docs/tutorials/jobs.md", "OFFICE_DSN", "root:secret@tcp(127.0.0.1:3306)/office", ""},
}

// TestTutorials follows each tutorial on one server, and runs the tests that it has written
// on the other one, too. LOCKSTEP_LONG follows each on both.
func TestTutorials(t *testing.T) {
	t.Parallel()
	engines := testdb.Engines()
	for i, tutorial := range tutorials {
		for j, engine := range testdb.Long([]testdb.Engine{engines[i%len(engines)]}, engines) {
			t.Run(filepath.Base(tutorial.document)+"/"+string(engine), func(t *testing.T) {
				t.Parallel()
				instead := append(freePorts(t, 8081, 8082, 8083, 8084), tutorial.database, database(t, engine))
				env := Released(t, checkout, ".", "txlock/locktest", "lockgorm", "cmd/lockgen", "cmd/lockvet")
				r := Reader{Env: env, Instead: instead}
				dir := r.Follow(t, filepath.Join(checkout, tutorial.document))
				for _, other := range engines {
					if other != engine {
						testOn(t, dir, env, tutorial.variable+"="+database(t, other))
					}
				}
				if tutorial.example != "" && j == 0 {
					compare(t, dir, filepath.Join(checkout, tutorial.example))
				}
			})
		}
	}
}

// database returns the data source name of an empty database for its administrator, as the
// reader of a tutorial is one.
func database(t *testing.T, engine testdb.Engine) string {
	t.Helper()
	return testdb.Fresh(t, engine).AdminDSN(func(c *mysql.Config) { c.Params = nil })
}

// testOn runs the tests that a tutorial has written.
func testOn(t *testing.T, dir string, env []string, dsn string) {
	t.Helper()
	cmd := exec.Command("go", "test", "-count=1", ".")
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), env...), dsn)
	out, err := cmd.CombinedOutput()
	testdb.ErrorIf(t, err != nil, "go test: %v\n%s", err, out)
}

// compare compares what a tutorial has made with the example in the repository, whose go.mod
// finds lockstep beside it.
func compare(t *testing.T, made, example string) {
	t.Helper()
	want, have := files(t, made), files(t, example)
	for name, text := range want {
		if *update {
			path := filepath.Join(example, name)
			check(t, os.MkdirAll(filepath.Dir(path), 0o755))
			check(t, os.WriteFile(path, text, 0o644))
		} else if !bytes.Equal(text, have[name]) {
			t.Errorf("%s is not what the tutorial makes: run go test -run TestTutorials ./doctest -update", filepath.Join(example, name))
		}
	}
	for name := range have {
		_, ok := want[name]
		testdb.ErrorIf(t, !ok, "%s is in no tutorial: remove it", filepath.Join(example, name))
	}
}

// files returns the files of a program that are written or generated.
func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !slices.Contains([]string{".go", ".sql", ".yaml"}, filepath.Ext(name)) {
			return err
		}
		files[name], err = os.ReadFile(filepath.Join(dir, name))
		return err
	})
	check(t, err)
	return files
}

// TestPins compares the versions of tools in the tutorials with those of the Makefile.
func TestPins(t *testing.T) {
	t.Parallel()
	makefile := testdb.Got(os.ReadFile(filepath.Join(checkout, "Makefile")))(t)
	for _, tutorial := range tutorials {
		text := testdb.Got(os.ReadFile(filepath.Join(checkout, tutorial.document)))(t)
		blocks, err := parse(string(text))
		testdb.Wants(t, tutorial.document, err, nil)
		for _, b := range blocks {
			for word := range strings.FieldsSeq(b.text) {
				testdb.ErrorIf(t, b.has("installs") && strings.Contains(word, "@") && !strings.Contains(string(makefile), word),
					"%s:%d: the Makefile has another version than %s", tutorial.document, b.line, word)
			}
		}
	}
}

// patience is what a newcomer has, from an empty directory to the first lock.
const patience = 5 * time.Minute

// TestNewcomer follows the README and the quickstart, in English with a checkout and in Chinese with a release (LOCKSTEP_LONG
// tries all), and measures the time to the first lock, on a busy machine the processor time of the commands. With
// LOCKSTEP_BARE the machine has no module and no compiled package, as that of a newcomer.
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
	root := testdb.Got(filepath.Abs(checkout))(t)
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
	testdb.ErrorIf(t, first == 0 || min(first, busy) > patience, "the first lock after %v, want at most %v", first, patience)
	compare(t, dir, filepath.Join(root, "examples/start"))
}

// processorTime returns that of all commands which a shell has run.
func processorTime(t *testing.T, run func(command string) (string, error)) (sum time.Duration) {
	t.Helper()
	printed := testdb.Got(run("times"))(t) // of the shell, and below that of its children
	for each := range strings.FieldsSeq(printed) {
		d, err := time.ParseDuration(each)
		testdb.FatalIf(t, err != nil, "times prints %q: %v", printed, err)
		sum += d
	}
	return sum
}
