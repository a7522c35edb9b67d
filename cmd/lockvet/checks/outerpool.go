package checks

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// OuterPool finds statements that are sent beside the transaction.
var OuterPool = &analysis.Analyzer{
	Name:     "outerpool",
	Doc:      "find uses of the pool inside of a function that runs in a transaction with locks",
	URL:      url + "outerpool",
	Requires: []*analysis.Analyzer{helpers},
	Run:      runOuterPool,
}

type outer struct {
	pass   *analysis.Pass
	find   known
	joined map[types.Object]types.Object
	begun  map[types.Object]bool // *gorm.DB that are transactions
}

func runOuterPool(pass *analysis.Pass) (any, error) {
	o := &outer{pass: pass, find: pass.ResultOf[helpers].(known), joined: joinedIn(pass), begun: begunIn(pass)}
	for _, file := range programs(pass) {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if t, ok := transactionOf(pass, call); ok && (t.name != gormTransaction || o.locks(t)) {
				o.check(t)
			}
			return true
		})
	}
	return nil, nil
}

// begunIn finds the variables of a package that are GORM's transactions.
func begunIn(pass *analysis.Pass) map[types.Object]bool {
	begun := map[types.Object]bool{}
	for _, file := range pass.Files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if t, ok := transactionOf(pass, n); ok && t.tx != nil {
					begun[t.tx] = true
				}
			case *ast.AssignStmt:
				call, ok := ast.Unparen(n.Rhs[0]).(*ast.CallExpr)
				if id, isIdent := n.Lhs[0].(*ast.Ident); ok && isIdent && nameOf(pass, call) == "(*gorm.io/gorm.DB).Begin" {
					begun[pass.TypesInfo.ObjectOf(id)] = true
				}
			}
			return true
		})
	}
	return begun
}

func (o *outer) locks(t transaction) (locks bool) {
	reached(t.fn, func(n ast.Node) {
		if call, ok := n.(*ast.CallExpr); ok && t.tx != nil && lockedBy(o.pass, o.find, o.joined, call) == t.tx {
			locks = true
		}
	})
	return locks
}

func (o *outer) check(t transaction) {
	if !t.pool.known() || o.begun[t.pool.root] || t.pool.root.Name() == "tx" || o.assigned(t) {
		return
	}
	other := o.otherDatabase(t)
	reached(t.fn, func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		for _, used := range queriedBy(o.pass, o.find, call) {
			if used.same(t.pool) {
				report(o.pass, used.at, name(used)+" is the pool, not the transaction of "+short(t.name)+
					": what it does is not under the locks and not part of the transaction", o.fix(t, call, used)...)
			}
		}
		if used := o.queries(t, call); used.known() && !slices.Contains(other, typeName(o.pass.TypesInfo.TypeOf(used.at))) {
			report(o.pass, used.at, name(used)+" queries the pool, not the transaction of "+short(t.name)+
				": what it does is not under the locks and not part of the transaction", o.bind(t, call, used)...)
		}
	})
}

// given tells whether a call is given the transaction, as WithLocks of lockgen is.
func (o *outer) given(t transaction, call *ast.CallExpr) bool {
	return t.tx != nil && slices.ContainsFunc(call.Args, func(arg ast.Expr) bool { return pathOf(o.pass, arg).is(t.tx) })
}

// queries returns the Queries from outside of a transaction whose method a call is.
func (o *outer) queries(t transaction, call *ast.CallExpr) path {
	receiver := receiverOf(call)
	if receiver == nil || !withTx(o.pass.TypesInfo.TypeOf(receiver)) {
		return path{}
	}
	fn := calleeOf(o.pass, call)
	if fn == nil || fn.Name() == "Close" || o.given(t, call) || withTx(o.pass.TypesInfo.TypeOf(call)) || t.tx == nil || typeName(t.tx.Type()) != sqlTx && !isLocked(t.tx.Type()) {
		return path{}
	}
	if slices.ContainsFunc(call.Args, func(arg ast.Expr) bool { return typeName(o.pass.TypesInfo.TypeOf(arg)) == sqlTx }) {
		return path{} // WithLocks of lockgen: what it is for is said by what it is given
	}
	used := pathOf(o.pass, receiver)
	if !used.known() || o.joined[used.root] != nil || within(t.fn, used.root) {
		return path{}
	}
	return used
}

// otherDatabase returns the types of Queries that a transaction doesn't use, where it uses
// another: they may well be of another database.
func (o *outer) otherDatabase(t transaction) (others []string) {
	bound, unbound := map[string]bool{}, map[string]bool{}
	reached(t.fn, func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		if txOf(o.pass, call) != nil && withTx(o.pass.TypesInfo.TypeOf(call)) {
			bound[typeName(o.pass.TypesInfo.TypeOf(call))] = true
		} else if used := o.queries(t, call); used.known() {
			unbound[typeName(o.pass.TypesInfo.TypeOf(used.at))] = true
		}
	})
	for queries := range unbound {
		if len(bound) > 0 && !bound[queries] {
			others = append(others, queries)
		}
	}
	return others
}

// assigned tells whether the function gives the pool's variable another value.
func (o *outer) assigned(t transaction) (assigned bool) {
	ast.Inspect(t.fn, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok {
			for _, left := range a.Lhs {
				assigned = assigned || pathOf(o.pass, left).same(t.pool)
			}
		}
		return true
	})
	return assigned
}

// fix uses the transaction in the place of the pool, where it has the same methods.
func (o *outer) fix(t transaction, call *ast.CallExpr, used path) []analysis.SuggestedFix {
	if t.tx == nil || !visible(o.pass, t.tx, call) {
		return nil
	}
	fn := calleeOf(o.pass, call)
	if isLocked(t.tx.Type()) && (fn == nil || !has(t.tx.Type(), fn)) {
		return nil
	}
	if typeName(t.tx.Type()) == sqlTx && (fn == nil || !has(t.tx.Type(), fn)) && !withTx(o.pass.TypesInfo.TypeOf(call)) {
		return nil
	}
	return []analysis.SuggestedFix{replace("Use the transaction", used.at, t.tx.Name())}
}

func (o *outer) bind(t transaction, call *ast.CallExpr, used path) []analysis.SuggestedFix {
	if isLocked(t.tx.Type()) {
		return o.fix(t, call, used)
	}
	if !visible(o.pass, t.tx, used.at) {
		return nil
	}
	return []analysis.SuggestedFix{{Message: "Use the transaction",
		TextEdits: []analysis.TextEdit{edit(used.at.End(), used.at.End(), ".WithTx("+t.tx.Name()+")")}}}
}

// has tells whether a type has a method like this one.
func has(t types.Type, fn *types.Func) bool {
	if fn.Signature().Recv() == nil {
		return false
	}
	method, _, _ := types.LookupFieldOrMethod(t, true, nil, fn.Name())
	like, ok := method.(*types.Func)
	return ok && types.Identical(like.Signature().Params(), fn.Signature().Params()) && types.Identical(like.Signature().Results(), fn.Signature().Results())
}

// visible tells whether a variable's name means it where a node stands.
func visible(pass *analysis.Pass, v *types.Var, at ast.Node) bool {
	scope := pass.Pkg.Scope().Innermost(at.Pos())
	if scope == nil {
		return false
	}
	_, found := scope.LookupParent(v.Name(), at.Pos())
	return found == v
}

func within(node ast.Node, v types.Object) bool { return node.Pos() <= v.Pos() && v.Pos() < node.End() }

func name(p path) string { return p.root.Name() + p.fields }

// short is the name of a function as a program writes it.
func short(name string) string {
	if name == gormTransaction {
		return "Transaction"
	}
	return name[strings.LastIndex(name, "/")+1:]
}
