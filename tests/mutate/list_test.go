package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/test/leasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var check = leasetest.Must

// TestMutationsApply proves that the lists have not gone stale: every text occurs once in
// its file, and every test is there. It is too little if a mutation compiles.
func TestMutationsApply(t *testing.T) {
	t.Parallel()
	const root = "../.."
	list, err := readLists("mutations")
	check(t, err)
	if len(list) < 400 {
		t.Errorf("there are %d mutations", len(list))
	}
	decisions, tests := make(map[string]*mutation), make(map[string]map[string]bool)
	for _, m := range list {
		if other := decisions[m.decision]; other != nil {
			t.Errorf("%v and %v break the same decision: %s", other, m, m.decision)
		}
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
		if name, _, _ := strings.Cut(m.test, "/"); m.equivalent == "" && !tests[m.dir][name] {
			t.Errorf("%v: package %s has no test %s", m, m.dir, m.test)
		}
	}
}

var declared = regexp.MustCompile(`(?m)^func (\w+)\(`)

// functions returns the names of the functions in the test files of a directory.
func functions(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	check(t, err)
	names := make(map[string]bool)
	for _, file := range files {
		source, err := os.ReadFile(file)
		check(t, err)
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
	if err != nil || len(list) != 2 {
		t.Fatalf("%d mutations, %v", len(list), err)
	}
	want := mutation{
		area: "area", line: 1, decision: "One.", file: "a/b.go", decl: "T.m", text: "old", wrong: "new",
		dir: "a", test: "TestOne/x", engines: []string{"mariadb", "mysql"},
	}
	if got := *list[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("the first is %+v, want %+v", got, want)
	}
	if got := list[1]; got.text != "\told\n\ttext" || got.wrong != "" || got.equivalent != "it is the same" || got.place() != "c.sql" {
		t.Errorf("the second is %+v", got)
	}
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
		leasetest.Fails(t, bad, err)
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const source = "package p\n\nconst A = 1\n\ntype T[X any] struct{}\n\nfunc (t *T[X]) m() int { return 1 }\n\nfunc m() int { return 1 }\n"
	check(t, os.WriteFile(filepath.Join(root, "p.go"), []byte(source), 0o600))
	for decl, want := range map[string]string{
		"A":   strings.Replace(source, "1", "2", 1),
		"T.m": strings.Replace(source, "{ return 1 }\n\n", "{ return 2 }\n\n", 1),
		"m":   strings.TrimSuffix(source, "1 }\n") + "2 }\n",
	} {
		m := mutation{file: "p.go", decl: decl, text: "1", wrong: "2"}
		if got, err := m.apply(root); got != want || err != nil {
			t.Errorf("%s: %q, %v", decl, got, err)
		}
	}
	for decl, text := range map[string]string{"": "1", "A": "3", "B": "1"} {
		m := mutation{file: "p.go", decl: decl, text: text, wrong: "2"}
		if got, err := m.apply(root); err == nil {
			t.Errorf("%q in %q gives %q", text, decl, got)
		}
	}
}

func TestPatterns(t *testing.T) {
	t.Parallel()
	leasetest.Equal(t, "the pattern of a subtest", pattern("TestA/b/c"), "^TestA$/^b$/^c$")
	leasetest.Equal(t, "the patterns", strings.Join(together([]string{"TestA", "TestB/c", "TestD"}), " "), "^TestB$/^c$ ^(TestA|TestD)$")
	const out = "--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/x (0.1s)\n--- PASS: TestB (0s)\n"
	leasetest.Equal(t, "what has failed", strings.Join(names(out, "FAIL"), " "), "TestA")
}

// TestBeside proves that a function asks for its mutants, whatever names its parameters have.
func TestBeside(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const source = "package p\n\ntype T[X any] struct{}\n\nfunc (T[X]) m(_ int, s ...string) (n int) { return 1 }\n\nfunc f[X any](int, X) { _ = 1 }\n"
	check(t, os.WriteFile(filepath.Join(root, "p.go"), []byte(source), 0o600))
	of := func(line int, decl, wrong string) *mutation {
		return &mutation{area: "a", line: line, file: "p.go", decl: decl, text: "1", wrong: wrong}
	}
	list := []*mutation{of(1, "T.m", "2"), of(2, "T.m", "3"), of(3, "f", "4"), of(4, "T", "5")}
	list[3].text = "any"
	files, err := beside(root, list)
	check(t, err)
	const want = "package p\n\ntype T[X any] struct{}\n\n" +
		"func (lockstepArg0 T[X]) m(lockstepArg1 int, s ...string) (n int) {\n" +
		"\tif lockstepMutation == \"a.txt:1\" {\n\t\treturn lockstepArg0.m_a_1(lockstepArg1, s...)\n\t}\n" +
		"\n\tif lockstepMutation == \"a.txt:2\" {\n\t\treturn lockstepArg0.m_a_2(lockstepArg1, s...)\n\t}\n return 1 }\n\n" +
		"func (T[X]) m_a_1(_ int, s ...string) (n int) { return 2 }\n\n" +
		"func (T[X]) m_a_2(_ int, s ...string) (n int) { return 3 }\n\n" +
		"func f[X any](lockstepArg0 int, lockstepArg1 X) {\n" +
		"\tif lockstepMutation == \"a.txt:3\" {\n\t\tf_a_3[X](lockstepArg0, lockstepArg1)\n\t\treturn\n\t}\n _ = 1 }\n\n" +
		"func f_a_3[X any](int, X) { _ = 4 }\n"
	if got := files["p.go"]; got != want {
		t.Errorf("the file is\n%s\nwant\n%s", got, want)
	}
	if !parses(files["p.go"]) {
		t.Errorf("it can't be parsed:\n%s", files["p.go"])
	}
	if !strings.HasPrefix(files["lockstep_mutation.go"], "package p\n") || len(files) != 2 {
		t.Errorf("the files are %v", files)
	}
	for _, m := range list {
		leasetest.Equal(t, fmt.Sprint(m, " is chosen"), m.chosen(), m.decl != "T")
	}
}

// TestEmbedded proves that a file which a package embeds is read with its mutants.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const sql = "-- two\n\nCREATE TABLE a (\n  id INT\n);\n\nCREATE TABLE ab (\n  id INT\n);\n"
	for name, text := range map[string]string{"p/p.go": "package p\n\nimport \"embed\"\n\n//go:embed d/*.sql\nvar FS embed.FS\n", "p/d/t.sql": sql} {
		file := filepath.Join(root, filepath.FromSlash(name))
		check(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)))
	}
	list := []*mutation{
		{area: "a", line: 1, file: "p/d/t.sql", decl: "a", text: "INT", wrong: "BIGINT"},
		{area: "a", line: 2, file: "p/d/t.sql", decl: "ab", text: "INT", wrong: "BIGINT"},
	}
	files, err := choices(root, list)
	check(t, err)
	if len(files) != 2 || !strings.HasSuffix(files["p/p.go"], "var lockstepEmbedded embed.FS\n\nvar FS = lockstepFS{lockstepEmbedded}\n") {
		t.Errorf("the files are %v", files)
	}
	added := files["p/lockstep_mutation_fs.go"]
	for i, m := range list {
		changed, err := m.apply(root)
		if err != nil || strings.Index(changed, "BIGINT") < strings.Index(changed, m.decl+" (") || strings.Count(changed, "BIGINT") != 1 {
			t.Errorf("%v: %q, %v", m, changed, err)
		}
		if want := fmt.Sprintf("case \"a.txt:%d d/t.sql\":\n\t\treturn []byte(%q), nil", i+1, changed); !m.chosen() || !parses(added) || !strings.Contains(added, want) {
			t.Errorf("%v isn't in\n%s", m, added)
		}
	}
	for file, decl := range map[string]string{"p/d/t.sql": "c", "t.sql": ""} {
		m := &mutation{file: file, decl: decl, text: "INT", wrong: "BIGINT"}
		if files, err := choices(root, []*mutation{m}); err == nil {
			t.Errorf("%s: %v", m.place(), files)
		}
	}
}
