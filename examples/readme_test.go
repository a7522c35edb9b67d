// Package examples holds the programs below it, and the test that the code in the
// README and in docs is compiled code.
package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

var check, wants = testdb.Must, testdb.Wants

// compiledCode is where the Go code of the README and of docs comes from.
var compiledCode = []string{
	"../locksqlc/example_test.go", "../lockgorm/example_test.go", "../txlock/lease/example_test.go", "../txlock/namespace_test.go",
	"../txlock/quorum/example_test.go", "../txlock/job/example_test.go", "../txlock/elect/example_test.go", "../lockhttp/example_test.go",
	"../contrib/gocron/example_test.go", "../contrib/cron/example_test.go",
	"../contrib/recipes/asynq_test.go", "../contrib/recipes/river_test.go", "../contrib/recipes/sales_test.go",
	"wired/wired_test.go", "wired/locks.go", "../contrib/recipes/probes_test.go", "../tests/managed_test.go",
	"stocktest/stock.go", "stocktest/kit_test.go", "../txlock/locktest/example_test.go", "metrics/service.go", "migrate/migrate.go",
}

// files are what the README and the quickstart make: a block that begins with file= is one.
const files = "start"

// shown are the pages that have them.
var shown = []string{"../README.md", "../docs/quickstart.md"}

var goBlock = regexp.MustCompile("(?s)```go( file=\\S+| part)?\n(.*?)```")

// TestReadmeCodeIsCompiled finds every Go block of the README and of docs in these files, white space apart.
func TestReadmeCodeIsCompiled(t *testing.T) {
	space := regexp.MustCompile(`\s+`)
	compiled := ""
	for _, file := range compiledCode {
		compiled += space.ReplaceAllString(read(t, file), " ")
	}
	pages := []string{"../README.md"}
	for _, pattern := range []string{"../docs/*.md", "../docs/*/*.md"} {
		found := testdb.Got(filepath.Glob(pattern))(t)
		pages = append(pages, found...)
	}
	blocks := 0
	for _, page := range pages {
		if strings.Contains(page, "/tutorials/") {
			continue
		}
		for _, block := range goBlock.FindAllStringSubmatch(read(t, page), -1) {
			blocks++
			if block[1] != "" {
				continue // TestReadmeIsItsFiles, and tests/doctest for a part
			}
			for piece := range strings.SplitSeq(block[2], "\n\n") {
				want := strings.TrimSpace(space.ReplaceAllString(piece, " "))
				testdb.ErrorIf(t, !strings.Contains(compiled, want), "%s: not in any of the files:\n%s", page, piece)
			}
		}
	}
	testdb.FatalIf(t, blocks == 0, "there is no Go code")
}

var fileBlock = regexp.MustCompile("(?s)```\\w+ file=(\\S+)\n(.*?)```")

// TestReadmeIsItsFiles compares the programs of the README and the quickstart with the files that TestStart runs.
func TestReadmeIsItsFiles(t *testing.T) {
	texts := map[string]string{}
	for _, page := range shown {
		for _, block := range fileBlock.FindAllStringSubmatch(read(t, page), -1) {
			texts[block[1]] = block[2]
			testdb.ErrorIf(t, read(t, filepath.Join(files, block[1])) != block[2], "%s has another text than %s", page, filepath.Join(files, block[1]))
		}
	}
	programs, err := filepath.Glob(filepath.Join(files, "*", "main.go"))
	testdb.FatalIf(t, err != nil || len(programs) == 0, "%d programs, %v", len(programs), err)
	for _, program := range programs {
		name, _ := filepath.Rel(files, program)
		testdb.ErrorIf(t, texts[filepath.ToSlash(name)] == "", "none of %v shows %s", shown, program)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text := testdb.Got(os.ReadFile(file))(t)
	return string(text)
}

func TestMain(m *testing.M) { testdb.Main(m) }

// TestStart builds the programs of the README and runs each on each server.
func TestStart(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", bin+string(filepath.Separator), "./...")
	build.Dir = files
	build.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		dsn := testdb.Fresh(t, engine).AdminDSN(func(c *mysql.Config) { c.Params = nil })
		for program, want := range map[string]string{
			"sql": "^account 7 has 10 more\n$", "gorm": "^sold one of product 7\n$", "sqlc": "^order 42 is paid, once\n$",
			"job": `^report for \d\d:\d\d:\d\d\n`,
		} {
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, program))
			cmd.Env = append(os.Environ(), "SHOP_DSN="+dsn)
			out, err := cmd.CombinedOutput()
			testdb.ErrorIf(t, err != nil || !regexp.MustCompile(want).Match(out), "%s: %v, it prints\n%s\nwant %s", program, err, out, want)
		}
	})
}

// TestGrants runs the GRANTs of docs/how-to/install.md, which are all that a program needs.
func TestGrants(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?s)```sql\n(.*?)```").FindStringSubmatch(read(t, "../docs/how-to/install.md"))
	testdb.FatalIf(t, block == nil, "the page has no GRANT")
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Fresh(t, engine)
		check(t, schema.Install(t.Context(), db.Admin()))
		for line := range strings.Lines(block[1]) {
			grant, _, _ := strings.Cut(line, ";")
			for _, host := range []string{"%", "localhost"} {
				db.Exec(t, strings.NewReplacer("shop.", db.Name()+".", "'app'@'%'", "'"+db.Config().User+"'@'"+host+"'").Replace(grant))
			}
		}
		wants(t, "a user with these GRANTs", schema.Check(t.Context(), leasetest.Pool(t, db, true)), nil)
	})
}
