package checks

import (
	"go/ast"
	"go/types"
	"regexp"
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
	for _, file := range programs(pass) {
		ast.Inspect(file, func(n ast.Node) bool {
			switch fn := n.(type) {
			case *ast.FuncDecl:
				if fn.Body != nil {
					each(fn, fn.Body, cfgs.FuncDecl(fn))
				}
			case *ast.FuncLit:
				each(fn, fn.Body, cfgs.FuncLit(fn))
			}
			return true
		})
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
	t := &trial{guess: guess{pass: pass, told: true}, call: call, node: node, tx: lockedBy(pass, call)}
	name, results := resultsOf(pass, call)
	if t.name = name; name == "" {
		fn := calleeOf(pass, call)
		if h := pass.helper(fn); len(h.Locks) == 0 || h.Works {
			return nil
		}
		t.name, results = fn.Name(), fn.Signature().Results()
	}
	t.lock = name == "" || locks(name) && !strings.HasPrefix(name, "Assert") || isOnce(pass, call)
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

// locks tells whether a method of lockstep takes a lock or a lease.
func locks(name string) bool {
	return slices.Contains(locking, name) || slices.Contains(locking, strings.TrimPrefix(name, "Try"))
}

func isOnce(pass *source, call *ast.CallExpr) bool {
	return nameOf(pass, call) == "(*txlock.Scope).Once"
}

// outlives tells whether a variable is looked at by others than the statements of a
// function: by functions in it or around it, or by its callers.
func outlives(pass *source, fn ast.Node, body *ast.BlockStmt, v types.Object) (found bool) {
	if v == nil || !within(fn, v) {
		return v != nil
	}
	ast.Inspect(body, func(n ast.Node) bool {
		if inner, ok := n.(*ast.FuncLit); ok && uses(pass, inner, v) {
			found = true
		}
		return !found
	})
	return found
}

// unread tells whether no path looks at a variable before it ends or gives it another value,
// or returns the statement that goes on, on some path, without a look.
func (t *trial) unread(v types.Object, block *cfg.Block, rest []ast.Node) (never bool, work ast.Node) {
	g := t.guess // a handle beside an error is nil
	g.failed = v == t.err
	never = true
	seen := map[*cfg.Block]bool{}
	var walk func(block *cfg.Block, nodes []ast.Node, before ast.Node)
	walk = func(block *cfg.Block, nodes []ast.Node, before ast.Node) {
		for _, node := range nodes {
			if reads(t.pass, node, v, v == t.err) {
				never = false
				return
			}
			if t.works(node) || node == t.node {
				before = node
			}
			if overwrites(t.pass, node, v) {
				if before == node {
					work = node
				}
				return
			}
		}
		ret := block.Return()
		if ends := len(block.Succs) == 0; ends {
			named := ret != nil && len(ret.Results) == 0 && within(typeOf(t.fn), v)
			if v == t.err && t.kept || named {
				never = false
			} else if before != nil && ret != nil {
				work = before
			}
			return
		}
		for _, next := range g.possible(nodes, block.Succs) {
			if !seen[next] {
				seen[next] = true
				walk(next, next.Nodes, before)
			}
		}
	}
	walk(block, rest, nil)
	return never, work
}

// unasked tells whether something follows Once, and nothing looks at its answer.
func (t *trial) unasked(block *cfg.Block, rest []ast.Node) (follows bool) {
	if t.v != nil {
		if never, _ := t.unread(t.v, block, rest); !never {
			return false
		}
	}
	t.reach(t.guess, block, rest, func(node ast.Node) bool {
		_, isCond := node.(ast.Expr)
		_, isReturn := node.(*ast.ReturnStmt)
		follows = follows || t.works(node) || !isCond && !isReturn && !t.idle(node)
		return true
	})
	return follows
}

// goesOn returns a statement that follows whether there is a lock or not.
func (t *trial) goesOn(block *cfg.Block, rest []ast.Node) ast.Node {
	var failures []guess
	if t.err != nil {
		other := t.guess
		other.failed = true
		failures = append(failures, other)
		for _, as := range t.asked() {
			other.as = as
			failures = append(failures, other)
		}
	}
	if isOnce(t.pass, t.call) && t.v != nil {
		second := t.guess
		second.second = true
		failures = append(failures, second)
	}
	held := map[ast.Node]bool{}
	t.reach(t.guess, block, rest, func(node ast.Node) bool { held[node] = true; return true })
	failed, reached := map[ast.Node]bool{}, []ast.Node{}
	for _, g := range failures {
		t.reach(g, block, rest, func(node ast.Node) bool {
			cond, isCond := node.(ast.Expr)
			switch {
			case isCond && !g.understood(cond), !isCond && held[node] && reads(t.pass, node, g.subject(), false):
				return false
			case !held[node] && !isCond && !t.idle(node):
				return false
			}
			failed[node] = true
			reached = append(reached, node)
			return true
		})
	}
	for node := range held {
		if _, isCond := node.(ast.Expr); !isCond && !failed[node] && !t.idle(node) {
			return nil
		}
	}
	for _, node := range reached {
		if held[node] && t.works(node) {
			return node
		}
	}
	return nil
}

func (g guess) subject() types.Object {
	if g.second {
		return g.v
	}
	return g.err
}

// asked returns the errors that a function looks for in err.
func (t *trial) asked() (asked []string) {
	ast.Inspect(t.body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && nameOf(t.pass, call) == "errors.Is" && pathOf(t.pass, call.Args[0]).is(t.err) {
			add(&asked, types.ExprString(call.Args[1]))
		}
		return true
	})
	return asked
}

// reach calls f for the nodes that may follow under a guess, up to the next lock, until f
// says to stop.
func (t *trial) reach(g guess, block *cfg.Block, rest []ast.Node, f func(ast.Node) bool) {
	type visit struct {
		block *cfg.Block
		told  bool
	}
	seen := map[visit]bool{}
	var walk func(g guess, block *cfg.Block, nodes []ast.Node)
	walk = func(g guess, block *cfg.Block, nodes []ast.Node) {
		for _, node := range nodes {
			if t.locksAgain(node) || !f(node) {
				return
			}
			if g.err != nil && overwrites(t.pass, node, g.err) {
				g.told = false
			}
		}
		for _, next := range g.possible(nodes, block.Succs) {
			if at := (visit{next, g.told}); !seen[at] {
				seen[at] = true
				walk(g, next, next.Nodes)
			}
		}
	}
	walk(g, block, rest)
}

func (t *trial) locksAgain(node ast.Node) (found bool) {
	reached(t.pass, node, func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		name, _ := resultsOf(t.pass, call)
		found = found || name != "" && (locks(name) || name == "Once") || len(t.pass.helper(calleeOf(t.pass, call)).Locks) > 0
	})
	return found
}

// works tells whether a node does what a lock is for: it sends something in a transaction,
// or uses what the call gave.
func (t *trial) works(node ast.Node) (found bool) {
	reached(t.pass, node, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.CallExpr:
			tx, sends := sentIn(t.pass, n)
			found = found || sends && (tx == nil || t.tx == nil || tx == t.tx)
		case *ast.SelectorExpr: // l.Release
			if t.v != nil && pathOf(t.pass, n.X).is(t.v) {
				_, pointer := t.v.Type().Underlying().(*types.Pointer)
				found = found || pointer
			}
		}
	})
	return found
}

// sentIn tells whether a call sends something in a transaction, and in which.
func sentIn(pass *source, call *ast.CallExpr) (tx types.Object, sends bool) {
	fn := calleeOf(pass, call)
	if fn != nil && (ours(fn.Pkg()) || fn.Name() == "Rollback") {
		return nil, false
	}
	if receiver := receiverOf(call); receiver != nil && fn != nil && fn.Signature().Recv() != nil {
		t, p := pass.TypesInfo.TypeOf(receiver), receiverPath(pass, call)
		switch {
		case isTx(fn.Signature().Recv().Type()) && (finishes(pass, call) || fn.Name() == "Commit"):
			return p.root, true
		case (withTx(t) || t != nil && isLocked(t)) && !withTx(pass.TypesInfo.TypeOf(call)):
			if p.known() {
				tx = pass.joined[p.root]
			}
			return tx, true
		}
	}
	for _, arg := range call.Args {
		if isTx(pass.TypesInfo.TypeOf(arg)) && !chains(pass, call) {
			return pathOf(pass, arg).root, true
		}
	}
	return nil, false
}

// idle tells whether a node does nothing that later statements could ask about.
func (t *trial) idle(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.ReturnStmt:
		return true
	case *ast.AssignStmt: // _ = first, err = nil
		_, call := n.Rhs[0].(*ast.CallExpr)
		cleared := t.pass.TypesInfo.Types[n.Rhs[0]].IsNil() && target(t.pass, n.Lhs[0]).is(t.err)
		return cleared || !call && !slices.ContainsFunc(n.Lhs, func(left ast.Expr) bool { return !isBlank(left) })
	case *ast.ExprStmt:
		call, ok := n.X.(*ast.CallExpr)
		return ok && logs(t.pass, call)
	}
	return false
}

var logging = regexp.MustCompile(`^(?i)(log|print|fprint|debug|info|warn|error|trace|inc$|sleep$)`)

// logs tells whether a call writes a line of a log, counts, or sleeps.
func logs(pass *source, call *ast.CallExpr) bool {
	fn := calleeOf(pass, call)
	return fn != nil && logging.MatchString(fn.Name())
}

// checkTrial finds errors that no statement looks at, or after which the same follows as
// without them.
func checkTrial(pass *source, t *trial, block *cfg.Block, rest []ast.Node) {
	if t.err != nil {
		never, work := t.unread(t.err, block, rest)
		if never || t.lock && work != nil {
			report(pass, t.call, "the error of "+t.name+" is dropped: "+consequence(t.name))
			return
		}
	}
	if isOnce(pass, t.call) && t.unasked(block, rest) {
		report(pass, t.call, "what Once says is dropped: it tells whether this is the first, who alone may do the work")
		return
	}
	if !t.lock {
		return
	}
	if work := t.goesOn(block, rest); work != nil {
		report(pass, t.call, "the failure of "+t.name+" changes nothing: line "+
			strconv.Itoa(pass.Fset.Position(work.Pos()).Line)+" goes on without the lock")
	}
}
