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
	before := lockedIn(pass)
	eachList(pass, func(list []ast.Stmt) {
		for i, stmt := range list {
			query, tx := readIn(pass, stmt)
			if tx == nil || before.have(tx, query) {
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

// A locked knows the transactions of a package whose queries need no lock behind them: they have
// a lock already, or a snapshot for each query.
type locked struct {
	*source
	always map[types.Object]bool
	since  map[types.Object]token.Pos // where a function locks first, or makes sure of a lock
}

func lockedIn(pass *source) locked {
	l := locked{pass, map[types.Object]bool{}, map[types.Object]token.Pos{}}
	for n := range nodes[ast.Node](pass.Files...) {
		l.addOwn(n)
	}
	for known := -1; known < len(l.always); {
		known = len(l.always)
		for call := range nodes[*ast.CallExpr](pass.Files...) {
			l.addGiven(call)
		}
	}
	return l
}

// have reports whether a transaction needs no lock behind a node.
func (l locked) have(tx types.Object, at ast.Node) bool {
	since, ok := l.since[tx]
	return l.always[tx] || ok && since < at.Pos()
}

// addOwn adds a transaction that is locked by a node, or begun by it.
func (l locked) addOwn(n ast.Node) {
	switch n := n.(type) {
	case *ast.CallExpr:
		tx := assuredBy(l.source, n)
		if _, ok := l.since[tx]; tx != nil && !ok {
			l.since[tx] = n.Pos()
		}
	case *ast.AssignStmt: // tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		call, ok := ast.Unparen(n.Rhs[0]).(*ast.CallExpr)
		if tx := target(l.source, n.Lhs[0]); ok && tx.known() && isTx(tx.root.Type()) && relaxed(l.source, call) {
			l.always[tx.root] = true
		}
	}
}

// assuredBy returns the transaction of a call that locks, or that asks for a lock.
func assuredBy(pass *source, call *ast.CallExpr) types.Object {
	switch name := nameOf(pass, call); {
	case slices.Contains([]string{"lockgorm.AssertLocked", "txlock.AssertLocked", "txlock.AssertRLocked"}, name):
		for _, arg := range call.Args {
			if isTx(pass.TypesInfo.TypeOf(arg)) {
				return pathOf(pass, arg).root
			}
		}
	case name == "(*txlock.Scope).Held":
		return pass.joined[pathOf(pass, receiverOf(call)).root]
	}
	return lockedBy(pass, call)
}

// relaxed reports whether a call begins a transaction below REPEATABLE READ, or may do so: there
// each query has a snapshot of its own.
func relaxed(pass *source, call *ast.CallExpr) bool {
	return slices.ContainsFunc(call.Args, func(arg ast.Expr) bool {
		return typeName(pass.TypesInfo.TypeOf(arg)) == "database/sql.TxOptions" && !repeatable(pass, arg)
	})
}

// repeatable reports whether it is known that options are of REPEATABLE READ or above, or of the
// default.
func repeatable(pass *source, options ast.Expr) bool {
	address, _ := ast.Unparen(options).(*ast.UnaryExpr)
	if address == nil {
		return false
	}
	made, ok := address.X.(*ast.CompositeLit)
	return ok && !slices.ContainsFunc(made.Elts, func(e ast.Expr) bool {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			e = pair.Value
		}
		_, level, _ := strings.Cut(types.ExprString(e), ".")
		return typeName(pass.TypesInfo.TypeOf(e)) == "database/sql.IsolationLevel" &&
			!slices.Contains([]string{"LevelDefault", "LevelRepeatableRead", "LevelSerializable"}, level)
	})
}

// addGiven adds the variables to which a call gives a transaction that is locked.
func (l locked) addGiven(call *ast.CallExpr) {
	if t, ok := transactionOf(l.source, call); ok && (t.keys || t.relaxed) {
		l.always[t.tx] = true
		if fn := calleeOf(l.source, &ast.CallExpr{Fun: t.arg}); fn != nil { // it is named
			for v := range fn.Signature().Params().Variables() {
				l.always[v] = true
			}
		}
	}
	fn := calleeOf(l.source, call)
	if fn == nil {
		return
	}
	params := fn.Signature().Params()
	for i, arg := range call.Args[:min(len(call.Args), params.Len())] {
		if p := pathOf(l.source, arg); p.variable() && l.have(p.root, call) {
			l.always[params.At(i)] = true
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
	for n := range nodes[ast.Node](programs(pass)...) {
		switch n := n.(type) {
		case *ast.BlockStmt:
			f(n.List)
		case *ast.CaseClause:
			f(n.Body)
		case *ast.CommClause:
			f(n.Body)
		}
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
	for id := range nodes[*ast.Ident](call.Args...) {
		v, ok := pass.TypesInfo.Uses[id].(*types.Var)
		if ok && !v.IsField() && v.Parent() != v.Pkg().Scope() && !isTx(v.Type()) && typeName(v.Type()) != "context.Context" {
			locals[v] = true
		}
	}
	return locals
}

// changed reports whether statements may change what a lock's arguments say: by assigning,
// by taking an address, by handing on something that points.
func changed(pass *source, lock *ast.CallExpr, list []ast.Stmt) (changed bool) {
	locals := localsOf(pass, lock)
	of := func(e ast.Expr) bool { return locals[pathOf(pass, e).root] || locals[target(pass, e).root] }
	for n := range nodes[ast.Node](list...) {
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
