package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// A helper is what is known of a function: at which places among its parameters it is
// given a transaction that it locks, or the *txlock.Scope of one, or a function that it calls,
// which pools it queries, which one it returns, in whose transactions it runs a function, and,
// for a method that sqlc generates, whether it is a SELECT without a lock.
type helper struct {
	Locks, Calls []int
	Sends        []int // the transactions that it is given, and sends statements in
	Queries      []ref
	Makes        []ref // what a function queries that it returns
	Returns      *ref
	Runs         *runs
	Selects      bool
	Closes       bool // a manager of leases that it is given
	Works        bool // sends more than locks in a transaction
}

func (*helper) AFact() {}

// A ref is a path of a function as its callers know it: of a parameter, of its receiver
// (-1), or of a variable of a package.
type ref struct {
	Of      int
	Global  string // its name, in package Pkg
	Pkg     string
	Fields  string
	Queries string // the type of Queries of sqlc
}

// Runs are where a function has the pool and the function of a transaction.
type runs struct {
	Pool    ref
	Fn      int
	Plain   bool
	Keys    bool
	Relaxed bool
}

// in returns the path of a ref at a call.
func (r ref) in(pass *source, call *ast.CallExpr) (p path) {
	switch {
	case r.Global != "":
		if fn := calleeOf(pass, call); fn != nil && fn.Pkg() != nil {
			for _, pkg := range append([]*types.Package{fn.Pkg()}, fn.Pkg().Imports()...) {
				if v := pkg.Scope().Lookup(r.Global); v != nil && pkg.Path() == r.Pkg {
					p = path{root: v}
				}
			}
		}
	case r.Of < 0:
		p = receiverPath(pass, call)
	case r.Of < len(call.Args):
		p = pathOf(pass, call.Args[r.Of])
	}
	if !p.known() || r.Of >= 0 && r.Global == "" && r.Fields == "" {
		return p
	}
	p.fields += r.Fields
	p = pass.madeWith(p)
	p.at, p.indirect, p.queries = call.Fun, true, r.Queries
	return p
}

func learn(pass *analysis.Pass) (any, error) {
	own := map[*types.Func]*helper{}
	s := &source{Pass: pass, assigned: assignedIn(pass), busy: map[any]bool{}}
	s.find = func(fn *types.Func) (h helper) {
		if mine, ok := own[fn]; ok {
			return *mine
		}
		if fn.Pkg() != pass.Pkg {
			pass.ImportObjectFact(fn, &h)
		}
		return h
	}
	s.models = modelsOf(s)
	s.joined = joinedIn(s)
	bodies := bodiesOf(pass)
	again := true
	for round := 0; again && round < 20; round++ { // a helper may call one that stands further below
		again = false
		for fn, body := range bodies {
			if h, before := learnt(s, fn, body), own[fn]; before == nil || !reflect.DeepEqual(*before, h) {
				own[fn], again = &h, true
			}
		}
	}
	for fn, h := range own {
		if !reflect.DeepEqual(*h, helper{}) {
			pass.ExportObjectFact(fn, h)
		}
	}
	return s, nil
}

func bodiesOf(pass *analysis.Pass) map[*types.Func]*ast.BlockStmt {
	bodies := map[*types.Func]*ast.BlockStmt{}
	for _, file := range pass.Files {
		for _, decl := range file.Decls {
			if decl, ok := decl.(*ast.FuncDecl); ok && decl.Body != nil {
				if fn, ok := pass.TypesInfo.Defs[decl.Name].(*types.Func); ok {
					bodies[fn] = decl.Body
				}
			}
		}
	}
	return bodies
}

// A learner reads one function.
type learner struct {
	*source
	fn      *types.Func
	chooses bool // whether it looks for a transaction by itself
	helper
}

func learnt(s *source, fn *types.Func, body *ast.BlockStmt) helper {
	l := &learner{source: s, fn: fn, chooses: chooses(s, body)}
	recv := fn.Signature().Recv()
	for selector := range nodes[*ast.SelectorExpr](body) {
		if isClose(s, selector) {
			root := pathOf(s, selector.X).root
			l.Closes = l.Closes || l.param(root) >= 0 || recv != nil && root == recv
		}
	}
	for call := range nodes[*ast.CallExpr](body) {
		l.addParam(&l.Locks, lockedBy(s, call))
		l.addParam(&l.Locks, lockerOf(s, call))
		l.Selects = l.Selects || recv != nil && withTx(recv.Type()) && selects(s, call)
	}
	reached(s, body, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.CallExpr:
			l.call(n)
		case *ast.ReturnStmt:
			l.makes(n)
		}
	})
	for v := range fn.Signature().Params().Variables() {
		if isTx(v.Type()) && statementIn(s, body, v) != nil {
			l.addParam(&l.Sends, v)
		}
	}
	l.Works = l.Works && len(l.Locks) > 0
	l.Returns = l.returned(body)
	return l.helper
}

func add[T comparable](to *[]T, v T) {
	if !slices.Contains(*to, v) {
		*to = append(*to, v)
	}
}

// param returns the place of a parameter, or -1.
func (l *learner) param(v types.Object) int {
	for i := range l.fn.Signature().Params().Len() {
		if l.fn.Signature().Params().At(i) == v {
			return i
		}
	}
	return -1
}

// addParam adds the place of a variable that is a parameter.
func (l *learner) addParam(to *[]int, v types.Object) {
	if i := l.param(v); i >= 0 {
		add(to, i)
	}
}

// ref returns a path as the callers know it.
func (l *learner) ref(p path) (r ref, ok bool) {
	if !p.known() {
		return r, false
	}
	r = ref{Of: l.param(p.root), Fields: p.fields, Queries: p.queries}
	recv := l.fn.Signature().Recv()
	switch {
	case strings.Count(p.fields, ".") > 3: // that of a list, perhaps
		return r, false
	case r.Of >= 0:
		return r, p.fields != "" || p.queries != "" || isPool(p.root.Type())
	case p.root.Pkg() != nil && p.root.Parent() == p.root.Pkg().Scope():
		r.Global, r.Pkg = p.root.Name(), p.root.Pkg().Path()
		return r, true
	}
	return r, recv != nil && p.root == recv && !isPool(recv.Type())
}

func (l *learner) call(call *ast.CallExpr) {
	if _, sends := sentIn(l.source, call); sends {
		locker := l.source.helper(calleeOf(l.source, call))
		l.Works = l.Works || len(locker.Locks) == 0 || locker.Works
	}
	l.queries(&l.Queries, call)
	for _, called := range calledBy(l.source, call) {
		l.addParam(&l.Calls, target(l.source, called).root)
	}
	if t, ok := transactionOf(l.source, call); ok && t.arg != nil {
		l.runs(t)
	}
}

func (l *learner) queries(to *[]ref, call *ast.CallExpr) {
	for _, p := range queriedBy(l.source, call) {
		if r, ok := l.ref(p); ok && (!l.chooses || r.Of >= 0 && r.Fields == "") {
			add(to, r)
		}
	}
}

// makes learns of a function that is returned.
func (l *learner) makes(ret *ast.ReturnStmt) {
	if len(ret.Results) != 1 {
		return
	}
	if fn := l.text(ret.Results[0]); fn != nil {
		reached(l.source, fn, func(n ast.Node) {
			if call, ok := n.(*ast.CallExpr); ok {
				l.queries(&l.Makes, call)
			}
		})
	}
}

// runs learns of a transaction that runs a function of the caller.
func (l *learner) runs(t transaction) {
	pool, ok := l.ref(t.pool)
	if !ok {
		return
	}
	set := func(fn ast.Expr) {
		if i := l.param(target(l.source, fn).root); i >= 0 {
			l.Runs = &runs{Pool: pool, Fn: i, Plain: !t.locks(l.source), Keys: t.keys || t.locksItself(l.source), Relaxed: t.relaxed}
		}
	}
	set(t.arg)
	if t.fn != nil {
		reached(l.source, t.fn, func(n ast.Node) {
			if call, ok := n.(*ast.CallExpr); ok {
				set(call.Fun)
			}
		})
	}
}

// returned returns the pool that a function returns, where it is the same in each return.
func (l *learner) returned(body *ast.BlockStmt) *ref {
	results := l.fn.Signature().Results()
	if results.Len() != 1 || !isPool(results.At(0).Type()) || l.fn.Pkg().Path() == "gorm.io/gorm" {
		return nil
	}
	var found []path
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			p := path{}
			if len(n.Results) == 1 {
				p = pathOf(l.source, n.Results[0])
			}
			found = append(found, p)
		}
		return true
	})
	if len(found) == 0 || slices.ContainsFunc(found, func(p path) bool { return !p.same(found[0]) }) {
		return nil
	}
	if r, ok := l.ref(found[0]); ok {
		return &r
	}
	return nil
}

// chooses reports whether a function asks whether there is a transaction: then the pool may be
// what it uses where there is none.
func chooses(pass *source, body *ast.BlockStmt) bool {
	sends := func(e ast.Expr) bool {
		return e != nil && (isTx(pass.TypesInfo.TypeOf(e)) || isQuerier(pass.TypesInfo.TypeOf(e)))
	}
	return contains(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			return (n.Op == token.EQL || n.Op == token.NEQ) && sends(n.X)
		case *ast.TypeAssertExpr:
			return sends(n.Type)
		case *ast.AssignStmt: // tx, ok := txOf(ctx)
			return len(n.Lhs) == 2 && len(n.Rhs) == 1 && sends(n.Lhs[0]) && !isError(pass.TypesInfo.TypeOf(n.Lhs[1]))
		}
		return false
	})
}
