// Package architecture checks that docs/architecture.md tells of the code as it is.
package architecture

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

const (
	root   = "../../../.."
	module = "github.com/dca00107/lockstep"
)

var must = testdb.Must

// TestPage proves that the page names what there is, and is short.
func TestPage(t *testing.T) {
	t.Parallel()
	page := testdb.Got(os.ReadFile(filepath.Join(root, "docs", "architecture.md")))(t)
	for _, wrong := range slices.Concat(wrongNames(string(page)), wrongTrips(string(page)), wrongFloors(string(page), importsOf(t))) {
		t.Error("docs/architecture.md: " + wrong)
	}
	n := len(regexp.MustCompile(`\S*\w\S*`).FindAllString(string(page), -1))
	testdb.ErrorIf(t, n > 1700, "docs/architecture.md has %d words; at most 1700 are read", n)
}

var reference = regexp.MustCompile("`([^` ]+\\.go): ([^`]+)`")

// wrongNames returns what is wrong with the names that a page gives as `file.go: Name`.
func wrongNames(page string) (wrong []string) {
	for i, line := range strings.Split(page, "\n") {
		for _, match := range reference.FindAllStringSubmatch(line, -1) {
			file, name := match[1], match[2]
			source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
			if err != nil {
				wrong = append(wrong, fmt.Sprintf("line %d names the file %s, which can't be read: %v", i+1, file, err))
			} else if !declares(string(source), name) {
				wrong = append(wrong, fmt.Sprintf("line %d names %s in %s, which has no such function, type, variable or constant", i+1, name, file))
			}
		}
	}
	return wrong
}

// declares reports whether a file declares a function, a method as Type.Method, a type, a variable
// or a constant.
func declares(source, name string) bool {
	pattern := `(?m)^(?:func %[1]s\b|(?:type|var|const) %[1]s\b|\t%[1]s\b.* = )`
	if of, method, ok := strings.Cut(name, "."); ok {
		pattern, name = `(?m)^func \(\w* ?\*?`+of+`(?:\[\w+\])?\) %s\b`, method
	}
	return regexp.MustCompile(fmt.Sprintf(pattern, regexp.QuoteMeta(name))).MatchString(source)
}

// wrongTrips returns which of the trips are missing, or have frames without a name.
func wrongTrips(page string) (wrong []string) {
	frame := regexp.MustCompile(`^[0-9]+\. `)
	for n := 1; n <= 4; n++ {
		_, trip, found := strings.Cut(page, fmt.Sprintf("\n## Trip %d: ", n))
		if !found {
			wrong = append(wrong, fmt.Sprintf("there is no trip %d", n))
			continue
		}
		trip, _, _ = strings.Cut(trip, "\n## ")
		frames := 0
		for line := range strings.Lines(trip) {
			if !frame.MatchString(line) {
				continue
			}
			frames++
			if !strings.HasPrefix(line, fmt.Sprintf("%d. `", frames)) || !reference.MatchString(line) {
				wrong = append(wrong, fmt.Sprintf("trip %d: frame %d should begin with its number and `file.go: Function`: %s", n, frames, strings.TrimSpace(line)))
			}
		}
		if frames == 0 {
			wrong = append(wrong, fmt.Sprintf("trip %d has no frames", n))
		}
	}
	return wrong
}

var (
	floor  = regexp.MustCompile("(?m)^\\| `([^`]+)`[^|]* \\|([^|]*)\\|$")
	quoted = regexp.MustCompile("`([^`]+)`")
)

// wrongFloors compares the floor plan with what the packages import of each other. Those
// of examples, tests, bench, contrib and cmd may import all, and nobody imports them.
func wrongFloors(page string, imports map[string][]string) (wrong []string) {
	_, plan, _ := strings.Cut(page, "\n## Floor plan\n")
	plan, _, _ = strings.Cut(plan, "\n## ")
	allowed := make(map[string][]string)
	for _, line := range floor.FindAllStringSubmatch(plan, -1) {
		var below []string
		for _, match := range quoted.FindAllStringSubmatch(line[2], -1) {
			below = append(below, match[1])
			if _, above := allowed[match[1]]; !above {
				wrong = append(wrong, fmt.Sprintf("the floor plan has %s below %s, on whose right it is: no import climbs", match[1], line[1]))
			}
		}
		allowed[line[1]] = below
	}
	for from, all := range imports {
		below, planned := allowed[from]
		if !planned && !free(from) {
			wrong = append(wrong, fmt.Sprintf("the floor plan lacks the package %s, which imports %q", from, all))
			continue
		}
		for _, to := range all {
			if !slices.Contains(below, to) && !free(from) || free(to) && !free(from) {
				wrong = append(wrong, fmt.Sprintf("the floor plan doesn't let %s import %s, which it does", from, to))
			}
		}
	}
	for from, below := range allowed {
		if _, exists := imports[from]; !exists {
			wrong = append(wrong, fmt.Sprintf("the floor plan has the package %s, which doesn't exist", from))
			continue
		}
		for _, to := range below {
			if !slices.Contains(imports[from], to) {
				wrong = append(wrong, fmt.Sprintf("the floor plan lets %s import %s, which it doesn't", from, to))
			}
		}
	}
	slices.Sort(wrong)
	return wrong
}

// free tells whether a package is one of examples, tests, bench, contrib or cmd.
func free(pkg string) bool {
	top, _, _ := strings.Cut(pkg, "/")
	return top == "examples" || top == "tests" || top == "bench" || top == "contrib" || top == "cmd"
}

// importsOf returns what each package of the repository imports of it, its tests aside, by the files: go list's answer is not known to be
// new when the test's result is cached.
func importsOf(t *testing.T) map[string][]string {
	t.Helper()
	imports := make(map[string][]string)
	eachFile(t, func(pkg string, file *ast.File, test bool) {
		if test {
			return
		}
		all := imports[pkg]
		for _, spec := range file.Imports {
			to, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/")
			if ours && !slices.Contains(all, to) {
				all = append(all, to)
			}
		}
		imports[pkg] = all
	})
	return imports
}

// TestWrongPages proves that each kind of mistake is found, and said clearly.
func TestWrongPages(t *testing.T) {
	t.Parallel()
	imports := map[string][]string{"low": nil, "high": {"low"}, "tests/all": {"high", "low"}}
	const plan = "\n## Floor plan\n\n| package | imports |\n|---|---|\n| `low` (by hand) | |\n| `high` | `low` |\n\n## Next\n"
	for name, test := range map[string]struct {
		wrong []string
		want  string
	}{
		"a function":         {wrongNames("`txlock/join.go: Join`"), ""},
		"a method":           {wrongNames("`txlock/lock.go: Scope.Lock`"), ""},
		"a type":             {wrongNames("`txlock/scope.go: hold`"), ""},
		"a constant":         {wrongNames("`txlock/record.go: rowInserted`"), ""},
		"a wrong function":   {wrongNames("\n`txlock/scope.go: Joyn`"), "line 2 names Joyn in txlock/scope.go"},
		"a wrong receiver":   {wrongNames("`txlock/scope.go: Grant.Lock`"), "line 1 names Grant.Lock in txlock/scope.go"},
		"no receiver":        {wrongNames("`txlock/scope.go: TryLock`"), "line 1 names TryLock in txlock/scope.go"},
		"a wrong file":       {wrongNames("`txlock/scoop.go: Join`"), "line 1 names the file txlock/scoop.go"},
		"no trips":           {wrongTrips("\n## Trip 1: a\n\n1. `a.go: A` is.\n"), "there is no trip 2"},
		"no frames":          {wrongTrips("\n## Trip 1: a\n\nText.\n"), "trip 1 has no frames"},
		"a frame of text":    {wrongTrips("\n## Trip 1: a\n\n1. It begins.\n"), "trip 1: frame 1 should begin"},
		"a frame left out":   {wrongTrips("\n## Trip 1: a\n\n2. `a.go: A` is.\n"), "trip 1: frame 1 should begin"},
		"the right plan":     {wrongFloors(plan, imports), ""},
		"a package more":     {wrongFloors(plan, with(imports, "new", "low")), "lacks the package new"},
		"an import more":     {wrongFloors(plan, with(imports, "low", "other")), "doesn't let low import other"},
		"an import less":     {wrongFloors(plan, with(imports, "high")), "lets high import low, which it doesn't"},
		"a package less":     {wrongFloors(strings.Replace(plan, "`low` (", "`gone` | |\n| `low` (", 1), imports), "has the package gone"},
		"tests below":        {wrongFloors(plan, with(imports, "high", "low", "tests/all")), "doesn't let high import tests/all"},
		"a plan that climbs": {wrongFloors("\n## Floor plan\n\n| `high` | `low` |\n| `low` | |\n", imports), "no import climbs"},
	} {
		said := strings.Join(test.wrong, "\n")
		testdb.ErrorIf(t, (test.want == "") != (said == "") || !strings.Contains(said, test.want), "%s: it says %q, want %q", name, said, test.want)
	}
}

// with returns the imports with those of one package changed.
func with(imports map[string][]string, pkg string, all ...string) map[string][]string {
	changed := maps.Clone(imports)
	changed[pkg] = all
	return changed
}

// TestDoorsAreTyped proves that no package of the library sets a variable of another one, or
// has one to be set: what they do for each other they call, by a type that the compiler checks.
func TestDoorsAreTyped(t *testing.T) {
	t.Parallel()
	looked := 0
	eachFile(t, func(pkg string, file *ast.File, test bool) {
		if test || free(pkg) {
			return
		}
		looked++
		for _, name := range doors(file) {
			t.Errorf("%s: %s is set by other code when the program starts: hand it over by a function, as package bridge says", pkg, name)
		}
	})
	testdb.ErrorIf(t, looked < 200, "%d files were read: the test looks in the wrong place", looked)
}

// doors returns the package variables without a value that can hold a function or anything, and
// the variables of other packages that the file's functions init set.
func doors(file *ast.File) (names []string) {
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && len(v.Values) == 0 && untyped(v.Type) {
					for _, name := range v.Names {
						names = append(names, name.Name)
					}
				}
			}
		case *ast.FuncDecl:
			if decl.Recv != nil || decl.Name.Name != "init" {
				continue
			}
			for n := range ast.Preorder(decl.Body) {
				if set, ok := n.(*ast.AssignStmt); ok {
					for _, to := range set.Lhs {
						if name := selected(to); strings.Contains(name, ".") {
							names = append(names, name)
						}
					}
				}
			}
		}
	}
	return names
}

// untyped reports whether a type is that of functions, or has no methods that tell what it is.
func untyped(of ast.Expr) bool {
	switch of := of.(type) {
	case *ast.FuncType:
		return true
	case *ast.InterfaceType:
		return len(of.Methods.List) == 0
	case *ast.Ident:
		return of.Name == "any"
	}
	return false
}

// TestDoors proves that doors finds each of them, and nothing else.
func TestDoors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"var hook any":                          {"hook"},
		"var (\n a int\n hook interface{}\n)":   {"hook"},
		"var a, b func() error":                 {"a", "b"},
		"func init() { other.Hook = f }":        {"other.Hook"},
		"func init() { if x { a, o.B = f() } }": {"o.B"},
		"var now = time.Now":                    nil,
		"var err error; var mu sync.Mutex":      nil,
		"func f() { var hook any; s.b = 1 }":    nil,
		"func (s *T) init() { s.b = 1 }":        nil,
		"func init() { table = make(T) }":       nil,
	} {
		file := testdb.Got(parser.ParseFile(token.NewFileSet(), "", "package p\n"+text, parser.SkipObjectResolution))(t)
		got := doors(file)
		testdb.ErrorIf(t, !slices.Equal(got, want), "%s: %q, want %q", text, got, want)
	}
}

// unwatched are the packages with goroutines whose tests don't look for those that are
// left behind.
var unwatched = map[string]string{
	"examples/sqlcorders": "it is what a user has at the end of a tutorial, without a library for that",
}

// TestGoroutinesAreWatched proves that each package in which goroutines are started fails
// its tests where they leave some behind: its TestMain is goleak's, or that of testdb.
func TestGoroutinesAreWatched(t *testing.T) {
	t.Parallel()
	found := make(map[string]*habits)
	eachFile(t, func(pkg string, file *ast.File, test bool) {
		if found[pkg] == nil {
			found[pkg] = &habits{}
		}
		found[pkg].add(file, test)
	})
	watched := 0
	for name, h := range found {
		_, known := unwatched[name]
		if h.watched {
			watched++
		}
		if wrong := h.tested && h.starts && !h.watched; wrong != known {
			t.Errorf("%s: starts goroutines %v, is watched %v, is listed as an exception %v: its TestMain is to call testdb.Main or goleak.VerifyTestMain", name, h.starts, h.watched, known)
		}
	}
	testdb.ErrorIf(t, watched < 40, "%d packages are watched: the test looks in the wrong place", watched)
}

// eachFile parses all files of Go.
func eachFile(t *testing.T, do func(pkg string, file *ast.File, test bool)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if slices.Contains([]string{"testdata", "docs"}, entry.Name()) || strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".." {
				return filepath.SkipDir
			}
			return nil
		case filepath.Ext(path) != ".go":
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(root, filepath.Dir(path))
		do(filepath.ToSlash(pkg), file, strings.HasSuffix(path, "_test.go"))
		return err
	})
	must(t, err)
}

// habits are what the files of a package do.
type habits struct {
	tested  bool // there are tests
	starts  bool // goroutines
	watched bool // by goleak
}

func (h *habits) add(file *ast.File, test bool) {
	h.tested = h.tested || test
	for n := range ast.Preorder(file) {
		switch n := n.(type) {
		case *ast.GoStmt:
			h.starts = true
		case *ast.CallExpr:
			called := selected(n.Fun)
			h.starts = h.starts || strings.HasSuffix(called, ".Go") || called == "httptest.NewServer" || called == "time.AfterFunc"
		case *ast.FuncDecl:
			h.watched = h.watched || test && n.Name.Name == "TestMain" && watches(n, file.Name.Name)
		}
	}
}

// watches tells whether a TestMain looks for goroutines at its end.
func watches(main *ast.FuncDecl, name string) (does bool) {
	for n := range ast.Preorder(main) {
		if call, ok := n.(*ast.CallExpr); ok {
			called := selected(call.Fun)
			does = does || slices.Contains([]string{"testdb.Main", "goleak.VerifyTestMain"}, called) || name == "testdb" && called == "Main"
		}
	}
	return does
}

// selected is the text of a name, or of a selector, whatever stands before its last name.
func selected(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		before, _ := e.X.(*ast.Ident)
		if before == nil {
			return "." + e.Sel.Name
		}
		return before.Name + "." + e.Sel.Name
	}
	return ""
}
