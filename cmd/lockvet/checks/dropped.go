package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis/passes/ctrlflow"
	"golang.org/x/tools/go/cfg"
)

// Dropped finds results of lockstep's calls that nobody looks at.
var Dropped = check("dropped", "find dropped errors, grants and leases of lockstep's calls", runDropped, ctrlflow.Analyzer)

// What goes on without its lock where the error is not looked at, also by _ =.
var locking = strings.Fields(`Lock TryLock RLock TryRLock LockAll RLockAll LockAny CompareAndBump Guard Verify
	Acquire AcquireShared AcquireAll AcquireTx AssertLocked AssertRLocked Join JoinConn`)

func runDropped(pass *source) {
	for n := range nodes[ast.Node](programs(pass)...) {
		switch n := n.(type) {
		case *ast.ExprStmt:
			if call, ok := ast.Unparen(n.X).(*ast.CallExpr); ok {
				checkStatement(pass, call, false)
			}
		case *ast.GoStmt:
			checkStatement(pass, n.Call, false)
		case *ast.DeferStmt:
			checkStatement(pass, n.Call, true)
		case *ast.AssignStmt:
			checkBlank(pass, n)
		}
	}
	eachTrial(pass, func(t *trial, block *cfg.Block, rest []ast.Node) { checkTrial(pass, t, block, rest) })
	eachList(pass, func(list []ast.Stmt) {
		for i, stmt := range list {
			checkHandle(pass, stmt, list[i+1:])
		}
	})
}

// resultsOf returns the results of a call of lockstep, or of a function of the program that only
// takes a lock: then own is true.
func resultsOf(pass *source, call *ast.CallExpr) (name string, results *types.Tuple, own bool) {
	fn := calleeOf(pass, call)
	if fn == nil {
		return "", nil, false
	}
	if !ours(fn.Pkg()) {
		h := pass.helper(fn)
		if own = len(h.Locks) > 0 && !h.Works; !own {
			return "", nil, false
		}
	}
	return fn.Name(), fn.Signature().Results(), own
}

func checkStatement(pass *source, call *ast.CallExpr, deferred bool) {
	name, results, own := resultsOf(pass, call)
	if results.Len() == 0 || !isError(results.At(results.Len()-1).Type()) {
		return
	}
	if deferred && (name == "Release" || name == "Close") {
		return // where nobody is left to be told, as of a file that was read
	}
	report(pass, call, "the error of "+name+" is dropped: "+consequence(name, own))
}

func consequence(name string, own bool) string {
	switch {
	case own || slices.Contains(locking, name):
		return "the program continues without the lock"
	case name == "Release":
		return "it reports that the lease was lost"
	}
	return "it reports that nothing was done, or not under the lock"
}

// checkBlank finds _ in the place of what reports whether the lock is held.
func checkBlank(pass *source, assign *ast.AssignStmt) {
	if len(assign.Rhs) != 1 {
		return
	}
	call, ok := ast.Unparen(assign.Rhs[0]).(*ast.CallExpr)
	if !ok {
		return
	}
	name, results, own := resultsOf(pass, call)
	if results.Len() != len(assign.Lhs) || results.Len() == 0 {
		return
	}
	last := results.Len() - 1
	if own { // another result may say whether there is a lock
		own = !slices.ContainsFunc(assign.Lhs, func(left ast.Expr) bool { return !isBlank(left) })
	}
	if (own || slices.Contains(locking, name) || isOnce(pass, call)) && isError(results.At(last).Type()) && isBlank(assign.Lhs[last]) {
		report(pass, call, "the error of "+name+" is dropped: "+consequence(name, own))
	}
}

// checkHandle finds a lease that was acquired for sure, and that nobody can release.
func checkHandle(pass *source, stmt ast.Stmt, rest []ast.Stmt) {
	if test, ok := stmt.(*ast.IfStmt); ok {
		stmt, rest = test.Init, []ast.Stmt{test}
	}
	assign, ok := stmt.(*ast.AssignStmt)
	if !ok || len(assign.Rhs) != 1 || len(assign.Lhs) != 2 || !isBlank(assign.Lhs[0]) {
		return
	}
	call, ok := ast.Unparen(assign.Rhs[0]).(*ast.CallExpr)
	if !ok || !fails(pass, rest, pathOf(pass, assign.Lhs[1])) {
		return
	}
	if acquires(pass, call) && !closesAround(pass, call) {
		report(pass, call, "the lease is dropped: the program can't release it, or learn that it is lost")
	}
}

// fails reports whether the first statement that looks at an error is for err != nil, or returns
// it. A program that expects an error looks for a certain one, or for none.
func fails(pass *source, list []ast.Stmt, err path) bool {
	for _, stmt := range list {
		switch s := stmt.(type) {
		case *ast.IfStmt:
			if c, ok := ast.Unparen(s.Cond).(*ast.BinaryExpr); ok && c.Op == token.NEQ && pathOf(pass, c.X).same(err) {
				return pass.TypesInfo.Types[c.Y].IsNil()
			}
		case *ast.ReturnStmt:
			if len(s.Results) > 0 {
				return pathOf(pass, s.Results[len(s.Results)-1]).same(err)
			}
			v, ok := err.root.(*types.Var)
			return ok && v.Kind() == types.ResultVar
		}
		if err.known() && uses(pass, stmt, err.root) {
			return false
		}
	}
	return false
}

func isBlank(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "_"
}

// acquires reports whether a call gives a handle that is to be released.
func acquires(pass *source, call *ast.CallExpr) bool {
	name, results, _ := resultsOf(pass, call)
	if results.Len() != 2 || name == "AcquireTx" { // ends with its transaction's rollback
		return false
	}
	switch typeName(results.At(0).Type()) {
	case "txlock/lease.Lease", "txlock/lease.Leases", "txlock/quorum.Lease":
		return strings.HasPrefix(strings.TrimPrefix(name, "Try"), "Acquire") || name == "Downgrade"
	case "txlock/job.Claim":
		return strings.HasPrefix(name, "Claim")
	}
	return false
}
