package checks

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
)

// A path is a variable, or a field of one: db, s.db.
type path struct {
	root   types.Object
	fields string
	at     ast.Expr
}

func (p path) known() bool            { return p.root != nil }
func (p path) same(as path) bool      { return p.known() && p.root == as.root && p.fields == as.fields }
func (p path) variable() bool         { return p.known() && p.fields == "" }
func (p path) is(v types.Object) bool { return p.variable() && p.root == v }

// pathOf returns the path at the beginning of an expression: of db in
// db.WithContext(ctx).Where("id"), of locks in locks.WaitAtMost(d).
func pathOf(pass *analysis.Pass, expr ast.Expr) path {
	switch e := ast.Unparen(expr).(type) {
	case *ast.Ident:
		if v, ok := pass.TypesInfo.ObjectOf(e).(*types.Var); ok {
			return path{root: v, at: e}
		}
	case *ast.SelectorExpr:
		if v, ok := pass.TypesInfo.Uses[e.Sel].(*types.Var); ok {
			if !v.IsField() {
				return path{root: v, at: e} // a variable of another package
			}
			if p := pathOf(pass, e.X); p.known() {
				return path{root: p.root, fields: p.fields + "." + v.Name(), at: e}
			}
		}
	case *ast.CallExpr:
		if receiver := receiverOf(e); receiver != nil && chains(pass, e) {
			return pathOf(pass, receiver)
		}
	}
	return path{}
}

// chains tells whether a call returns its receiver, with options.
func chains(pass *analysis.Pass, call *ast.CallExpr) bool {
	name := nameOf(pass, call)
	if name == "(*txlock.Scope).WaitAtMost" {
		return true
	}
	fn := calleeOf(pass, call)
	return fn != nil && fn.Signature().Recv() != nil && typeName(fn.Signature().Recv().Type()) == gormDB &&
		fn.Name() != "Begin" && fn.Signature().Results().Len() == 1 && typeName(fn.Signature().Results().At(0).Type()) == gormDB
}

func receiverOf(call *ast.CallExpr) ast.Expr {
	if selector, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		return selector.X
	}
	return nil
}

// A transaction is a call that runs a function in a transaction.
type transaction struct {
	name string
	pool path
	fn   *ast.FuncLit
	tx   *types.Var // the parameter of fn, if it has a name
}

// Where the pool and the function stand among the arguments.
var transactions = map[string]struct{ pool, fn int }{
	"locksqlc.Run":          {1, 3},
	"locksqlc.RunTx":        {1, 4},
	"locksqlc.Optimistic":   {1, 3},
	"locksqlc.OptimisticTx": {1, 4},
	"locksqlc.Once":         {1, 3},
	"locksqlc.OnceValue":    {1, 3},
	"lockgorm.Transaction":  {0, 2},
	"lockgorm.Optimistic":   {0, 2},
	"lockgorm.Once":         {0, 2},
	"lockgorm.OnceValue":    {0, 2},
	"txlock/job.TickTx":     {1, 4},
	gormTransaction:         {-1, 0},
}

const gormTransaction = "(*gorm.io/gorm.DB).Transaction"

func transactionOf(pass *analysis.Pass, call *ast.CallExpr) (t transaction, ok bool) {
	t.name = nameOf(pass, call)
	where, ok := transactions[t.name]
	if !ok && runsLocked(pass, call) {
		t.name, ok = "Run", true
		where.pool, where.fn = 1, 3
	}
	if !ok || len(call.Args) <= where.fn {
		return t, false
	}
	pool := receiverOf(call)
	if where.pool >= 0 {
		pool = call.Args[where.pool]
	}
	if t.fn, ok = ast.Unparen(call.Args[where.fn]).(*ast.FuncLit); !ok {
		return t, false
	}
	t.pool = pathOf(pass, pool)
	for _, field := range t.fn.Type.Params.List {
		for _, name := range field.Names {
			if v, ok := pass.TypesInfo.Defs[name].(*types.Var); ok && name.Name != "_" && (isTx(v.Type()) || isLocked(v.Type())) {
				t.tx = v
			}
		}
	}
	return t, true
}

func isTx(t types.Type) bool {
	return slices.Contains([]string{sqlTx, gormDB, "txlock.Tx"}, typeName(t))
}

// isLocked tells whether a type is what lockgen generates: the queries of a transaction,
// with a method Locks.
func isLocked(t types.Type) bool {
	method, _, _ := types.LookupFieldOrMethod(t, true, nil, "Locks")
	fn, ok := method.(*types.Func)
	return ok && fn.Signature().Results().Len() == 1 && typeName(fn.Signature().Results().At(0).Type()) == scopeOf
}

// runsLocked tells whether a call is one of Run as lockgen generates it, of Queries or of the
// package in front of them.
func runsLocked(pass *analysis.Pass, call *ast.CallExpr) bool {
	fn := calleeOf(pass, call)
	if fn == nil || fn.Name() != "Run" || fn.Signature().Params().Len() != 4 {
		return false
	}
	run, ok := fn.Signature().Params().At(3).Type().(*types.Signature)
	return ok && run.Params().Len() == 1 && isLocked(run.Params().At(0).Type())
}
