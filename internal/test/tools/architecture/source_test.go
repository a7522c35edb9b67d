package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
	if looked < 200 {
		t.Errorf("%d files were read: the test looks in the wrong place", looked)
	}
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
		file, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+text, parser.SkipObjectResolution)
		must(t, err)
		if got := doors(file); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
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
	if watched < 40 {
		t.Errorf("%d packages are watched: the test looks in the wrong place", watched)
	}
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
