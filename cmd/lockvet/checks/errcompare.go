package checks

import (
	"go/ast"
	"go/format"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// ErrCompare finds comparisons with lockstep's errors that are never true.
var ErrCompare = check("errcompare", "find == and != with errors of lockstep, which are wrapped", runErrCompare)

func runErrCompare(pass *source) {
	for _, file := range pass.Files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl: // errors.Is unwraps for a method Is
				return n.Recv == nil || n.Name.Name != "Is"
			case *ast.BinaryExpr:
				checkComparison(pass, n)
			case *ast.SwitchStmt:
				checkSwitch(pass, n)
			}
			return true
		})
	}
}

const byIs = " by errors.Is: it is wrapped in what calls return"

func checkComparison(pass *source, n *ast.BinaryExpr) {
	if n.Op != token.EQL && n.Op != token.NEQ {
		return
	}
	err, target := n.X, n.Y
	if sentinel(pass, target) == nil {
		err, target = target, err
	}
	if v := sentinel(pass, target); v != nil && sentinel(pass, err) == nil {
		report(pass, n, "compare with "+v.Name()+byIs, fixCompare(pass, n, err, target)...)
	}
}

func checkSwitch(pass *source, n *ast.SwitchStmt) {
	if n.Tag == nil || !isError(pass.TypesInfo.TypeOf(n.Tag)) {
		return
	}
	for _, clause := range n.Body.List {
		for _, expr := range clause.(*ast.CaseClause).List {
			if v := sentinel(pass, expr); v != nil {
				report(pass, expr, "compare with "+v.Name()+byIs)
			}
		}
	}
}

// sentinel returns the error variable of lockstep that an expression is.
func sentinel(pass *source, expr ast.Expr) types.Object {
	v := pathOf(pass, expr).root
	if v == nil || !ours(v.Pkg()) || v.Parent() != v.Pkg().Scope() || !strings.HasPrefix(v.Name(), "Err") || !isError(v.Type()) {
		return nil
	}
	return v
}

// fixCompare writes errors.Is, where the file imports errors.
func fixCompare(pass *source, n *ast.BinaryExpr, err, target ast.Expr) []analysis.SuggestedFix {
	scope := pass.Pkg.Scope().Innermost(n.Pos())
	if scope == nil {
		return nil
	}
	_, found := scope.LookupParent("errors", n.Pos())
	pkg, ok := found.(*types.PkgName)
	if !ok || pkg.Imported().Path() != "errors" {
		return nil
	}
	var text strings.Builder
	if n.Op == token.NEQ {
		text.WriteString("!")
	}
	text.WriteString("errors.Is(")
	if format.Node(&text, pass.Fset, err) != nil {
		return nil
	}
	text.WriteString(", ")
	if format.Node(&text, pass.Fset, target) != nil {
		return nil
	}
	text.WriteString(")")
	return []analysis.SuggestedFix{replace("Use errors.Is", n, text.String())}
}
