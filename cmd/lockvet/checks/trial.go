package checks

import (
	"go/ast"
	"go/types"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/analysis/passes/ctrlflow"
	"golang.org/x/tools/go/cfg"
)

// A trial is a call whose results a function may forget, or look at without a consequence.
type trial struct {
	guess
	call *ast.CallExpr
	node ast.Node // the assignment
	name string
	own  bool         // of a function of the program
	lock bool         // whether what follows needs it
	tx   types.Object // its transaction, if that is known
	fn   ast.Node
	body *ast.BlockStmt
	kept bool // whether somebody may look at err after the function
}

// eachTrial calls f for the calls of a package whose error is a variable of a function.
func eachTrial(pass *source, f func(t *trial, block *cfg.Block, rest []ast.Node)) {
	cfgs := pass.ResultOf[ctrlflow.Analyzer].(*ctrlflow.CFGs)
	each := func(fn ast.Node, body *ast.BlockStmt, g *cfg.CFG) {
		if g == nil {
			return
		}
		for _, block := range g.Blocks {
			for i, node := range block.Nodes {
				if t := trialIn(pass, node); t != nil && block.Live {
					t.fn, t.body, t.kept = fn, body, outlives(pass, fn, body, t.err)
					f(t, block, block.Nodes[i+1:])
				}
			}
		}
	}
	for n := range nodes[ast.Node](programs(pass)...) {
		switch fn := n.(type) {
		case *ast.FuncDecl:
			if fn.Body != nil {
				each(fn, fn.Body, cfgs.FuncDecl(fn))
			}
		case *ast.FuncLit:
			each(fn, fn.Body, cfgs.FuncLit(fn))
		}
	}
}

// trialIn returns the trial that an assignment is.
func trialIn(pass *source, node ast.Node) *trial {
	assign, ok := node.(*ast.AssignStmt)
	if !ok || len(assign.Rhs) != 1 {
		return nil
	}
	call, ok := ast.Unparen(assign.Rhs[0]).(*ast.CallExpr)
	if !ok {
		return nil
	}
	name, results, own := resultsOf(pass, call)
	t := &trial{guess: guess{pass: pass, told: true}, call: call, node: node, name: name, own: own, tx: lockedBy(pass, call)}
	t.lock = own || locks(name) && !strings.HasPrefix(name, "Assert") || isOnce(pass, call)
	last := results.Len() - 1
	if last < 0 || len(assign.Lhs) != last+1 || !isError(results.At(last).Type()) {
		return nil
	}
	local := func(e ast.Expr) types.Object {
		if v := target(pass, e); v.variable() && v.root.Parent() != pass.Pkg.Scope() && !isBlank(e) {
			return v.root
		}
		return nil
	}
	if t.err = local(assign.Lhs[last]); last == 1 {
		t.v = local(assign.Lhs[0])
	}
	if t.v != nil && isBool(t.v.Type()) && !isOnce(pass, call) {
		t.v = nil
	}
	return t
}

// locks reports whether a method of lockstep takes a lock or a lease.
func locks(name string) bool {
	return slices.Contains(locking, name) || slices.Contains(locking, strings.TrimPrefix(name, "Try"))
}

func isOnce(pass *source, call *ast.CallExpr) bool {
	return nameOf(pass, call) == "(*txlock.Scope).Once"
}

// outlives reports whether a variable is looked at by others than the statements of a
// function: by functions in it or around it, or by its callers.
func outlives(pass *source, fn ast.Node, body *ast.BlockStmt, v types.Object) bool {
	if v == nil || !within(fn, v) {
		return v != nil
	}
	return contains(body, func(n ast.Node) bool {
		inner, ok := n.(*ast.FuncLit)
		return ok && uses(pass, inner, v)
	})
}

// checkTrial finds errors that no statement looks at, or after which the same follows as
// without them.
func checkTrial(pass *source, t *trial, block *cfg.Block, rest []ast.Node) {
	if t.err != nil {
		if r := t.reading(t.err, block, rest); r.never || t.lock && r.work != nil {
			report(pass, t.call, "the error of "+t.name+" is dropped: "+consequence(t.name, t.own))
			return
		}
	}
	if isOnce(pass, t.call) && t.unasked(block, rest) {
		report(pass, t.call, "the result of Once is dropped: it reports whether this is the first call, which alone may do the work")
		return
	}
	if !t.lock {
		return
	}
	if work := t.goesOn(block, rest); work != nil {
		report(pass, t.call, "the failure of "+t.name+" changes nothing: line "+
			strconv.Itoa(pass.Fset.Position(work.Pos()).Line)+" continues without the lock")
	}
}
