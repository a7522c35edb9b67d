package checks

import (
	"go/ast"
	"go/types"
	"strings"
)

// A path is a variable, or a field of one: db, s.db.
type path struct {
	root     types.Object
	fields   string
	at       ast.Expr
	indirect bool   // at is not the path itself, but another name of it, or a function that uses it
	queries  string // the type of Queries of sqlc
}

func (p path) known() bool            { return p.root != nil }
func (p path) same(as path) bool      { return p.known() && p.root == as.root && p.fields == as.fields }
func (p path) variable() bool         { return p.known() && p.fields == "" }
func (p path) is(v types.Object) bool { return p.variable() && p.root == v }

// cutField returns what follows a field at the beginning of fields.
func cutField(fields, name string) (rest string, found bool) {
	rest, found = strings.CutPrefix(fields, "."+name)
	return rest, found && (rest == "" || rest[0] == '.')
}

// pathOf returns the path at the beginning of an expression: of db in
// db.WithContext(ctx).Where("id"), of locks in locks.WaitAtMost(d), of s.db in pool where
// that is another name of it.
func pathOf(pass *source, expr ast.Expr) path {
	switch e := ast.Unparen(expr).(type) {
	case *ast.Ident:
		return pass.follow(target(pass, e))
	case *ast.StarExpr:
		return pathOf(pass, e.X)
	case *ast.SelectorExpr:
		v, ok := pass.TypesInfo.Uses[e.Sel].(*types.Var)
		if !ok {
			return path{}
		}
		if !v.IsField() {
			return path{root: v, at: e} // a variable of another package
		}
		if p := pathOf(pass, e.X); p.known() {
			return pass.madeWith(path{root: p.root, fields: p.fields + promoted(pass, e) + "." + v.Name(), at: e, indirect: p.indirect})
		}
	case *ast.CallExpr:
		if chains(pass, e) {
			return receiverPath(pass, e)
		}
		if nameOf(pass, e) == gormG {
			return pathOf(pass, e.Args[0])
		}
		p := path{}
		if nameOf(pass, e) == gormSQL {
			p = receiverPath(pass, e)
		} else if pool := pass.helper(calleeOf(pass, e)).Returns; pool != nil {
			p = pool.in(pass, e)
		}
		p.at, p.indirect = e, true
		return p
	}
	return path{}
}

// target returns the path that an assignment changes.
func target(pass *source, expr ast.Expr) path {
	id, ok := ast.Unparen(expr).(*ast.Ident)
	if !ok {
		return pathOf(pass, expr)
	}
	if v, ok := pass.TypesInfo.ObjectOf(id).(*types.Var); ok {
		return path{root: v, at: id}
	}
	return path{}
}

// promoted returns the embedded fields that a selector leaves out.
func promoted(pass *source, e *ast.SelectorExpr) (fields string) {
	selection := pass.TypesInfo.Selections[e]
	if selection == nil {
		return ""
	}
	t := selection.Recv()
	for _, i := range selection.Index()[:len(selection.Index())-1] {
		if p, ok := t.Underlying().(*types.Pointer); ok {
			t = p.Elem()
		}
		of, ok := t.Underlying().(*types.Struct)
		if !ok {
			return ""
		}
		fields += "." + of.Field(i).Name()
		t = of.Field(i).Type()
	}
	return fields
}

// chains reports whether a call returns its receiver, with options.
func chains(pass *source, call *ast.CallExpr) bool {
	name := nameOf(pass, call)
	if name == "(*txlock.Scope).WaitAtMost" {
		return true
	}
	fn := calleeOf(pass, call)
	if fn == nil || fn.Signature().Recv() == nil || fn.Name() == "Begin" || fn.Signature().Results().Len() != 1 {
		return false
	}
	from, to := fn.Signature().Recv().Type(), fn.Signature().Results().At(0).Type()
	return typeName(from) == gormDB && typeName(to) == gormDB || isGeneric(from) && isGeneric(to)
}

// isGeneric reports whether a type is one of those that gorm.G begins statements with.
func isGeneric(t types.Type) bool {
	return types.IsInterface(t) && strings.HasPrefix(typeName(t), "gorm.io/gorm.") && strings.HasSuffix(typeName(t), "Interface")
}

func receiverOf(call *ast.CallExpr) ast.Expr {
	if selector, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		return selector.X
	}
	return nil
}

// receiverPath returns the path of what a method gets: of s.DB in s.Exec, where DB is
// embedded.
func receiverPath(pass *source, call *ast.CallExpr) path {
	selector, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok {
		return path{}
	}
	p := pathOf(pass, selector.X)
	if fields := promoted(pass, selector); p.known() && fields != "" {
		p.fields += fields
		p = pass.madeWith(p)
	}
	return p
}
