package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestExamples proves that each exported verb has an example on its page: what takes a
// context, a pool, a transaction or a handle of GORM first.
func TestExamples(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{"txlock", "txlock/lease", "locksqlc", "lockgorm", "schema", "txlock/job", "txlock/elect", "txlock/quorum"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*.go"))
		check(t, err)
		var verbs, examples []string
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			check(t, err)
			if strings.HasSuffix(name, "_test.go") {
				examples = append(examples, exampleOf(file)...)
			} else {
				verbs = append(verbs, verbsOf(file)...)
			}
		}
		if len(verbs) < 4 {
			t.Errorf("%s has %d verbs: %s", pkg, len(verbs), verbs)
		}
		for _, verb := range verbs {
			if !slices.Contains(examples, verb) {
				t.Errorf("%s has no Example%s", pkg, verb)
			}
		}
	}
}

// verbsOf returns the names of a file's verbs as examples have them, Lock and Scope_Lock.
func verbsOf(file *ast.File) (verbs []string) {
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || !f.Name.IsExported() || len(f.Type.Params.List) == 0 {
			continue
		}
		first := strings.TrimPrefix(text(f.Type.Params.List[0].Type), "*")
		if !slices.Contains([]string{"context.Context", "sql.DB", "sql.Tx", "gorm.DB"}, first) {
			continue
		}
		name := f.Name.Name
		if f.Recv != nil {
			receiver := strings.TrimPrefix(text(f.Recv.List[0].Type), "*")
			if !ast.IsExported(receiver) || receiver == "Plugin" { // GORM calls its methods
				continue
			}
			name = receiver + "_" + name
		}
		verbs = append(verbs, name)
	}
	return verbs
}

// text returns a type as the source has it, as far as parameters of verbs need that.
func text(expr ast.Expr) string {
	switch e := expr.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return text(e.X) + "." + e.Sel.Name
	case *ast.StarExpr:
		return "*" + text(e.X)
	}
	return ""
}

// exampleOf returns of what a file has examples.
func exampleOf(file *ast.File) (names []string) {
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
			if name, ok := strings.CutPrefix(f.Name.Name, "Example"); ok {
				names = append(names, name)
			}
		}
	}
	return names
}
