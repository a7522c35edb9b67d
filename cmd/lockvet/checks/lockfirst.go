package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// LockFirst finds queries before a lock that could have been taken before them.
var LockFirst = check("lockfirst", "find SELECTs before a lock whose key was known before", runLockFirst)

func runLockFirst(pass *source) {
	locked := lockedWith(pass)
	eachList(pass, func(list []ast.Stmt) {
		for i, stmt := range list {
			query, tx := readIn(pass, stmt)
			if tx == nil || locked[tx] || lockedAbove(pass, list[:i+1], tx) {
				continue
			}
			lock, between := nextLock(pass, list[i+1:], tx)
			if lock != nil && knownBefore(pass, lock, query) && !changed(pass, lock, list[i:i+1+between]) {
				report(pass, query, "a query before the lock of "+tx.Name()+", whose key was known: "+
					"lock first; the lock is refused if another transaction wrote in between (ErrStaleSnapshot)")
			}
		}
	})
}

// lockedWith finds the transactions of a package that have locked keys before their functions run.
func lockedWith(pass *source) map[types.Object]bool {
	locked := map[types.Object]bool{}
	for known := -1; known < len(locked); {
		known = len(locked)
		for _, file := range pass.Files {
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					addLocked(pass, call, locked)
				}
				return true
			})
		}
	}
	return locked
}

// addLocked adds the variables to which a call gives a transaction that has locked keys.
func addLocked(pass *source, call *ast.CallExpr, locked map[types.Object]bool) {
	if t, ok := transactionOf(pass, call); ok && t.keys {
		locked[t.tx] = true
		if fn := calleeOf(pass, &ast.CallExpr{Fun: t.arg}); fn != nil { // it is named
			for v := range fn.Signature().Params().Variables() {
				locked[v] = true
			}
		}
	}
	fn := calleeOf(pass, call)
	if fn == nil {
		return
	}
	params := fn.Signature().Params()
	for i, arg := range call.Args[:min(len(call.Args), params.Len())] {
		if p := pathOf(pass, arg); p.variable() && locked[p.root] {
			locked[params.At(i)] = true
		}
	}
}

// nextLock returns the lock that follows in any case, and how many statements are before it.
func nextLock(pass *source, list []ast.Stmt, tx types.Object) (lock *ast.CallExpr, between int) {
	for i, stmt := range list {
		if lock := lockIn(pass, stmt, tx); lock != nil {
			return lock, i
		}
		if !goesOn(pass, stmt) {
			break
		}
	}
	return nil, 0
}

// eachList calls f for each list of statements.
func eachList(pass *source, f func(list []ast.Stmt)) {
	for _, file := range programs(pass) {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BlockStmt:
				f(n.List)
			case *ast.CaseClause:
				f(n.Body)
			case *ast.CommClause:
				f(n.Body)
			}
			return true
		})
	}
}

// calls calls f for the calls that a statement makes whatever happens: not in its blocks.
func calls(pass *source, stmt ast.Stmt, f func(call *ast.CallExpr)) {
	switch s := stmt.(type) {
	case *ast.IfStmt:
		if s.Init != nil {
			calls(pass, s.Init, f)
		}
		calls(pass, &ast.ExprStmt{X: s.Cond}, f)
	case *ast.AssignStmt, *ast.ExprStmt, *ast.DeclStmt, *ast.ReturnStmt:
		reached(pass, s, func(n ast.Node) {
			if call, ok := n.(*ast.CallExpr); ok {
				f(call)
			}
		})
	}
}

// readIn returns the SELECT of a statement and its transaction.
func readIn(pass *source, stmt ast.Stmt) (query *ast.CallExpr, tx types.Object) {
	calls(pass, stmt, func(call *ast.CallExpr) {
		fn, receiver := calleeOf(pass, call), receiverOf(call)
		if fn == nil || receiver == nil || tx != nil {
			return
		}
		p := pathOf(pass, receiver)
		switch of := typeName(pass.TypesInfo.TypeOf(receiver)); {
		case of == sqlTx && strings.HasPrefix(fn.Name(), "Query") && selects(pass, call),
			of == gormDB && slices.Contains(gormReads, fn.Name()) && plain(pass, receiver):
			if p.variable() {
				query, tx = call, p.root
			}
		case pass.helper(fn).Selects:
			query, tx = call, pass.joined[p.root]
			if bind, ok := ast.Unparen(receiver).(*ast.CallExpr); ok {
				tx = txOf(pass, bind)
			}
		}
	})
	return query, tx
}

// plain reports whether a GORM statement has no clauses, which may lock, and no raw text.
func plain(pass *source, chain ast.Expr) bool {
	for {
		if id, ok := ast.Unparen(chain).(*ast.Ident); ok && len(pass.assigned[pass.TypesInfo.ObjectOf(id)]) > 0 {
			if chain = pass.only(id); chain == nil {
				return false
			}
		}
		call, ok := ast.Unparen(chain).(*ast.CallExpr)
		if !ok {
			return true
		}
		selector, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
		if !ok || slices.Contains([]string{"Clauses", "Raw", "Exec", "Session"}, selector.Sel.Name) {
			return false
		}
		chain = selector.X
	}
}

func lockIn(pass *source, stmt ast.Stmt, tx types.Object) (lock *ast.CallExpr) {
	calls(pass, stmt, func(call *ast.CallExpr) {
		if lockedBy(pass, call) == tx {
			lock = call
		}
	})
	return lock
}

// lockedAbove reports whether the transaction has a lock already: then a query needs none, and
// the next lock is for what it has shown.
func lockedAbove(pass *source, list []ast.Stmt, tx types.Object) bool {
	return slices.ContainsFunc(list, func(s ast.Stmt) bool { return lockIn(pass, s, tx) != nil })
}

// knownBefore reports whether all variables of a lock's arguments are older than a query.
func knownBefore(pass *source, lock *ast.CallExpr, query ast.Node) bool {
	for v := range localsOf(pass, lock) {
		if v.Pos() >= query.Pos() {
			return false
		}
	}
	return true
}

// localsOf returns the variables of a call's arguments, but for its transaction and context.
func localsOf(pass *source, call *ast.CallExpr) map[types.Object]bool {
	locals := map[types.Object]bool{}
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			v, ok := pass.TypesInfo.Uses[id].(*types.Var)
			if ok && !v.IsField() && v.Parent() != v.Pkg().Scope() && !isTx(v.Type()) && typeName(v.Type()) != "context.Context" {
				locals[v] = true
			}
			return true
		})
	}
	return locals
}

// changed reports whether statements may change what a lock's arguments say: by assigning,
// by taking an address, by handing on something that points.
func changed(pass *source, lock *ast.CallExpr, list []ast.Stmt) (changed bool) {
	locals := localsOf(pass, lock)
	of := func(e ast.Expr) bool { return locals[pathOf(pass, e).root] || locals[target(pass, e).root] }
	for _, stmt := range list {
		ast.Inspect(stmt, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				changed = changed || slices.ContainsFunc(n.Lhs, of)
			case *ast.IncDecStmt:
				changed = changed || of(n.X)
			case *ast.UnaryExpr:
				changed = changed || n.Op == token.AND && of(n.X)
			case *ast.CallExpr:
				for _, arg := range n.Args {
					changed = changed || of(arg) && !isBasic(pass.TypesInfo.TypeOf(arg))
				}
			}
			return true
		})
	}
	return changed
}

func isBasic(t types.Type) bool {
	_, ok := t.Underlying().(*types.Basic)
	return ok
}

// goesOn reports whether what follows a statement always follows, but for errors: else the
// query may have said that no lock is needed.
func goesOn(pass *source, stmt ast.Stmt) bool {
	switch s := stmt.(type) {
	case *ast.AssignStmt, *ast.ExprStmt, *ast.DeclStmt, *ast.DeferStmt:
		return true
	case *ast.IfStmt:
		cond, ok := ast.Unparen(s.Cond).(*ast.BinaryExpr)
		return ok && cond.Op == token.NEQ && isError(pass.TypesInfo.TypeOf(cond.X)) && s.Else == nil
	}
	return false
}

func isError(t types.Type) bool {
	return t != nil && types.Identical(t, types.Universe.Lookup("error").Type())
}
