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
			}
		}
	}
}

// foldOf returns the collation of the option txlock.Fold with which a family is made, here
// or in the package from which it is taken: var Accounts = keys.Accounts.
func foldOf(pkg *packages.Package, made ast.Expr) string {
	switch e := ast.Unparen(made).(type) {
	case *ast.CallExpr:
		for _, option := range e.Args {
			call, ok := ast.Unparen(option).(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				continue
			}
			fn := typeutil.Callee(pkg.TypesInfo, call)
			if value := pkg.TypesInfo.Types[call.Args[0]].Value; value != nil && fn != nil && fn.Name() == "Fold" && fn.Pkg().Path() == txlockPath {
				return constant.StringVal(value)
			}
		}
	case *ast.Ident:
		return foldOfVariable(pkg, pkg.TypesInfo.Uses[e])
	case *ast.SelectorExpr:
		return foldOfVariable(pkg, pkg.TypesInfo.Uses[e.Sel])
	}
	return ""
}

func foldOfVariable(pkg *packages.Package, v types.Object) (fold string) {
	if v == nil || v.Pkg() == nil {
		return ""
	}
	of := cmp.Or(pkg.Imports[v.Pkg().Path()], pkg)
	for _, file := range of.Syntax {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if ok && len(spec.Names) == 1 && len(spec.Values) == 1 && of.TypesInfo.Defs[spec.Names[0]] == v {
				fold = foldOf(of, spec.Values[0])
			}
			return fold == ""
		})
	}
	return fold
}
