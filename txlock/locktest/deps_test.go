package locktest_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestDependencies shows that a program which uses the stand-in compiles no mock, and that the
// stand-in itself has nothing to do with SQL.
func TestDependencies(t *testing.T) {
	t.Parallel()
	const module = "github.com/dca00107/lockstep/"
	list := func(args ...string) []string {
		out, err := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...).Output()
		must(t, err)
		return strings.Fields(string(out))
	}
	for _, dep := range list("-deps", ".") {
		if dep == module+"txlock/lockmock" || strings.Contains(strings.ToLower(dep), "sqlmock") {
			t.Errorf("locktest links %s", dep)
		}
	}
	direct := list("-f", `{{join .Imports "\n"}}`, ".")
	if !slices.Contains(direct, module+"txlock") {
		t.Errorf("locktest imports %q, which has no txlock", direct)
	}
	for _, unneeded := range []string{module + "gen", module + "internal/rawsql", module + "schema", "github.com/go-sql-driver/mysql"} {
		if slices.Contains(direct, unneeded) {
			t.Errorf("locktest imports %s", unneeded)
		}
	}
}
