package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMutationsApply proves that every text of the lists occurs once in its file, every test is there, and the files with all mutants can
// be parsed. Whether a mutation compiles only its run shows.
func TestMutationsApply(t *testing.T) {
	t.Parallel()
	const root = "../.."
	list := testdb.Got(readLists("mutations"))(t)
	testdb.ErrorIf(t, len(list) < 400, "there are %d mutations", len(list))
	decisions, tests := make(map[string]*mutation), make(map[string]map[string]bool)
	for _, m := range list {
		other := decisions[m.decision]
		testdb.ErrorIf(t, other != nil, "%v and %v break the same decision: %s", other, m, m.decision)
		decisions[m.decision] = m
		if changed, err := m.apply(root); err != nil {
			t.Errorf("%v: %v", m, err)
		} else if filepath.Ext(m.file) == ".go" && !parses(changed) {
			t.Errorf("%v: %s can't be parsed with it", m, m.file)
		}
		if tests[m.dir] == nil {
			tests[m.dir] = functions(t, filepath.Join(root, m.dir))
		}
		// Subtests aren't looked for.
		name, _, _ := strings.Cut(m.test, "/")
		testdb.ErrorIf(t, m.equivalent == "" && !tests[m.dir][name], "%v: package %s has no test %s", m, m.dir, m.test)
	}
	files := testdb.Got(choices(root, list))(t)
	for name, text := range files {
		testdb.ErrorIf(t, filepath.Ext(name) == ".go" && !parses(text), "%s can't be parsed with its mutants", name)
	}
	var chosen int
	for _, m := range list {
		if m.chosen() {
			chosen++
		}
	}
	testdb.ErrorIf(t, len(files) < 50 || chosen < len(list)/2, "%d files have mutants, and %d of %d mutations can be chosen", len(files), chosen, len(list))
}

var declared = regexp.MustCompile(`(?m)^func (\w+)\(`)

// functions returns the names of the functions in the test files of a directory.
func functions(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files := testdb.Got(filepath.Glob(filepath.Join(dir, "*_test.go")))(t)
	names := make(map[string]bool)
	for _, file := range files {
		source := testdb.Got(os.ReadFile(file))(t)
		for _, match := range declared.FindAllSubmatch(source, -1) {
			names[string(match[1])] = true
		}
	}
	return names
}

func TestReadList(t *testing.T) {
	t.Parallel()
	list, err := readList("area", `# One.
in a/b.go: T.m
by a TestOne/x on mariadb,mysql
-old
+new

# Two.
in c.sql
equivalent it is
equivalent the same
-	old
-	text
`)
	testdb.FatalIf(t, err != nil || len(list) != 2, "%d mutations, %v", len(list), err)
	want := mutation{
		area: "area", line: 1, decision: "One.", file: "a/b.go", decl: "T.m", text: "old", wrong: "new",
		dir: "a", test: "TestOne/x", engines: []string{"mariadb", "mysql"},
	}
	got := *list[0]
	testdb.ErrorIf(t, !reflect.DeepEqual(got, want), "the first is %+v, want %+v", got, want)
	second := list[1]
	testdb.ErrorIf(t, second.text != "\told\n\ttext" || second.wrong != "" || second.equivalent != "it is the same" || second.place() != "c.sql", "the second is %+v", second)
	for _, bad := range []string{
		"in a.go\n",
		"# x\nin a.go\nby a TestX\n",
		"# x\nin a.go\n-a\n+b\n",
		"# x\nin a.go\nby a TestX\nequivalent y\n-a\n+b\n",
		"# x\nin a.go\nby a BenchmarkX\n-a\n+b\n",
		"# x\nin a.go\nby a TestX on oracle\n-a\n+b\n",
		"# x\nin a.go\nby a TestX\n-a\n+a\n",
		"# x\nsomething else\n",
	} {
		_, err := readList("area", bad)
		testdb.Fails(t, bad, err)
	}
}

func TestPatterns(t *testing.T) {
	t.Parallel()
	testdb.Equal(t, "the pattern of a subtest", pattern("TestA/b/c"), "^TestA$/^b$/^c$")
	testdb.Equal(t, "the patterns", strings.Join(together([]string{"TestA", "TestB/c", "TestD"}), " "), "^TestB$/^c$ ^(TestA|TestD)$")
	const out = "--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/x (0.1s)\n--- PASS: TestB (0s)\n"
	testdb.Equal(t, "what has failed", strings.Join(names(out, "FAIL"), " "), "TestA")
}
