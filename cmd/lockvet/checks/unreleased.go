package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strconv"

	"golang.org/x/tools/go/analysis/passes/ctrlflow"
	"golang.org/x/tools/go/cfg"
)

// Unreleased finds leases that a path of a function forgets.
var Unreleased = check("unreleased", "find leases without Release, and claims without Finish, on a path to a return", runUnreleased, ctrlflow.Analyzer)

func runUnreleased(pass *source) {
	cfgs := pass.ResultOf[ctrlflow.Analyzer].(*ctrlflow.CFGs)
	for n := range nodes[ast.Node](programs(pass)...) {
		switch fn := n.(type) {
		case *ast.FuncDecl:
			main := fn.Recv == nil && fn.Name.Name == "main" && pass.Pkg.Name() == "main"
			if fn.Body != nil && !main && !closes(pass, fn) { // the end of main is that of the process
				checkPaths(pass, fn, cfgs.FuncDecl(fn))
			}
		case *ast.FuncLit:
			if !closes(pass, fn) {
				checkPaths(pass, fn, cfgs.FuncLit(fn))
			}
		}
	}
}

// closes reports whether a function closes a manager, which releases its leases.
func closes(pass *source, fn ast.Node) bool {
	return contains(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			return isClose(pass, n)
		case *ast.CallExpr:
			return pass.helper(calleeOf(pass, n)).Closes
		}
		return false
	})
}

// isClose reports whether a method is the Close of a manager, which may be embedded.
func isClose(pass *source, n *ast.SelectorExpr) bool {
	fn, ok := pass.TypesInfo.Uses[n.Sel].(*types.Func)
	if !ok || fn.Name() != "Close" || fn.Signature().Recv() == nil {
		return false
	}
	of := typeName(fn.Signature().Recv().Type())
	return of == "txlock/lease.Manager" || of == "txlock/quorum.Manager"
}

// closesAround does so for the function in which a node stands.
func closesAround(pass *source, node ast.Node) (found bool) {
	for _, file := range pass.Files {
		for _, decl := range file.Decls {
			found = found || encloses(decl, node) && closes(pass, decl)
		}
	}
	return found
}

// A handle is a variable with a lease or claim, and the error beside it.
type handle struct {
	guess
	results *ast.FieldList
	seen    map[visit]bool
	idle    map[ast.Expr]bool // where the variable stands, but is neither released nor handed on
	asked   bool              // whether the function asks if the lease is lost: then it may replace it
}

type visit struct {
	block *cfg.Block
	tells bool // whether err is still the error of the acquisition
}

func checkPaths(pass *source, fn ast.Node, g *cfg.CFG) {
	if g == nil { // where functions have none, in package runtime
		return
	}
	for _, block := range g.Blocks {
		for i, node := range block.Nodes {
			h := acquiredBy(pass, fn, node)
			if h == nil {
				continue
			}
			end := h.forgotten(block, block.Nodes[i+1:], h.err != nil)
			if end == nil {
				continue
			}
			line, what := pass.Fset.Position(end.Pos()).Line, "return"
			if line == 0 {
				line = pass.Fset.Position(fn.End()).Line
			}
			if _, ok := end.(*ast.AssignStmt); ok {
				what = "assignment"
			}
			report(pass, node, h.v.Name()+" is not released on all paths: see the "+what+" at line "+strconv.Itoa(line))
		}
	}
}

// acquiredBy returns the handle of an assignment to a variable of a function.
func acquiredBy(pass *source, fn, node ast.Node) *handle {
	assign, ok := node.(*ast.AssignStmt)
	if !ok || len(assign.Rhs) != 1 || len(assign.Lhs) != 2 || isBlank(assign.Lhs[0]) {
		return nil
	}
	call, ok := ast.Unparen(assign.Rhs[0]).(*ast.CallExpr)
	if !ok || !acquires(pass, call) {
		return nil
	}
	v := target(pass, assign.Lhs[0])
	if !v.variable() || !within(fn, v.root) {
		return nil // a field, or of a function around this one
	}
	h := newHandle(pass, v.root, fn)
	h.err, h.results = target(pass, assign.Lhs[1]).root, typeOf(fn).Results
	if h.releasedLater(fn, node) {
		return nil
	}
	return h
}

func newHandle(pass *source, v types.Object, in ast.Node) *handle {
	h := &handle{guess: guess{pass: pass, v: v}, seen: map[visit]bool{}, idle: map[ast.Expr]bool{}}
	for n := range ast.Preorder(in) {
		if of := h.looksAt(n); of != nil {
			h.idle[ast.Unparen(of)] = true
		}
		switch n := n.(type) {
		case *ast.AssignStmt: // l = nil
			for _, left := range n.Lhs {
				h.idle[ast.Unparen(left)] = true
			}
		case *ast.SelectorExpr:
			asks := slices.Contains([]string{"Context", "Done", "Err", "Valid"}, n.Sel.Name)
			h.asked = h.asked || asks && pathOf(pass, n.X).is(v)
		}
	}
	return h
}

// releasedLater reports whether a function literal that is written before an acquisition, and
// deferred perhaps, releases what the variable has by then.
func (h *handle) releasedLater(fn, acquired ast.Node) bool {
	return contains(fn, func(n ast.Node) bool {
		lit, ok := n.(*ast.FuncLit)
		return ok && n != fn && lit.End() <= acquired.Pos() && h.releases(lit)
	})
}

func typeOf(fn ast.Node) *ast.FuncType {
	if decl, ok := fn.(*ast.FuncDecl); ok {
		return decl.Type
	}
	return fn.(*ast.FuncLit).Type
}

// forgotten returns what is reached without a release: a return, or another value of the variable.
func (h *handle) forgotten(block *cfg.Block, nodes []ast.Node, tells bool) ast.Node {
	for _, node := range nodes {
		switch {
		case h.releases(node):
			return nil
		case overwrites(h.pass, node, h.v):
			if h.asked {
				return nil
			}
			return node
		}
		tells = tells && !overwrites(h.pass, node, h.err)
	}
	if ret := block.Return(); ret != nil {
		return ret
	}
	g := h.guess
	g.told = tells
	for _, next := range g.possible(nodes, block.Succs) {
		if at := (visit{next, tells}); !h.seen[at] {
			h.seen[at] = true
			if ret := h.forgotten(next, next.Nodes, tells); ret != nil {
				return ret
			}
		}
	}
	return nil
}

// releases reports whether a node releases the lease, or may hand it to somebody who will.
func (h *handle) releases(node ast.Node) bool {
	if ret, ok := node.(*ast.ReturnStmt); ok && ret.Results == nil && h.results != nil && within(h.results, h.v) {
		return true
	}
	return contains(node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.UnaryExpr: // <-l.Done(): it is lost
			call, ok := n.X.(*ast.CallExpr)
			return ok && n.Op == token.ARROW && receiverOf(call) != nil && pathOf(h.pass, receiverOf(call)).is(h.v)
		case *ast.Ident:
			return h.pass.TypesInfo.Uses[n] == h.v && !h.idle[n]
		}
		return false
	})
}

// looksAt returns the operand of a node that does nothing to it.
func (h *handle) looksAt(n ast.Node) ast.Expr {
	switch n := n.(type) {
	case *ast.SelectorExpr: // l.Err
		if !slices.Contains([]string{"Release", "Finish", "Downgrade", "All", "Get", "Lease"}, n.Sel.Name) {
			return n.X
		}
	case *ast.BinaryExpr: // l != nil
		if h.pass.TypesInfo.Types[n.Y].IsNil() {
			return n.X
		}
	case *ast.AssignStmt: // _ = l
		if len(n.Lhs) == 1 && isBlank(n.Lhs[0]) {
			return h.listed(n.Rhs[0])
		}
	case *ast.RangeStmt: // for _, l := range all.All()
		if n.Value == nil {
			break
		}
		if each := target(h.pass, n.Value); each.variable() && !newHandle(h.pass, each.root, n.Body).releases(n.Body) {
			return h.listed(n.X)
		}
	}
	return nil
}

// listed returns what has the leases of a list: all in all.All().
func (h *handle) listed(e ast.Expr) ast.Expr {
	if call, ok := ast.Unparen(e).(*ast.CallExpr); ok && len(call.Args) == 0 {
		return receiverOf(call)
	}
	return e
}
