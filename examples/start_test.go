package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
)

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
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			dsn := testdb.Fresh(t, engine).AdminDSN(func(c *mysql.Config) { c.Params = nil })
			for program, want := range map[string]string{
				"sql": "^account 7 has 10 more\n$", "gorm": "^sold one of product 7\n$", "sqlc": "^order 42 is paid, once\n$",
				"job": `^report for \d\d:\d\d:\d\d\n`,
			} {
				cmd := exec.CommandContext(t.Context(), filepath.Join(bin, program))
				cmd.Env = append(os.Environ(), "SHOP_DSN="+dsn)
				out, err := cmd.CombinedOutput()
				if err != nil || !regexp.MustCompile(want).Match(out) {
					t.Errorf("%s: %v, it prints\n%s\nwant %s", program, err, out, want)
				}
			}
		})
	}
}

// TestGrants runs the GRANTs of docs/how-to/install.md, which are all that a program
// needs.
func TestGrants(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?s)```sql\n(.*?)```").FindStringSubmatch(read(t, "../docs/how-to/install.md"))
	if block == nil {
		t.Fatal("the page has no GRANT")
	}
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Fresh(t, engine)
			if err := schema.Install(t.Context(), db.Admin()); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(block[1]) {
				grant, _, _ := strings.Cut(line, ";")
				for _, host := range []string{"%", "localhost"} {
					db.Exec(t, strings.NewReplacer("shop.", db.Name()+".", "'app'@'%'", "'"+db.Config().User+"'@'"+host+"'").Replace(grant))
				}
			}
			pool, err := locksqlc.Open(db.DSN())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = pool.Close() })
			if err := schema.Check(t.Context(), pool); err != nil {
				t.Errorf("a user with these GRANTs: %v", err)
			}
		})
	}
}
