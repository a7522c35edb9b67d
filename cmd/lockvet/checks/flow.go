package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/cfg"
)

// A guess is what is taken for true after a call that gives a handle, or says that its
// caller is the first, and an error.
type guess struct {
	pass   *source
	v, err types.Object
	failed bool   // err is not nil
	as     string // what errors.Is finds in it
	second bool   // v is false
	told   bool   // whether err is still the error of the call
}

// possible returns those branches of a condition that may follow.
func (g guess) possible(nodes []ast.Node, succs []*cfg.Block) []*cfg.Block {
	if len(succs) != 2 || len(nodes) == 0 {
		return succs
	}
	cond, ok := nodes[len(nodes)-1].(ast.Expr)
	if !ok {
		return succs
	}
	switch isTrue, isFalse := g.outcomes(cond); {
	case !isFalse:
		return succs[:1]
	case !isTrue:
		return succs[1:]
	}
	return succs
}

// outcomes returns what a condition may be.
func (g guess) outcomes(cond ast.Expr) (isTrue, isFalse bool) {
	switch e := ast.Unparen(cond).(type) {
	case *ast.BinaryExpr:
		return g.outcomesOf(e)
	case *ast.UnaryExpr: // !errors.Is(err, ...)
		if e.Op == token.NOT {
			isFalse, isTrue = g.outcomes(e.X)
			return isTrue, isFalse
		}
	case *ast.Ident: // first
		if v := pathOf(g.pass, e); v.known() && v.is(g.v) && isBool(g.v.Type()) {
			return !g.second && !g.failed, g.second || g.failed
		}
	case *ast.CallExpr: // errors.Is(err, ...)
		if g.told && len(e.Args) > 0 && pathOf(g.pass, e.Args[0]).is(g.err) {
			found := g.failed && len(e.Args) == 2 && types.ExprString(e.Args[1]) == g.as
			return found, !found
		}
	}
	return true, true
}

func (g guess) outcomesOf(e *ast.BinaryExpr) (isTrue, isFalse bool) {
	switch e.Op {
	case token.LAND, token.LOR:
		leftTrue, leftFalse := g.outcomes(e.X)
		rightTrue, rightFalse := g.outcomes(e.Y)
		if e.Op == token.LAND {
			return leftTrue && rightTrue, leftFalse || rightFalse
		}
		return leftTrue || rightTrue, leftFalse && rightFalse
	}
	of := pathOf(g.pass, e.X)
	isErr := g.told && g.err != nil && of.is(g.err)
	if !g.pass.TypesInfo.Types[e.Y].IsNil() || !isErr && (g.v == nil || !of.is(g.v)) {
		return true, true
	}
	isTrue = (e.Op == token.EQL) == (isErr != g.failed) // err == nil, v != nil
	return isTrue, !isTrue
}

// understood reports whether outcomes knows all that a condition says of the error.
func (g guess) understood(cond ast.Expr) bool {
	switch e := ast.Unparen(cond).(type) {
	case *ast.BinaryExpr:
		if e.Op == token.LAND || e.Op == token.LOR {
			return g.understood(e.X) && g.understood(e.Y)
		}
		_, passed := ast.Unparen(e.X).(*ast.CallExpr) // to a function that may return another one
		return !passed && g.pass.TypesInfo.Types[e.Y].IsNil() || !g.uses(e)
	case *ast.UnaryExpr:
		return g.understood(e.X)
	case *ast.Ident:
		return isBool(g.pass.TypesInfo.TypeOf(e)) || !g.uses(e)
	case *ast.CallExpr:
		return finds(g.pass, e) && pathOf(g.pass, e.Args[0]).is(g.err) || !g.uses(e)
	}
	return !g.uses(cond)
}

// finds reports whether a call looks for an error in another.
func finds(pass *source, call *ast.CallExpr) bool {
	return slices.Contains([]string{"errors.Is", "errors.As"}, nameOf(pass, call))
}

func (g guess) uses(n ast.Node) bool {
	return g.err != nil && uses(g.pass, n, g.err) || g.second && uses(g.pass, n, g.v)
}

// overwrites reports whether an assignment gives a variable another value.
func overwrites(pass *source, node ast.Node, v types.Object) bool {
	assign, ok := node.(*ast.AssignStmt)
	return ok && slices.ContainsFunc(assign.Lhs, func(left ast.Expr) bool { return target(pass, left).is(v) })
}

// wraps reports whether a node gives a variable another error: err = fmt.Errorf("lock: %w", err).
func wraps(pass *source, node ast.Node, v types.Object) bool {
	assign, ok := node.(*ast.AssignStmt)
	if !ok || len(assign.Lhs) != 1 || !target(pass, assign.Lhs[0]).is(v) {
		return false
	}
	call, ok := ast.Unparen(assign.Rhs[0]).(*ast.CallExpr)
	if !ok {
		return false
	}
	fn := calleeOf(pass, call)
	return fn != nil && fn.FullName() == "fmt.Errorf"
}

// reads reports whether a node looks at a variable: _ = v and a line of a log don't.
func reads(pass *source, node ast.Node, v types.Object, log bool) (found bool) {
	written := map[ast.Node]bool{}
	ast.Inspect(node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				written[left] = true
				if isBlank(left) && len(n.Lhs) == len(n.Rhs) {
					written[ast.Unparen(n.Rhs[i])] = true
				}
			}
		case *ast.CallExpr:
			if !log && logs(pass, n) {
				return false
			}
		case *ast.Ident:
			found = found || pass.TypesInfo.Uses[n] == v && !written[n]
		}
		return !found
	})
	return found
}

func isBool(t types.Type) bool { return types.Identical(t.Underlying(), types.Typ[types.Bool]) }
