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
	if err != nil {
		t.Fatal(err)
	}
}

// habits are what the files of a package do.
type habits struct {
	tested  bool // there are tests
	starts  bool // goroutines
	watched bool // by goleak
}

func (h *habits) add(file *ast.File, test bool) {
	h.tested = h.tested || test
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			h.starts = true
		case *ast.CallExpr:
			called := selected(n.Fun)
			h.starts = h.starts || strings.HasSuffix(called, ".Go") || called == "httptest.NewServer" || called == "time.AfterFunc"
		case *ast.FuncDecl:
			h.watched = h.watched || test && n.Name.Name == "TestMain" && watches(n, file.Name.Name)
		}
		return true
	})
}

// watches tells whether a TestMain looks for goroutines at its end.
func watches(main *ast.FuncDecl, name string) (does bool) {
	ast.Inspect(main, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			called := selected(call.Fun)
			does = does || slices.Contains([]string{"testdb.Main", "goleak.VerifyTestMain"}, called) || name == "testdb" && called == "Main"
		}
		return true
	})
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
