package checks

import (
	"go/ast"
	"go/types"
	"regexp"
	"slices"
)

// works reports whether a node does what a lock is for: it sends something in a transaction,
// or uses what the call gave.
func (t *trial) works(node ast.Node) (found bool) {
	reached(t.pass, node, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.CallExpr:
			tx, sends := sentIn(t.pass, n)
			found = found || sends && (tx == nil || t.tx == nil || tx == t.tx)
		case *ast.SelectorExpr: // l.Release
			if t.v != nil && pathOf(t.pass, n.X).is(t.v) {
				_, pointer := t.v.Type().Underlying().(*types.Pointer)
				found = found || pointer
			}
		}
	})
	return found
}

// sentIn reports whether a call sends something in a transaction, and in which.
func sentIn(pass *source, call *ast.CallExpr) (tx types.Object, sends bool) {
	fn := calleeOf(pass, call)
	if fn != nil && (ours(fn.Pkg()) || fn.Name() == "Rollback") {
		return nil, false
	}
	if receiver := receiverOf(call); receiver != nil && fn != nil && fn.Signature().Recv() != nil {
		t, p := pass.TypesInfo.TypeOf(receiver), receiverPath(pass, call)
		switch {
		case isTx(fn.Signature().Recv().Type()) && (finishes(pass, call) || fn.Name() == "Commit"):
			return p.root, true
		case (withTx(t) || t != nil && isLocked(t)) && !withTx(pass.TypesInfo.TypeOf(call)):
			if p.known() {
				tx = pass.joined[p.root]
			}
			return tx, true
		}
	}
	for _, arg := range call.Args {
		if isTx(pass.TypesInfo.TypeOf(arg)) && !chains(pass, call) {
			return pathOf(pass, arg).root, true
		}
	}
	return nil, false
}

// idle reports whether a node does nothing that later statements could ask about.
func (t *trial) idle(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.ReturnStmt:
		return !t.works(n)
	case *ast.AssignStmt: // _ = first, err = nil
		if wraps(t.pass, n, t.err) {
			return !t.kept && !within(typeOf(t.fn), t.err)
		}
		_, call := n.Rhs[0].(*ast.CallExpr)
		cleared := t.pass.TypesInfo.Types[n.Rhs[0]].IsNil() && target(t.pass, n.Lhs[0]).is(t.err)
		return cleared || !call && !slices.ContainsFunc(n.Lhs, func(left ast.Expr) bool { return !isBlank(left) })
	case *ast.ExprStmt:
		call, ok := n.X.(*ast.CallExpr)
		return ok && logs(t.pass, call)
	}
	return false
}

var logging = regexp.MustCompile(`^(?i)(log|print|fprint|debug|info|warn|error|trace|inc$|sleep$)`)

// logs reports whether a call writes a line of a log, counts, or sleeps.
func logs(pass *source, call *ast.CallExpr) bool {
	fn := calleeOf(pass, call)
	return fn != nil && logging.MatchString(fn.Name())
}
