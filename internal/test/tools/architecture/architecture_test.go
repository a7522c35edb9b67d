// Package architecture checks that docs/architecture.md tells of the code as it is.
package architecture

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/leasetest"
)

const (
	root   = "../../../.."
	module = "github.com/dca00107/lockstep"
)

var must = leasetest.Must

// TestPage proves that the page names what there is, and is short.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	must(t, err)
	for _, wrong := range slices.Concat(wrongNames(string(page)), wrongTrips(string(page)), wrongFloors(string(page), importsOf(t))) {
		t.Error("docs/architecture.md: " + wrong)
	}
	if n := len(regexp.MustCompile(`\S*\w\S*`).FindAllString(string(page), -1)); n > 1700 {
		t.Errorf("docs/architecture.md has %d words; at most 1700 are read", n)
	}
}

var reference = regexp.MustCompile("`([^` ]+\\.go): ([^`]+)`")

// wrongNames returns what is wrong with the names that a page gives as `file.go: Name`.
func wrongNames(page string) (wrong []string) {
	names := make(map[string][]string) // by file
	for i, line := range strings.Split(page, "\n") {
		for _, match := range reference.FindAllStringSubmatch(line, -1) {
			file, name := match[1], match[2]
			if _, ok := names[file]; !ok {
				declared, err := declarations(filepath.Join(root, filepath.FromSlash(file)))
				if err != nil {
					wrong = append(wrong, fmt.Sprintf("line %d names the file %s, which can't be read: %v", i+1, file, err))
				}
				names[file] = declared
			}
			if len(names[file]) > 0 && !slices.Contains(names[file], name) {
				wrong = append(wrong, fmt.Sprintf("line %d names %s in %s, which has no such function, type, variable or constant", i+1, name, file))
			}
		}
	}
	return wrong
}

// declarations returns what a file declares: functions, methods as Type.Method, types,
// variables and constants.
func declarations(file string) (names []string, err error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, decl := range parsed.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			names = append(names, receiver(decl)+decl.Name.Name)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, spec.Name.Name)
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return names, nil
}

// receiver returns the type that a method is of, and a dot.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.Ident:
			return t.Name + "."
		default:
			return "?."
		}
	}
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

// importsOf returns what each package of the repository imports of it, its tests aside.
// It reads the files instead of asking go list, whose answer the go command doesn't know
// to be new when it has the result of a test in its cache.
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
		if (test.want == "") != (said == "") || !strings.Contains(said, test.want) {
			t.Errorf("%s: it says %q, want %q", name, said, test.want)
		}
	}
}

// with returns the imports with those of one package changed.
func with(imports map[string][]string, pkg string, all ...string) map[string][]string {
	changed := maps.Clone(imports)
	changed[pkg] = all
	return changed
}
