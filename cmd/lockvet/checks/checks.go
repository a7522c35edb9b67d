// Package checks has the checks of lockvet, each an analyzer of its own.
package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"iter"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// All are the checks of lockvet.
var All = []*analysis.Analyzer{Bypass, DoContext, Dropped, ErrCompare, GuardLast, LockFirst, OuterPool, Unreleased}

const (
	module = "github.com/dca00107/lockstep/"
	url    = "https://" + module + "blob/main/cmd/lockvet/README.md#"
)

// Packages beside lockstep's whose functions the checks know by name.
var named = []string{"context", "errors", "gorm.io/gorm", "strings"}

// nameOf returns the function or method of those packages that a call names, written
// without the path of this module: "locksqlc.Run", "(*txlock.Scope).Lock", "errors.Is".
func nameOf(pass *source, call *ast.CallExpr) string {
	fn := calleeOf(pass, call)
	if fn == nil || fn.Pkg() == nil || !ours(fn.Pkg()) && !slices.Contains(named, fn.Pkg().Path()) {
		return ""
	}
	return strings.ReplaceAll(fn.FullName(), module, "")
}

func calleeOf(pass *source, call *ast.CallExpr) *types.Func {
	fn, _ := typeutil.Callee(pass.TypesInfo, call).(*types.Func)
	if fn != nil {
		fn = fn.Origin()
	}
	return fn
}

// ours reports whether something is of lockstep's packages, and not of a program in its
// repository.
func ours(pkg *types.Package) bool {
	if pkg == nil {
		return false
	}
	path, found := strings.CutPrefix(pkg.Path(), module)
	return found && (path == "locksqlc" || path == "lockgorm" || path == "schema" || path == "txlock" || strings.HasPrefix(path, "txlock/"))
}

// typeName returns the name of the type behind a pointer, written as nameOf does.
func typeName(t types.Type) string {
	if t == nil {
		return ""
	}
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	named, ok := types.Unalias(t).(*types.Named)
	if !ok || named.Obj().Pkg() == nil {
		return ""
	}
	return strings.TrimPrefix(named.Obj().Pkg().Path(), module) + "." + named.Obj().Name()
}

const (
	sqlDB   = "database/sql.DB"
	sqlTx   = "database/sql.Tx"
	gormDB  = "gorm.io/gorm.DB"
	gormG   = "gorm.io/gorm.G"
	gormSQL = "(*gorm.io/gorm.DB).DB"
	scopeOf = "txlock.Scope"
)

// withTx returns the type behind a pointer where it is one of those that sqlc generates,
// which have a method WithTx(*sql.Tx).
func withTx(t types.Type) bool {
	if t == nil {
		return false
	}
	if _, ok := types.Unalias(t).(*types.Pointer); !ok {
		return false
	}
	method, _, _ := types.LookupFieldOrMethod(t, true, nil, "WithTx")
	fn, ok := method.(*types.Func)
	if !ok {
		return false
	}
	sig := fn.Signature()
	return sig.Params().Len() == 1 && typeName(sig.Params().At(0).Type()) == sqlTx &&
		sig.Results().Len() == 1 && types.Identical(sig.Results().At(0).Type(), t)
}

// reached calls f for every node that runs where a node does: not for the bodies of
// functions in it, unless they are called there.
func reached(pass *source, node ast.Node, f func(n ast.Node)) {
	called := map[*ast.FuncLit]bool{}
	ast.Inspect(node, func(n ast.Node) bool {
		if n == nil {
			return false
		}
		if call, ok := n.(*ast.CallExpr); ok {
			for _, fn := range calledBy(pass, call) {
				if lit, ok := ast.Unparen(fn).(*ast.FuncLit); ok {
					called[lit] = true
				}
			}
		}
		if lit, ok := n.(*ast.FuncLit); ok && n != node && !called[lit] {
			return false
		}
		f(n)
		return true
	})
}

// nodes yields the nodes of a type in some trees, each before those below it.
func nodes[N, T ast.Node](trees ...T) iter.Seq[N] {
	return func(yield func(N) bool) {
		for _, tree := range trees {
			for n := range ast.Preorder(tree) {
				if n, ok := n.(N); ok && !yield(n) {
					return
				}
			}
		}
	}
}

// contains reports whether a tree has a node that is so.
func contains(tree ast.Node, is func(n ast.Node) bool) bool {
	for n := range ast.Preorder(tree) {
		if is(n) {
			return true
		}
	}
	return false
}

// programs returns the files of a package that are no tests: tests do on purpose what a
// program must not.
func programs(pass *source) (files []*ast.File) {
	for _, file := range pass.Files {
		if !strings.HasSuffix(pass.Fset.Position(file.FileStart).Filename, "_test.go") {
			files = append(files, file)
		}
	}
	return files
}

// report reports what a check has found, with the check as its category.
func report(pass *source, at ast.Node, message string, fixes ...analysis.SuggestedFix) {
	pass.Report(analysis.Diagnostic{
		Pos: at.Pos(), End: at.End(), Category: pass.Analyzer.Name, Message: message, SuggestedFixes: fixes,
	})
}

// replace is a fix that writes text in the place of a node.
func replace(message string, old ast.Node, text string) analysis.SuggestedFix {
	return analysis.SuggestedFix{Message: message, TextEdits: []analysis.TextEdit{edit(old.Pos(), old.End(), text)}}
}

func edit(from, to token.Pos, text string) analysis.TextEdit {
	return analysis.TextEdit{Pos: from, End: to, NewText: []byte(text)}
}
