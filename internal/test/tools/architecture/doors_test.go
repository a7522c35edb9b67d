package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
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
			ast.Inspect(decl.Body, func(n ast.Node) bool {
				if set, ok := n.(*ast.AssignStmt); ok {
					for _, to := range set.Lhs {
						if name := selected(to); strings.Contains(name, ".") {
							names = append(names, name)
						}
					}
				}
				return true
			})
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
		if err != nil {
			t.Fatal(err)
		}
		if got := doors(file); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
