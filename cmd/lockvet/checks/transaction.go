package checks

import (
	"go/ast"
	"go/types"
	"slices"
)

// A transaction is a call that runs a function in a transaction.
type transaction struct {
	name    string
	pool    path
	arg     ast.Expr     // what is run
	fn      *ast.FuncLit // its text, if that is known
	tx      *types.Var   // the parameter of fn, if it has a name
	queries string       // the type of the Queries of sqlc that fn is given
	plain   bool         // locks nothing by itself
	keys    bool         // locks keys before fn
	relaxed bool         // below REPEATABLE READ, perhaps
}

// Where the pool, the keys to lock and the function stand among the arguments.
var transactions = map[string]struct{ pool, keys, fn int }{
	"locksqlc.Run":         {1, 2, 3},
	"locksqlc.Optimistic":  {1, 2, 3},
	"locksqlc.Once":        {1, 2, 3},
	"locksqlc.OnceValue":   {1, 2, 3},
	"lockgorm.Transaction": {0, 1, 2},
	"lockgorm.Optimistic":  {0, 1, 2},
	"lockgorm.Once":        {0, 1, 2},
	"lockgorm.OnceValue":   {0, 1, 2},
	"txlock/job.TickTx":    {1, -1, 4},
	gormTransaction:        {-1, -1, 0},
}

const gormTransaction = "(*gorm.io/gorm.DB).Transaction"

func transactionOf(pass *source, call *ast.CallExpr) (t transaction, ok bool) {
	t.name, t.plain = nameOf(pass, call), nameOf(pass, call) == gormTransaction
	where, ok := transactions[t.name]
	if !ok && runsLocked(pass, call) {
		t.name, ok = "Run", true
		where.pool, where.keys, where.fn = 1, 2, 3
	}
	fn := calleeOf(pass, call)
	h := pass.helper(fn)
	switch {
	case !ok && h.Runs != nil:
		t.name, t.plain, t.keys, t.relaxed = fn.Name(), h.Runs.Plain, h.Runs.Keys, h.Runs.Relaxed
		t.pool, where.fn = h.Runs.Pool.in(pass, call), h.Runs.Fn
	case !ok || len(call.Args) <= where.fn:
		return t, false
	case where.pool >= 0:
		t.pool = pathOf(pass, call.Args[where.pool])
		t.keys = where.keys >= 0 && !pass.TypesInfo.Types[call.Args[where.keys]].IsNil()
	default:
		t.pool = receiverPath(pass, call)
	}
	if len(call.Args) <= where.fn {
		return t, false
	}
	t.arg, t.relaxed = call.Args[where.fn], t.relaxed || relaxed(pass, call)
	if t.fn = pass.text(t.arg); t.fn == nil {
		return t, true
	}
	for _, field := range t.fn.Type.Params.List {
		if of := pass.TypesInfo.TypeOf(field.Type); withTx(of) {
			t.queries = typeName(of)
		}
		for _, name := range field.Names {
			if v, ok := pass.TypesInfo.Defs[name].(*types.Var); ok && name.Name != "_" && (isTx(v.Type()) || isLocked(v.Type())) {
				t.tx = v
			}
		}
	}
	return t, true
}

// text returns the function that is written in the place of an expression, or that is the
// only value of its variable.
func (s *source) text(expr ast.Expr) *ast.FuncLit {
	if fn, ok := ast.Unparen(expr).(*ast.FuncLit); ok {
		return fn
	}
	fn, _ := s.only(expr).(*ast.FuncLit)
	return fn
}

func isTx(t types.Type) bool {
	return slices.Contains([]string{sqlTx, gormDB, "txlock.Tx"}, typeName(t))
}

// isLocked reports whether a type is what lockgen generates: the queries of a transaction,
// with a method Locks.
func isLocked(t types.Type) bool {
	method, _, _ := types.LookupFieldOrMethod(t, true, nil, "Locks")
	fn, ok := method.(*types.Func)
	return ok && fn.Signature().Results().Len() == 1 && typeName(fn.Signature().Results().At(0).Type()) == scopeOf
}

// runsLocked reports whether a call is one of Run as lockgen generates it, of Queries or of the
// package in front of them.
func runsLocked(pass *source, call *ast.CallExpr) bool {
	fn := calleeOf(pass, call)
	if fn == nil || fn.Name() != "Run" || fn.Signature().Params().Len() != 4 {
		return false
	}
	run, ok := fn.Signature().Params().At(3).Type().(*types.Signature)
	return ok && run.Params().Len() == 1 && isLocked(run.Params().At(0).Type())
}

// locks reports whether a transaction takes a lock, or is one of lockstep's.
func (t transaction) locks(pass *source) bool { return !t.plain || t.locksItself(pass) }

// locksItself reports whether the function of a transaction takes a lock in it.
func (t transaction) locksItself(pass *source) (locks bool) {
	if t.fn == nil || t.tx == nil {
		return false
	}
	reached(pass, t.fn, func(n ast.Node) {
		if call, ok := n.(*ast.CallExpr); ok && lockedBy(pass, call) == t.tx {
			locks = true
		}
	})
	return locks
}
