package checks

import (
	"go/ast"
	"go/constant"
	"go/types"
	"slices"
	"strings"
)

// joinedIn maps each *txlock.Scope of a package, and each *Queries, to its transaction.
func joinedIn(pass *source) map[types.Object]types.Object {
	joined := map[types.Object]types.Object{}
	for assign := range nodes[*ast.AssignStmt](pass.Files...) {
		call, ok := ast.Unparen(assign.Rhs[0]).(*ast.CallExpr)
		id, isIdent := assign.Lhs[0].(*ast.Ident)
		if !ok || !isIdent || len(assign.Rhs) != 1 {
			continue
		}
		if tx := txOf(pass, call); tx != nil {
			joined[pass.TypesInfo.ObjectOf(id)] = tx
		}
	}
	return joined
}

// txOf returns the transaction of a call that binds something to it: Join(ctx, tx),
// q.WithTx(tx), shopdb.New(tx), lockgorm.SQLTx(tx).
func txOf(pass *source, call *ast.CallExpr) types.Object {
	binds := withTx(pass.TypesInfo.TypeOf(call))
	switch nameOf(pass, call) {
	case "locksqlc.Join", "txlock.Join", "lockgorm.Join", "lockgorm.SQLTx":
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
func lockedBy(pass *source, call *ast.CallExpr) types.Object {
	by := lockerOf(pass, call)
	if by == nil || typeName(by.Type()) == scopeOf {
		return pass.joined[by]
	}
	return by
}

// lockerOf returns the transaction, or its *txlock.Scope, by which a call takes a lock.
func lockerOf(pass *source, call *ast.CallExpr) types.Object {
	pkg, verb, _ := strings.Cut(nameOf(pass, call), ".")
	takes := slices.Contains([]string{"Lock", "TryLock", "RLock", "TryRLock", "LockAll", "LockAny"}, strings.TrimPrefix(verb, "Scope)."))
	if takes && pkg == "lockgorm" && len(call.Args) > 0 {
		return pathOf(pass, call.Args[0]).root
	}
	if takes && pkg == "(*txlock" {
		return pathOf(pass, receiverOf(call)).root
	}
	for _, i := range pass.helper(calleeOf(pass, call)).Locks {
		if i >= len(call.Args) {
			continue
		}
		if p := pathOf(pass, call.Args[i]); p.variable() {
			return p.root
		}
	}
	return nil
}

// queriedBy returns the pools and transactions that a call queries, and the Queries of sqlc
// that are bound to no transaction.
func queriedBy(pass *source, call *ast.CallExpr) (queried []path) {
	if p := senderOf(pass, call); p.known() {
		return []path{p}
	}
	var places []int
	if withTx(pass.TypesInfo.TypeOf(call)) && len(call.Args) == 1 { // New of sqlc
		places = []int{0}
	} else if fn := calleeOf(pass, call); fn != nil {
		places = sentTo(fn.Signature().Params())
	}
	for _, i := range places {
		if i < len(call.Args) {
			queried = append(queried, pathOf(pass, call.Args[i]))
		}
	}
	if t, ok := transactionOf(pass, call); ok && !t.plain {
		queried = append(queried, t.pool)
	}
	for _, called := range calledBy(pass, call) {
		queried = append(queried, queriedIn(pass, called, call)...)
	}
	return queried
}

// senderOf returns the pool, transaction or Queries whose method a call is.
func senderOf(pass *source, call *ast.CallExpr) path {
	if finishes(pass, call) {
		return receiverPath(pass, call)
	}
	return unbound(pass, call)
}

// calledBy returns what a call calls: its function, and those of its arguments that its
// function calls.
func calledBy(pass *source, call *ast.CallExpr) []ast.Expr {
	called := []ast.Expr{call.Fun}
	for _, i := range pass.helper(calleeOf(pass, call)).Calls {
		if i < len(call.Args) {
			called = append(called, call.Args[i])
		}
	}
	if t, ok := transactionOf(pass, call); ok {
		add(&called, t.arg)
	} else if place, ok := dos[nameOf(pass, call)]; ok && place < len(call.Args) {
		add(&called, call.Args[place])
	}
	return called
}

// queriedIn returns what a function queries that is named where it is called, and not
// written there.
func queriedIn(pass *source, called ast.Expr, call *ast.CallExpr) (queried []path) {
	if _, ok := ast.Unparen(called).(*ast.FuncLit); ok {
		return nil
	}
	if fn := pass.text(called); fn != nil { // save := func() { ... }
		return queriedInText(pass, fn, called, call)
	}
	named := &ast.CallExpr{Fun: called}
	if value := pass.only(called); value != nil { // save := s.save
		named.Fun = value
	}
	if called == call.Fun {
		named.Args = call.Args
		named = ofMethod(pass, named)
		if p := senderOf(pass, named); p.known() { // exec := db.Exec
			p.at, p.indirect = called, true
			return []path{p}
		}
	}
	refs := pass.helper(calleeOf(pass, named)).Queries
	if maker, ok := ast.Unparen(named.Fun).(*ast.CallExpr); ok { // s.work(ctx), a function
		named, refs = maker, pass.helper(calleeOf(pass, maker)).Makes
	}
	for _, r := range refs {
		if p := r.in(pass, named); p.known() {
			if p.indirect {
				p.at = called
			}
			queried = append(queried, p)
		}
	}
	return queried
}

// ofMethod returns s.save(ctx) for a call of a method expression, (*S).save(s, ctx).
func ofMethod(pass *source, call *ast.CallExpr) *ast.CallExpr {
	selector, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok || !pass.TypesInfo.Types[selector.X].IsType() || len(call.Args) == 0 {
		return call
	}
	return &ast.CallExpr{Fun: &ast.SelectorExpr{X: call.Args[0], Sel: selector.Sel}, Args: call.Args[1:]}
}

func queriedInText(pass *source, fn *ast.FuncLit, called ast.Expr, call *ast.CallExpr) (queried []path) {
	if pass.busy[fn] {
		return nil
	}
	pass.busy[fn] = true
	defer delete(pass.busy, fn)
	reached(pass, fn, func(n ast.Node) {
		if inner, ok := n.(*ast.CallExpr); ok {
			queried = append(queried, queriedBy(pass, inner)...)
		}
	})
	for i := range queried {
		if called == call.Fun {
			queried[i] = given(pass, fn, call, queried[i])
		}
		queried[i].at, queried[i].indirect = called, true
	}
	return queried
}

// given returns the path of what a function gets at a call, where p is of its parameter.
func given(pass *source, fn *ast.FuncLit, call *ast.CallExpr, p path) path {
	i := 0
	for _, field := range fn.Type.Params.List {
		for _, name := range field.Names {
			if p.root == pass.TypesInfo.Defs[name] && p.known() && i < len(call.Args) {
				arg := pathOf(pass, call.Args[i])
				arg.fields += p.fields
				return arg
			}
			i++
		}
	}
	return p
}

// unbound returns the Queries of sqlc whose method a call is, where they are of no
// transaction.
func unbound(pass *source, call *ast.CallExpr) path {
	receiver, fn := receiverOf(call), calleeOf(pass, call)
	if receiver == nil || fn == nil || fn.Signature().Recv() == nil || fn.Name() == "Close" || withTx(pass.TypesInfo.TypeOf(call)) {
		return path{}
	}
	p, of := pathOf(pass, receiver), pass.TypesInfo.TypeOf(receiver)
	if embedded := fn.Signature().Recv().Type(); !withTx(of) && !isLocked(of) && withTx(embedded) {
		p, of = receiverPath(pass, call), embedded
	}
	if !withTx(of) {
		return path{}
	}
	if slices.ContainsFunc(call.Args, func(arg ast.Expr) bool { return typeName(pass.TypesInfo.TypeOf(arg)) == sqlTx }) {
		return path{} // WithLocks of lockgen: what it is for is said by what it is given
	}
	if !p.known() || pass.joined[p.root] != nil {
		return path{}
	}
	p.queries = typeName(of)
	return p
}

// sentTo returns the places of what a function with a context gets to query by: a *sql.DB or
// *sql.Tx that it knows as an interface.
func sentTo(params *types.Tuple) (places []int) {
	if params.Len() == 0 || typeName(params.At(0).Type()) != "context.Context" {
		return nil
	}
	for i := range params.Len() {
		if isQuerier(params.At(i).Type()) {
			places = append(places, i)
		}
	}
	return places
}

func isQuerier(t types.Type) bool {
	if t == nil || !types.IsInterface(t) {
		return false
	}
	method, _, _ := types.LookupFieldOrMethod(t, false, nil, "QueryRowContext")
	return method != nil
}

// Methods that send something. What GORM's others do is to prepare a statement.
var (
	sqlMethods = strings.Fields(`Begin BeginTx Conn Exec ExecContext Prepare PrepareContext
		Query QueryContext QueryRow QueryRowContext`)
	gormReads  = strings.Fields("Count Find First Last Pluck Row Rows Scan Take")
	gormWrites = strings.Fields(`Association Begin Create CreateInBatches Delete Exec FirstOrCreate FirstOrInit
		FindInBatches Save Transaction Update UpdateColumn UpdateColumns Updates`)
)

func finishes(pass *source, call *ast.CallExpr) bool {
	fn := calleeOf(pass, call)
	if fn == nil || fn.Signature().Recv() == nil {
		return false
	}
	switch recv := fn.Signature().Recv().Type(); typeName(recv) {
	case sqlDB, sqlTx:
		return slices.Contains(sqlMethods, fn.Name())
	case gormDB:
		return (slices.Contains(gormReads, fn.Name()) || slices.Contains(gormWrites, fn.Name())) && !dry(pass, receiverOf(call))
	default: // what sends by gorm.G has a context
		params := fn.Signature().Params()
		return isGeneric(recv) && params.Len() > 0 && typeName(params.At(0).Type()) == "context.Context"
	}
}

// dry reports whether a statement of GORM is only written: Session(&gorm.Session{DryRun: true}).
func dry(pass *source, chain ast.Expr) (found bool) {
	for pair := range nodes[*ast.KeyValueExpr](chain) {
		if types.ExprString(pair.Key) == "DryRun" {
			value := pass.TypesInfo.Types[pair.Value].Value
			found = value != nil && value.Kind() == constant.Bool && constant.BoolVal(value)
		}
	}
	return found
}

func isPool(t types.Type) bool { return typeName(t) == sqlDB || typeName(t) == gormDB }

// selects reports whether a call is given the text of a SELECT that locks nothing.
func selects(pass *source, call *ast.CallExpr) bool {
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
	s := statementOf(text)
	return s.first("SELECT") && s.has("FROM") && !s.has("FOR") && !s.has("SHARE")
}
