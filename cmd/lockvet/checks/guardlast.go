package checks

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"
)

// GuardLast finds statements between Guard and the COMMIT.
var GuardLast = check("guardlast", "find statements of a transaction after Guard, which should be its last", runGuardLast)

func runGuardLast(pass *source) {
	eachList(pass, func(list []ast.Stmt) {
		for i, stmt := range list {
			guard, tx := guardIn(pass, stmt)
			if tx == nil {
				continue
			}
			for _, later := range list[i+1:] {
				if ends(pass, later, tx) {
					break
				}
				if after := statementIn(pass, later, tx); after != nil {
					report(pass, guard, "Guard is not the last statement of "+tx.Name()+
						": from here to the COMMIT all other transactions under the lease wait")
					break
				}
			}
		}
	})
}

func isGuard(name string) bool {
	return strings.HasPrefix(name, "(*txlock/") && strings.HasSuffix(name, ").Guard")
}

func guardIn(pass *source, stmt ast.Stmt) (guard *ast.CallExpr, tx types.Object) {
	calls(pass, stmt, func(call *ast.CallExpr) {
		if !isGuard(nameOf(pass, call)) {
			return
		}
		for _, arg := range call.Args {
			p := pathOf(pass, arg)
			switch bound := pass.joined[p.root]; {
			case bound != nil: // lockgorm.SQLTx
				guard, tx = call, bound
			case p.variable() && isTx(p.root.Type()):
				guard, tx = call, p.root
			}
		}
	})
	return guard, tx
}

// ends reports whether a statement ends the transaction or gives the variable another one.
func ends(pass *source, stmt ast.Stmt, tx types.Object) bool {
	return contains(stmt, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return overwrites(pass, n, tx)
		}
		receiver, fn := receiverOf(call), calleeOf(pass, call)
		return receiver != nil && fn != nil && pathOf(pass, receiver).is(tx) && (fn.Name() == "Commit" || fn.Name() == "Rollback")
	})
}

// statementIn returns a call by which a statement sends something in the transaction.
func statementIn(pass *source, stmt ast.Stmt, tx types.Object) (found *ast.CallExpr) {
	reached(pass, stmt, func(n ast.Node) {
		if call, ok := n.(*ast.CallExpr); ok && !isGuard(nameOf(pass, call)) && (sends(pass, call, tx) || givesTo(pass, call, tx)) {
			found = call
		}
	})
	return found
}

func sends(pass *source, call *ast.CallExpr, tx types.Object) bool {
	receiver := receiverOf(call)
	if receiver == nil {
		return false
	}
	p := pathOf(pass, receiver)
	if withTx(pass.TypesInfo.TypeOf(receiver)) && !withTx(pass.TypesInfo.TypeOf(call)) {
		bind, ok := ast.Unparen(receiver).(*ast.CallExpr)
		return p.known() && pass.joined[p.root] == tx || ok && txOf(pass, bind) == tx
	}
	return finishes(pass, call) && p.is(tx)
}

// givesTo reports whether a call gives the transaction to a function that sends something in it.
func givesTo(pass *source, call *ast.CallExpr, tx types.Object) bool {
	return slices.ContainsFunc(pass.helper(calleeOf(pass, call)).Sends, func(i int) bool {
		return i < len(call.Args) && pathOf(pass, call.Args[i]).is(tx)
	})
}
