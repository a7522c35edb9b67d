package checks

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// OuterPool finds statements that are sent beside the transaction.
var OuterPool = check("outerpool", "find uses of the pool inside of a function that runs in a transaction with locks", runOuterPool)

type outer struct {
	*source
	begun map[types.Object]bool // *gorm.DB that are transactions
	found map[ast.Expr]bool     // what is reported, in a transaction around this one perhaps
}

func runOuterPool(pass *source) {
	o := &outer{source: pass, begun: begunIn(pass), found: map[ast.Expr]bool{}}
	for call := range nodes[*ast.CallExpr](programs(pass)...) {
		if t, ok := transactionOf(pass, call); ok && t.locks(pass) {
			o.check(t)
		}
	}
}

// begunIn finds the variables of a package that are GORM's transactions.
func begunIn(pass *source) map[types.Object]bool {
	begun := map[types.Object]bool{}
	for call := range nodes[*ast.CallExpr](pass.Files...) {
		if t, ok := transactionOf(pass, call); ok && t.tx != nil {
			begun[t.tx] = true
		}
	}
	for assign := range nodes[*ast.AssignStmt](pass.Files...) {
		call, ok := ast.Unparen(assign.Rhs[0]).(*ast.CallExpr)
		if id, isIdent := assign.Lhs[0].(*ast.Ident); ok && isIdent && nameOf(pass, call) == "(*gorm.io/gorm.DB).Begin" {
			begun[pass.TypesInfo.ObjectOf(id)] = true
		}
	}
	return begun
}

func (o *outer) check(t transaction) {
	if !t.pool.known() || o.begun[t.pool.root] || t.pool.root.Name() == "tx" {
		return
	}
	if t.fn == nil { // a function that is named
		for _, used := range queriedIn(o.source, t.arg, &ast.CallExpr{Fun: t.arg}) {
			if used.same(t.pool) {
				o.report(t, used)
			}
		}
		return
	}
	if o.changed(t) {
		return
	}
	other := o.otherDatabase(t)
	o.each(t, func(call *ast.CallExpr, used path) {
		switch {
		case used.queries == "" && used.same(t.pool):
			o.report(t, used, o.fix(t, call, used)...)
		case used.queries != "" && !slices.Contains(other, used.queries):
			o.report(t, used, o.bind(t, call, used)...)
		}
	})
}

func (o *outer) report(t transaction, used path, fixes ...analysis.SuggestedFix) {
	if o.found[used.at] {
		return
	}
	o.found[used.at] = true
	text, verb, but := types.ExprString(used.at), " is the pool", ""
	switch {
	case used.indirect:
		verb = " uses " + name(used) + ", the pool"
	case used.queries != "":
		verb = " queries the pool"
	}
	switch {
	case len(fixes) == 0:
	case elsewhere(t.fn, used.at):
		fixes, but = nil, "; no fix: another goroutine may run this, and must not share the transaction"
	case deferred(t.fn, used.at):
		fixes, but = nil, "; no fix: in the transaction, an error would roll this back"
	case rowsOpen(o.source, t.fn, used.at):
		fixes, but = nil, "; no fix: the transaction may have open rows here, and its connection be busy"
	}
	report(o.source, used.at, text+verb+", not the transaction of "+short(t.name)+
		": what it does is not under the locks and not part of the transaction"+but, fixes...)
}

// elsewhere reports whether another goroutine may run a node of a function: it is in a go
// statement, or in a function literal that is not called where it stands.
func elsewhere(fn *ast.FuncLit, at ast.Node) bool {
	here := map[ast.Node]bool{fn: true}
	return contains(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			here[ast.Unparen(n.Fun)] = true
		case *ast.GoStmt:
			return encloses(n, at)
		case *ast.FuncLit:
			return encloses(n, at) && !here[n]
		}
		return false
	})
}

// deferred reports whether a node of a function runs at its end, also with an error.
func deferred(fn *ast.FuncLit, at ast.Node) bool {
	return contains(fn, func(n ast.Node) bool {
		stmt, ok := n.(*ast.DeferStmt)
		return ok && encloses(stmt, at)
	})
}

// rowsOpen reports whether rows may be open where a node of a function runs: it is in a loop over
// them, or they have a variable there.
func rowsOpen(pass *source, fn *ast.FuncLit, at ast.Node) bool {
	return contains(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt: // for rows.Next()
			return n.Cond != nil && encloses(n, at) && callsNext(n.Cond)
		case *ast.RangeStmt: // over a function
			_, ok := pass.TypesInfo.TypeOf(n.X).Underlying().(*types.Signature)
			return ok && encloses(n.Body, at)
		case *ast.Ident:
			v, ok := pass.TypesInfo.Defs[n].(*types.Var)
			return ok && v.Pos() < at.Pos() && v.Parent() != nil && v.Parent().Contains(at.Pos()) && isRows(v.Type())
		}
		return false
	})
}

func callsNext(cond ast.Expr) bool {
	return contains(cond, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		return ok && selector.Sel.Name == "Next"
	})
}

func isRows(t types.Type) bool {
	return typeName(t) == "database/sql.Rows" || typeName(t) == "database/sql.Row"
}

func encloses(node, inner ast.Node) bool {
	return node.Pos() <= inner.Pos() && inner.End() <= node.End()
}

// each calls f for what a transaction's function queries, but for Queries that are given
// the transaction, or that are made there.
func (o *outer) each(t transaction, f func(call *ast.CallExpr, used path)) {
	reached(o.source, t.fn, func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		for _, used := range queriedBy(o.source, call) {
			if used.queries == "" || t.gives(used.queries) && !o.given(t, call) && !within(t.fn, used.root) {
				f(call, used)
			}
		}
	})
}

// gives reports whether a transaction's function is given what stands for Queries of a type: a
// *sql.Tx, what lockgen generates, or Queries that its caller has bound.
func (t transaction) gives(queries string) bool {
	if t.tx != nil {
		return typeName(t.tx.Type()) == sqlTx || isLocked(t.tx.Type())
	}
	return t.queries == queries
}

// given reports whether a call is given the transaction, as WithLocks of lockgen is.
func (o *outer) given(t transaction, call *ast.CallExpr) bool {
	return slices.ContainsFunc(call.Args, func(arg ast.Expr) bool { return pathOf(o.source, arg).is(t.tx) })
}

// otherDatabase returns the types of Queries that a transaction doesn't use, where it uses
// another: they may well be of another database.
func (o *outer) otherDatabase(t transaction) (others []string) {
	bound := map[string]bool{}
	reached(o.source, t.fn, func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if ok && txOf(o.source, call) != nil && withTx(o.TypesInfo.TypeOf(call)) {
			bound[typeName(o.TypesInfo.TypeOf(call))] = true
		}
	})
	o.each(t, func(_ *ast.CallExpr, used path) {
		if used.queries != "" && len(bound) > 0 && !bound[used.queries] {
			others = append(others, used.queries)
		}
	})
	return others
}

// changed reports whether the function gives the pool's variable another value.
func (o *outer) changed(t transaction) bool {
	return contains(t.fn, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		return ok && slices.ContainsFunc(a.Lhs, func(left ast.Expr) bool { return target(o.source, left).same(t.pool) })
	})
}

// fix uses the transaction in the place of the pool, where it has the same methods.
func (o *outer) fix(t transaction, call *ast.CallExpr, used path) []analysis.SuggestedFix {
	if t.tx == nil || used.indirect || !visible(o.source, t.tx, call) {
		return nil
	}
	fn := calleeOf(o.source, call)
	switch of := t.tx.Type(); {
	case typeName(of) == sqlTx && withTx(o.TypesInfo.TypeOf(call)): // New of sqlc
	case fn == nil || !sendsOne(o.source, call):
		return nil
	case typeName(of) == gormDB && !finishes(o.source, call), typeName(of) != gormDB && !has(of, fn):
		return nil
	}
	return []analysis.SuggestedFix{replace("Use the transaction", used.at, t.tx.Name())}
}

// Methods that send more than a statement. In another transaction, those that begin one would
// set a savepoint, or end the other.
var several = strings.Fields("Association Begin BeginTx CreateInBatches FindInBatches Transaction")

// sendsOne reports whether a call sends one statement, which doesn't end a transaction, and
// leaves nothing open.
func sendsOne(pass *source, call *ast.CallExpr) bool {
	fn := calleeOf(pass, call)
	for v := range fn.Signature().Results().Variables() {
		switch typeName(v.Type()) {
		case "database/sql.Rows", "database/sql.Stmt":
			return false
		}
	}
	if text := fn.Signature().Params().Len() - 2; strings.HasPrefix(fn.Name(), "Exec") && fn.Signature().Variadic() && text >= 0 {
		return statementOf(textOf(pass.TypesInfo, call.Args[text])).first("DELETE", "INSERT", "REPLACE", "UPDATE", "WITH")
	}
	return !slices.Contains(several, fn.Name())
}

func (o *outer) bind(t transaction, call *ast.CallExpr, used path) []analysis.SuggestedFix {
	if t.tx == nil || !withTx(o.TypesInfo.TypeOf(used.at)) {
		return nil
	}
	if isLocked(t.tx.Type()) {
		return o.fix(t, call, used)
	}
	if used.indirect || !visible(o.source, t.tx, used.at) || !sendsOne(o.source, call) {
		return nil
	}
	return []analysis.SuggestedFix{{Message: "Use the transaction",
		TextEdits: []analysis.TextEdit{edit(used.at.End(), used.at.End(), ".WithTx("+t.tx.Name()+")")}}}
}

// has reports whether a type has a method like this one.
func has(t types.Type, fn *types.Func) bool {
	if fn.Signature().Recv() == nil {
		return false
	}
	method, _, _ := types.LookupFieldOrMethod(t, true, nil, fn.Name())
	like, ok := method.(*types.Func)
	return ok && types.Identical(like.Signature().Params(), fn.Signature().Params()) && types.Identical(like.Signature().Results(), fn.Signature().Results())
}

// visible reports whether a variable's name means it where a node stands.
func visible(pass *source, v *types.Var, at ast.Node) bool {
	scope := pass.Pkg.Scope().Innermost(at.Pos())
	if scope == nil {
		return false
	}
	_, found := scope.LookupParent(v.Name(), at.Pos())
	return found == v
}

func within(node ast.Node, v types.Object) bool {
	return v != nil && node.Pos() <= v.Pos() && v.Pos() < node.End()
}

func name(p path) string { return p.root.Name() + p.fields }

// short is the name of a function as a program writes it.
func short(name string) string {
	if name == gormTransaction {
		return "Transaction"
	}
	return name[strings.LastIndex(name, "/")+1:]
}
