package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"reflect"

	"golang.org/x/tools/go/analysis"
)

// A source is a package that is checked, and what is known of its variables and of the
// functions that it calls.
type source struct {
	*analysis.Pass
	find     func(*types.Func) helper
	assigned map[types.Object][]ast.Expr   // the values of local variables, nil for others than expressions
	joined   map[types.Object]types.Object // the transaction of each *txlock.Scope and *Queries
	models   models                        // those of the plugin of lockgorm that the package knows
	busy     map[any]bool                  // what is being followed, so as not to follow it in a circle
}

// check makes an analyzer.
func check(name, doc string, run func(*source), requires ...*analysis.Analyzer) *analysis.Analyzer {
	return &analysis.Analyzer{
		Name: name, Doc: doc, URL: url + name, Requires: append(requires, helpers),
		Run: func(pass *analysis.Pass) (any, error) {
			own := *pass.ResultOf[helpers].(*source)
			own.Pass, own.busy = pass, map[any]bool{}
			run(&own)
			return nil, nil
		},
	}
}

// helpers learns what functions do with their parameters, for callers in other packages.
var helpers = &analysis.Analyzer{
	Name:       "lockvethelpers",
	Doc:        "learn which functions lock a transaction or query a pool that they are given",
	Run:        learn,
	FactTypes:  []analysis.Fact{new(helper), new(models)},
	ResultType: reflect.TypeFor[*source](),
}

// assignedIn maps the local variables of a package to the values that they get.
func assignedIn(pass *analysis.Pass) map[types.Object][]ast.Expr {
	a := assignments{pass, map[types.Object][]ast.Expr{}, map[types.Object]bool{}}
	for n := range nodes[ast.Node](pass.Files...) {
		switch n := n.(type) {
		case *ast.AssignStmt:
			a.add(n.Lhs, n.Rhs)
		case *ast.ValueSpec:
			a.declare(n)
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				a.add([]ast.Expr{n.X}, nil)
			}
		}
	}
	for v := range a.values {
		if !a.defined[v] { // a parameter: it has a value before
			a.values[v] = append(a.values[v], nil)
		}
	}
	return a.values
}

type assignments struct {
	pass    *analysis.Pass
	values  map[types.Object][]ast.Expr
	defined map[types.Object]bool
}

func (a assignments) declare(spec *ast.ValueSpec) {
	var names []ast.Expr
	for _, name := range spec.Names {
		a.defined[a.pass.TypesInfo.Defs[name]] = true
		names = append(names, name)
	}
	if len(spec.Values) > 0 {
		a.add(names, spec.Values)
	}
}

func (a assignments) add(lefts, values []ast.Expr) {
	for i, left := range lefts {
		id, ok := ast.Unparen(left).(*ast.Ident)
		if !ok {
			continue
		}
		v := a.pass.TypesInfo.ObjectOf(id)
		if v == nil || v.Parent() == a.pass.Pkg.Scope() {
			continue
		}
		var value ast.Expr
		if len(values) == len(lefts) || i == 0 && len(values) == 1 && isPool(v.Type()) { // db, err := orm.DB()
			value = values[i]
		}
		a.values[v] = append(a.values[v], value)
		a.defined[v] = a.defined[v] || a.pass.TypesInfo.Defs[id] != nil
	}
}

// helper returns what is known of a function.
func (s *source) helper(fn *types.Func) helper {
	if fn == nil {
		return helper{}
	}
	return s.find(fn)
}

// only returns the value of a variable that has one.
func (s *source) only(expr ast.Expr) ast.Expr {
	id, ok := ast.Unparen(expr).(*ast.Ident)
	if !ok {
		return nil
	}
	if values := s.assigned[s.TypesInfo.ObjectOf(id)]; len(values) == 1 {
		return values[0]
	}
	return nil
}

// follow returns what a variable stands for, whose values are all the same path, as pool
// after pool := s.db.
func (s *source) follow(p path) path {
	if s.busy[p.root] || len(s.assigned[p.root]) == 0 {
		return p
	}
	if _, copied := p.root.Type().Underlying().(*types.Struct); copied { // its fields may change
		return p
	}
	s.busy[p.root] = true
	defer delete(s.busy, p.root)
	var of path
	for _, value := range s.assigned[p.root] {
		if value == nil {
			return p
		}
		to := pathOf(s, value)
		if to.is(p.root) { // db = db.Debug()
			continue
		}
		if !to.known() || of.known() && !of.same(to) {
			return p
		}
		of = to
	}
	if !of.known() {
		return p
	}
	of.at, of.indirect = p.at, true
	return of
}

// madeWith returns the value that a field of a struct was made with, as w.db after
// w := worker{db: s.db}.
func (s *source) madeWith(p path) path {
	if p.variable() || s.busy[p.root] {
		return p
	}
	values := s.assigned[p.root]
	if len(values) != 1 {
		return p
	}
	value := values[0]
	if address, ok := value.(*ast.UnaryExpr); ok {
		value = address.X
	}
	made, ok := value.(*ast.CompositeLit)
	if !ok {
		return p
	}
	s.busy[p.root] = true
	defer delete(s.busy, p.root)
	of, ok := s.TypesInfo.TypeOf(made).Underlying().(*types.Struct)
	for i, element := range made.Elts {
		if !ok {
			break
		}
		field := of.Field(min(i, of.NumFields()-1)).Name()
		if pair, named := element.(*ast.KeyValueExpr); named {
			field, element = types.ExprString(pair.Key), pair.Value
		}
		if rest, found := cutField(p.fields, field); found {
			if to := pathOf(s, element); to.known() {
				to.at, to.fields, to.indirect = p.at, to.fields+rest, true
				return to
			}
		}
	}
	return p
}
