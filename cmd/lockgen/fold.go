package main

import (
	"cmp"
	"go/ast"
	"go/constant"
	"go/types"
	"maps"
	"slices"

	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/types/typeutil"
)

// compare refuses families whose tables the schema doesn't have, and those that may have
// several keys for one value of a column.
func (p *plan) compare(schema *catalog) {
	p.schema = schema
	for _, name := range slices.Sorted(maps.Keys(p.pkg.tables)) {
		fam := p.pkg.tables[name]
		columns := fam.tables[name]
		table := schema.tables[name]
		if table == nil {
			p.add(fam.marks[name], "the schema has no table %s", name)
			continue
		}
		for i, id := range idFields(fam.id, len(columns)) {
			column := table.columns[columns[i]]
			if column == nil {
				p.add(fam.marks[name], "table %s has no column %s in the schema", name, columns[i])
			} else if err := column.identifies(id, fam.fold); err != nil {
				p.add(fam.marks[name], "%s.%s %v", name, columns[i], err)
			} else if isKind(id, types.IsString) && fam.fold == "" && !fam.exact {
				p.add(fam.marks[name], "%s.%s compares bytes, and the family doesn't declare it, so every call is refused: add txlock.Exact", name, columns[i])
			}
		}
	}
}

// foldOf returns the collation of the option txlock.Fold with which a family is made, here
// or in the package from which it is taken: var Accounts = keys.Accounts. It reports whether
// the family is made with txlock.Exact.
func foldOf(pkg *packages.Package, made ast.Expr) (fold string, exact bool) {
	switch e := ast.Unparen(made).(type) {
	case *ast.CallExpr:
		for _, option := range e.Args {
			call, ok := ast.Unparen(option).(*ast.CallExpr)
			if !ok {
				continue
			}
			switch fn := typeutil.Callee(pkg.TypesInfo, call); {
			case fn == nil || fn.Pkg() == nil || fn.Pkg().Path() != txlockPath:
			case fn.Name() == "Exact":
				exact = true
			case fn.Name() == "Fold" && len(call.Args) == 1:
				if value := pkg.TypesInfo.Types[call.Args[0]].Value; value != nil {
					fold = constant.StringVal(value)
				}
			}
		}
	default:
		return foldOfVariable(pkg, usedBy(pkg, e))
	}
	return fold, exact
}

// usedBy returns what a name means, or nil.
func usedBy(pkg *packages.Package, name ast.Expr) types.Object {
	switch e := ast.Unparen(name).(type) {
	case *ast.Ident:
		return pkg.TypesInfo.Uses[e]
	case *ast.SelectorExpr:
		return pkg.TypesInfo.Uses[e.Sel]
	}
	return nil
}

func foldOfVariable(pkg *packages.Package, v types.Object) (fold string, exact bool) {
	if v == nil || v.Pkg() == nil {
		return "", false
	}
	of := cmp.Or(pkg.Imports[v.Pkg().Path()], pkg)
	for _, file := range of.Syntax {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if ok && len(spec.Names) == 1 && len(spec.Values) == 1 && of.TypesInfo.Defs[spec.Names[0]] == v {
				fold, exact = foldOf(of, spec.Values[0])
			}
			return fold == "" && !exact
		})
	}
	return fold, exact
}
