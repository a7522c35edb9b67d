package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
)

// DoContext finds contexts that outlive the lock whose loss they would tell.
var DoContext = check("docontext", "find contexts of Do that are kept for later, when the lock is free", runDoContext)

// Calls that run a function under a lock and end its context afterwards, with its place.
var dos = map[string]int{
	"locksqlc.Do": 3, "locksqlc.TryDo": 3,
	"(*txlock/lease.Manager).Do": 2, "(*txlock/lease.Manager).TryDo": 2, "(*txlock/lease.Manager).DoShared": 2,
	"(*txlock/lease.Semaphore).Do": 1, "(*txlock/quorum.Manager).Do": 2,
}

func runDoContext(pass *source) {
	for call := range nodes[*ast.CallExpr](programs(pass)...) {
		if place, ok := dos[nameOf(pass, call)]; ok && place < len(call.Args) {
			if fn, ok := ast.Unparen(call.Args[place]).(*ast.FuncLit); ok {
				checkDo(pass, fn)
			}
		}
	}
}

func checkDo(pass *source, fn *ast.FuncLit) {
	params := fn.Type.Params.List
	if len(params) == 0 || len(params[0].Names) == 0 {
		return
	}
	ctx := pass.TypesInfo.Defs[params[0].Names[0]]
	waits := waitsFor(pass, fn)
	for n := range ast.Preorder(fn.Body) {
		switch n := n.(type) {
		case *ast.AssignStmt:
			checkKept(pass, fn, n, ctx)
		case *ast.SendStmt:
			if pathOf(pass, n.Value).is(ctx) && !waits {
				report(pass, n, "the context of Do is sent away, but ends with Do: the lock is free then")
			}
		case *ast.GoStmt:
			if usesEnd(pass, n, ctx) && !waits {
				report(pass, n, "a goroutine that Do doesn't wait for uses its context, which ends with Do: the lock is free then")
			}
		}
	}
}

// usesEnd reports whether a node uses a context, and not only what WithoutCancel makes of it.
func usesEnd(pass *source, node ast.Node, ctx types.Object) (found bool) {
	ast.Inspect(node, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && nameOf(pass, call) == "context.WithoutCancel" {
			return false
		}
		id, ok := n.(*ast.Ident)
		found = found || ok && pass.TypesInfo.Uses[id] == ctx
		return !found
	})
	return found
}

func checkKept(pass *source, fn *ast.FuncLit, assign *ast.AssignStmt, ctx types.Object) {
	for i, right := range assign.Rhs {
		if len(assign.Lhs) != len(assign.Rhs) || !pathOf(pass, right).is(ctx) {
			continue
		}
		if to := target(pass, assign.Lhs[i]); to.known() && !within(fn, to.root) {
			report(pass, assign, "the context of Do is kept in "+name(to)+", but ends with Do: the lock is free then")
		}
	}
}

// waitsFor reports whether a function waits for something, such as its goroutines.
func waitsFor(pass *source, fn *ast.FuncLit) (waits bool) {
	inGo := map[ast.Node]bool{}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			inGo[n.Call.Fun] = true
		case *ast.FuncLit:
			return !inGo[n]
		case *ast.SelectStmt:
			waits = true
		case *ast.UnaryExpr:
			waits = waits || n.Op == token.ARROW
		case *ast.RangeStmt:
			_, channel := pass.TypesInfo.TypeOf(n.X).Underlying().(*types.Chan)
			waits = waits || channel
		case *ast.CallExpr:
			if called := calleeOf(pass, n); called != nil {
				waits = waits || slices.Contains([]string{"Wait", "Join", "Stop", "Shutdown", "Close"}, called.Name())
			}
		}
		return true
	})
	return waits
}

func uses(pass *source, node ast.Node, v types.Object) bool {
	return contains(node, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		return ok && pass.TypesInfo.Uses[id] == v
	})
}
