package checks

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/cfg"
)

// A reading looks for what looks at a variable after a call.
type reading struct {
	*trial
	of    types.Object
	guess guess
	never bool     // no path looks before it ends or gives the variable another value
	work  ast.Node // what goes on, on some path, before a look at the error
	seen  map[*cfg.Block]bool
}

func (t *trial) reading(v types.Object, block *cfg.Block, rest []ast.Node) *reading {
	r := &reading{trial: t, of: v, guess: t.guess, never: true, seen: map[*cfg.Block]bool{}}
	r.guess.failed = v == t.err // a handle beside an error is nil
	r.walk(block, rest)
	return r
}

func (r *reading) walk(block *cfg.Block, nodes []ast.Node) {
	isErr := r.of == r.err
	for _, node := range nodes {
		switch {
		case reads(r.pass, node, r.of, isErr) || r.kept && r.callsOwn(node):
			r.never = false
			return
		case isErr && (r.works(node) || node == r.node):
			r.work = node
			return
		case overwrites(r.pass, node, r.of):
			return
		}
	}
	if ret := block.Return(); ret != nil && (isErr && r.kept || len(ret.Results) == 0 && within(typeOf(r.fn), r.of)) {
		r.never = false
	}
	for _, next := range r.guess.possible(nodes, block.Succs) {
		if !r.seen[next] {
			r.seen[next] = true
			r.walk(next, next.Nodes)
		}
	}
}

// callsOwn reports whether a node calls a function of a variable, which may look at err.
func (t *trial) callsOwn(node ast.Node) bool {
	for call := range nodes[*ast.CallExpr](node) {
		if id, ok := ast.Unparen(call.Fun).(*ast.Ident); ok {
			if _, variable := t.pass.TypesInfo.Uses[id].(*types.Var); variable {
				return true
			}
		}
	}
	return false
}

// unasked reports whether something follows Once, and nothing looks at its answer.
func (t *trial) unasked(block *cfg.Block, rest []ast.Node) (follows bool) {
	if t.v != nil {
		if !t.reading(t.v, block, rest).never {
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
	held := map[ast.Node]bool{}
	t.reach(t.guess, block, rest, func(node ast.Node) bool { held[node] = true; return true })
	failed, reached := map[ast.Node]bool{}, []ast.Node{}
	for _, g := range t.failures() {
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

// failures returns the ways in which a call may fail.
func (t *trial) failures() (failures []guess) {
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
	return failures
}

func (g guess) subject() types.Object {
	if g.second {
		return g.v
	}
	return g.err
}

// asked returns the errors that a function looks for in err.
func (t *trial) asked() (asked []string) {
	for call := range nodes[*ast.CallExpr](t.body) {
		if finds(t.pass, call) && pathOf(t.pass, call.Args[0]).is(t.err) {
			add(&asked, types.ExprString(call.Args[1]))
		}
	}
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
			if g.err != nil && overwrites(t.pass, node, g.err) && !wraps(t.pass, node, g.err) {
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
		name, _, _ := resultsOf(t.pass, call)
		found = found || name != "" && (locks(name) || name == "Once") || len(t.pass.helper(calleeOf(t.pass, call)).Locks) > 0
	})
	return found
}
