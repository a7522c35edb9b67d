package checks

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/cfg"
)

// unread tells whether no path looks at a variable before it ends or gives it another value.
// For the error it also returns a statement that goes on, on some path, before a look.
func (t *trial) unread(v types.Object, block *cfg.Block, rest []ast.Node) (never bool, work ast.Node) {
	g := t.guess // a handle beside an error is nil
	g.failed = v == t.err
	never = true
	seen := map[*cfg.Block]bool{}
	var walk func(block *cfg.Block, nodes []ast.Node)
	walk = func(block *cfg.Block, nodes []ast.Node) {
		for _, node := range nodes {
			if reads(t.pass, node, v, v == t.err) || t.kept && t.callsOwn(node) {
				never = false
				return
			}
			if v == t.err && (t.works(node) || node == t.node) {
				work = node
				return
			}
			if overwrites(t.pass, node, v) {
				return
			}
		}
		if ret := block.Return(); ret != nil && (v == t.err && t.kept || len(ret.Results) == 0 && within(typeOf(t.fn), v)) {
			never = false
		}
		for _, next := range g.possible(nodes, block.Succs) {
			if !seen[next] {
				seen[next] = true
				walk(next, next.Nodes)
			}
		}
	}
	walk(block, rest)
	return never, work
}

// callsOwn tells whether a node calls a function of a variable, which may look at err.
func (t *trial) callsOwn(node ast.Node) (found bool) {
	ast.Inspect(node, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if id, ok := ast.Unparen(call.Fun).(*ast.Ident); ok {
				_, variable := t.pass.TypesInfo.Uses[id].(*types.Var)
				found = found || variable
			}
		}
		return !found
	})
	return found
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
			case isCond && !g.understood(cond), !isCond && held[node] && (reads(t.pass, node, g.subject(), false) || t.kept && t.callsOwn(node)):
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
		if call, ok := n.(*ast.CallExpr); ok && finds(t.pass, call) && pathOf(t.pass, call.Args[0]).is(t.err) {
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
