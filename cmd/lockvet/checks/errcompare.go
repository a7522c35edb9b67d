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
var ErrCompare = &analysis.Analyzer{
	Name: "errcompare",
	Doc:  "find == and != with errors of lockstep, which are wrapped",
	URL:  url + "errcompare",
	Run:  runErrCompare,
}

func runErrCompare(pass *analysis.Pass) (any, error) {
	for _, file := range pass.Files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if n.Op != token.EQL && n.Op != token.NEQ {
					break
				}
				for _, pair := range [][2]ast.Expr{{n.X, n.Y}, {n.Y, n.X}} {
					if v := sentinel(pass, pair[1]); v != nil && sentinel(pass, pair[0]) == nil {
						report(pass, n, "compare with "+v.Name()+" by errors.Is: it is wrapped in what calls return",
							fixCompare(pass, file, n, pair[0], pair[1])...)
						break
					}
				}
			case *ast.SwitchStmt:
				if n.Tag == nil || !isError(pass.TypesInfo.TypeOf(n.Tag)) {
					break
				}
				for _, clause := range n.Body.List {
					for _, expr := range clause.(*ast.CaseClause).List {
						if v := sentinel(pass, expr); v != nil {
							report(pass, expr, "compare with "+v.Name()+" by errors.Is: it is wrapped in what calls return")
						}
					}
				}
			}
			return true
		})
	}
	return nil, nil
}

// sentinel returns the error variable of lockstep that an expression is.
func sentinel(pass *analysis.Pass, expr ast.Expr) types.Object {
	v := pathOf(pass, expr).root
	if v == nil || !ours(v.Pkg()) || v.Parent() != v.Pkg().Scope() || !strings.HasPrefix(v.Name(), "Err") || !isError(v.Type()) {
		return nil
	}
	return v
}

// fixCompare writes errors.Is, where the file imports errors.
func fixCompare(pass *analysis.Pass, file *ast.File, n *ast.BinaryExpr, err, target ast.Expr) []analysis.SuggestedFix {
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
