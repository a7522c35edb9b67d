package checks

import (
	"go/ast"
	"go/constant"
	"go/types"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// helpers learns what functions do with their parameters, for callers in other packages.
var helpers = &analysis.Analyzer{
	Name:       "lockvethelpers",
	Doc:        "learn which functions lock a transaction or query a pool that they are given",
	Run:        learn,
	FactTypes:  []analysis.Fact{new(helper)},
	ResultType: reflect.TypeFor[known](),
}

// A helper is what is known of a function: at which places among its parameters it is
// given a transaction that it locks or a pool that it queries, and, for a method that
// sqlc generates, whether it is a SELECT without a lock.
type helper struct {
	Locks, Queries []int
	Selects        bool
}

func (*helper) AFact() {}

// known are the helpers of a package and of those that it imports.
type known func(*types.Func) helper

func (k known) of(pass *analysis.Pass, call *ast.CallExpr) helper {
	fn := calleeOf(pass, call)
	if fn == nil {
		return helper{}
	}
	return k(fn)
}

func learn(pass *analysis.Pass) (any, error) {
	own := map[*types.Func]*helper{}
	find := known(func(fn *types.Func) (h helper) {
		if mine, ok := own[fn]; ok {
			return *mine
		}
		if fn.Pkg() != pass.Pkg {
			pass.ImportObjectFact(fn, &h)
		}
		return h
	})
	bodies := bodiesOf(pass)
	learnt := &learner{pass: pass, find: find, joined: joinedIn(pass)}
	for again := true; again; { // a helper may call one that stands further below
		again = false
		for fn, body := range bodies {
			if h, before := learnt.body(fn, body), own[fn]; before == nil || !reflect.DeepEqual(*before, h) {
				own[fn], again = &h, true
			}
		}
	}
	for fn, h := range own {
		if !reflect.DeepEqual(*h, helper{}) {
			pass.ExportObjectFact(fn, h)
		}
	}
	return find, nil
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

type learner struct {
	pass   *analysis.Pass
	find   known
	joined map[types.Object]types.Object
}

func (l *learner) body(fn *types.Func, body *ast.BlockStmt) (h helper) {
	params := fn.Signature().Params()
	place := func(v types.Object) int {
		for i := range params.Len() {
			if params.At(i) == v {
				return i
			}
		}
		return -1
	}
	add := func(to *[]int, v types.Object) {
		if i := place(v); v != nil && i >= 0 && !slices.Contains(*to, i) {
			*to = append(*to, i)
			slices.Sort(*to)
		}
	}
	receiver := fn.Signature().Recv()
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		add(&h.Locks, lockedBy(l.pass, l.find, l.joined, call))
		for _, pool := range queriedBy(l.pass, l.find, call) {
			if pool.variable() && isPool(pool.root.Type()) {
				add(&h.Queries, pool.root)
			}
		}
		if receiver != nil && withTx(receiver.Type()) && selects(l.pass, call) {
			h.Selects = true
		}
		return true
	})
	return h
}

// joinedIn maps each *txlock.Scope of a package, and each *Queries, to its transaction.
func joinedIn(pass *analysis.Pass) map[types.Object]types.Object {
	joined := map[types.Object]types.Object{}
	for _, file := range pass.Files {
		ast.Inspect(file, func(n ast.Node) bool {
			assign, ok := n.(*ast.AssignStmt)
			if !ok || len(assign.Rhs) != 1 {
				return true
			}
			call, ok := ast.Unparen(assign.Rhs[0]).(*ast.CallExpr)
			id, isIdent := assign.Lhs[0].(*ast.Ident)
			if !ok || !isIdent {
				return true
			}
			if tx := txOf(pass, call); tx != nil {
				joined[pass.TypesInfo.ObjectOf(id)] = tx
			}
			return true
		})
	}
	return joined
}

// txOf returns the transaction of a call that binds something to it: Join(ctx, tx),
// q.WithTx(tx), shopdb.New(tx).
func txOf(pass *analysis.Pass, call *ast.CallExpr) types.Object {
	binds := withTx(pass.TypesInfo.TypeOf(call))
	switch nameOf(pass, call) {
	case "locksqlc.Join", "txlock.Join", "lockgorm.Join":
		binds = true
	}
	if !binds {
		return nil
	}
	for _, arg := range call.Args {
		if p := pathOf(pass, arg); p.variable() && isTx(p.root.Type()) {
			return p.root
		}
	}
	return nil
}

// lockedBy returns the transaction in which a call takes a lock, if it does.
func lockedBy(pass *analysis.Pass, find known, joined map[types.Object]types.Object, call *ast.CallExpr) types.Object {
	pkg, verb, _ := strings.Cut(nameOf(pass, call), ".")
	takes := slices.Contains([]string{"Lock", "TryLock", "RLock", "TryRLock", "LockAll", "RLockAll", "LockAny"}, strings.TrimPrefix(verb, "Scope)."))
	if takes && pkg == "lockgorm" && len(call.Args) > 0 {
		return pathOf(pass, call.Args[0]).root
	}
	if takes && pkg == "(*txlock" {
		return joined[pathOf(pass, receiverOf(call)).root]
	}
	for _, i := range find.of(pass, call).Locks {
		if i >= len(call.Args) {
			continue
		}
		if p := pathOf(pass, call.Args[i]); p.variable() {
			return p.root
		}
	}
	return nil
}

// queriedBy returns the pools and transactions that a call queries.
func queriedBy(pass *analysis.Pass, find known, call *ast.CallExpr) (queried []path) {
	if receiver := receiverOf(call); receiver != nil && finishes(pass, call) {
		queried = append(queried, pathOf(pass, receiver))
	}
	places := find.of(pass, call).Queries
	if withTx(pass.TypesInfo.TypeOf(call)) && len(call.Args) == 1 { // New of sqlc
		places = []int{0}
	} else if fn := calleeOf(pass, call); fn != nil {
		places = slices.Concat(places, sentTo(fn.Signature().Params()))
	}
	for _, i := range places {
		if i < len(call.Args) {
			queried = append(queried, pathOf(pass, call.Args[i]))
		}
	}
	return queried
}

// sentTo returns the places of what a function with a context gets to query by: a *sql.DB or
// *sql.Tx that it knows as an interface.
func sentTo(params *types.Tuple) (places []int) {
	if params.Len() == 0 || typeName(params.At(0).Type()) != "context.Context" {
		return nil
	}
	for i := range params.Len() {
		t := params.At(i).Type()
		if method, _, _ := types.LookupFieldOrMethod(t, false, nil, "QueryRowContext"); types.IsInterface(t) && method != nil {
			places = append(places, i)
		}
	}
	return places
}

// Methods that send something. What GORM's others do is to prepare a statement.
var (
	sqlMethods = strings.Fields(`Begin BeginTx Conn Exec ExecContext Prepare PrepareContext
		Query QueryContext QueryRow QueryRowContext`)
	gormReads  = strings.Fields("Count Find First Last Pluck Row Rows Scan Take")
	gormWrites = strings.Fields(`Begin Create CreateInBatches Delete Exec FirstOrCreate FirstOrInit
		FindInBatches Save Transaction Update UpdateColumn UpdateColumns Updates`)
)

func finishes(pass *analysis.Pass, call *ast.CallExpr) bool {
	fn := calleeOf(pass, call)
	if fn == nil || fn.Signature().Recv() == nil {
		return false
	}
	switch typeName(fn.Signature().Recv().Type()) {
	case sqlDB, sqlTx:
		return slices.Contains(sqlMethods, fn.Name())
	case gormDB:
		return slices.Contains(gormReads, fn.Name()) || slices.Contains(gormWrites, fn.Name())
	}
	return false
}

func isPool(t types.Type) bool { return typeName(t) == sqlDB || typeName(t) == gormDB }

// selects tells whether a call is given the text of a SELECT that locks nothing.
func selects(pass *analysis.Pass, call *ast.CallExpr) bool {
	for _, arg := range call.Args {
		value := pass.TypesInfo.Types[arg].Value
		if value == nil || value.Kind() != constant.String {
			continue
		}
		return isSelect(constant.StringVal(value))
	}
	return false
}

func isSelect(text string) bool {
	for strings.HasPrefix(strings.TrimSpace(text), "--") {
		_, text, _ = strings.Cut(text, "\n")
	}
	words := strings.Fields(strings.ToUpper(text))
	return len(words) > 0 && words[0] == "SELECT" && slices.Contains(words, "FROM") &&
		!slices.Contains(words, "FOR") && !slices.Contains(words, "SHARE")
}
