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

// A model is a type whose writes the plugin of lockgorm locks, and its table if TableName
// returns a constant; "" if GORM makes one of the type's name.
type model struct{ Name, Table string }

// models are those that a package declares, and how it makes GORM name tables.
type models struct {
	All     []model
	Namings []naming
}

func (*models) AFact() {}

// modelsOf returns the models and namings of a package and of those that it imports.
func modelsOf(pass *source) (all models) {
	own := models{Namings: namingsOf(pass)}
	named := tableNames(pass.Pass)
	for _, name := range pass.Pkg.Scope().Names() {
		t, ok := pass.Pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok || !isLocker(t.Type()) {
			continue
		}
		method, _, _ := types.LookupFieldOrMethod(types.NewPointer(t.Type()), true, pass.Pkg, "TableName")
		if table := named[method]; method == nil || table != "" {
			own.All = append(own.All, model{Name: name, Table: table})
		}
	}
	if len(own.All)+len(own.Namings) > 0 {
		pass.ExportPackageFact(&own)
	}
	for _, fact := range append(pass.AllPackageFacts(), analysis.PackageFact{Fact: &own}) {
		if m, ok := fact.Fact.(*models); ok && fact.Package != pass.Pkg {
			all.All = append(all.All, m.All...)
			all.Namings = append(all.Namings, m.Namings...)
		}
	}
	if len(all.Namings) == 0 {
		all.Namings = []naming{{Singular: true, Plural: true}}
	}
	return all
}

// tableNames returns what the methods TableName return, where that is a constant.
func tableNames(pass *analysis.Pass) map[types.Object]string {
	named := map[types.Object]string{nil: ""}
	for fn, body := range bodiesOf(pass) {
		if fn.Name() != "TableName" || len(body.List) != 1 {
			continue
		}
		if result, ok := body.List[0].(*ast.ReturnStmt); ok && len(result.Results) == 1 {
			named[fn] = textOf(pass.TypesInfo, result.Results[0])
		}
	}
	return named
}

// textOf returns the text that an expression is, if it is constant.
func textOf(info *types.Info, e ast.Expr) string {
	if value := info.Types[e].Value; value != nil && value.Kind() == constant.String {
		return constant.StringVal(value)
	}
	return ""
}

// isLocker reports whether a type has the tag of lockgorm, or the method LockKeys.
func isLocker(t types.Type) bool {
	if _, isStruct := t.Underlying().(*types.Struct); !isStruct {
		return false
	}
	method, _, _ := types.LookupFieldOrMethod(types.NewPointer(t), true, nil, "LockKeys")
	fn, ok := method.(*types.Func)
	return ok && fn.Signature().Params().Len() == 1 && typeName(fn.Signature().Params().At(0).Type()) == gormDB || isTagged(t, 0)
}

func isTagged(t types.Type, depth int) bool {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	of, ok := t.Underlying().(*types.Struct)
	for i := 0; ok && depth < 5 && i < of.NumFields(); i++ {
		tag := reflect.StructTag(of.Tag(i))
		if _, tagged := tag.Lookup("lockstep"); tagged {
			return true
		}
		embedded := of.Field(i).Embedded() || strings.Contains(strings.ToLower(tag.Get("gorm")), "embedded")
		if embedded && isTagged(of.Field(i).Type(), depth+1) {
			return true
		}
	}
	return false
}

// hasTable reports whether a table is that of the model: it has the name that TableName returns,
// or that GORM makes by each of the namings.
func (m model) hasTable(table string, namings []naming) bool {
	if m.Table != "" {
		return isTable(strings.ToLower(m.Table), strings.ToLower(table))
	}
	return !slices.ContainsFunc(namings, func(n naming) bool { return !n.makes(table, m.Name) })
}
