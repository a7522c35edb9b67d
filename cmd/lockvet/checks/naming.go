package checks

import (
	"go/ast"
	"go/constant"
	"go/types"
	"strings"

	"github.com/jinzhu/inflection"
)

// A naming is how GORM makes a table's name of a type's. The zero naming can't be read, and makes
// none.
type naming struct {
	Prefix           string
	Replaced         []string // the arguments of strings.NewReplacer
	Singular, Plural bool     // both where no strategy is known
}

// makes reports whether a table has the name that GORM makes of a type's, apart from case and
// underscores.
func (n naming) makes(table, name string) bool {
	flat := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }
	name = flat(strings.NewReplacer(n.Replaced...).Replace(name))
	table, prefix := flat(table), flat(n.Prefix)
	return n.Singular && isTable(table, prefix+name) || n.Plural && isTable(table, prefix+inflection.Plural(name))
}

// isTable reports whether two names are of the same table, if one has no database or both have
// the same.
func isTable(a, b string) bool {
	return a == b || strings.HasSuffix(a, "."+b) || strings.HasSuffix(b, "."+a)
}

// namingsOf returns the namings of the pools that a package of the program opens, and those that
// it sets. Those of other modules are for pools of their own.
func namingsOf(pass *source) (all []naming) {
	if pass.Module == nil || pass.Module.Version != "" {
		return nil
	}
	given := false // a pool is opened with options
	for n := range nodes[ast.Node](programs(pass)...) {
		switch n := n.(type) {
		case *ast.CallExpr:
			switch name := nameOf(pass, n); {
			case name != "gorm.io/gorm.Open" && name != "lockgorm.Open":
			case len(n.Args) == 1:
				all = append(all, naming{Plural: true})
			default:
				given = true
			}
		case *ast.CompositeLit:
			if typeName(pass.TypesInfo.TypeOf(n)) == "gorm.io/gorm.Config" {
				all = append(all, namingOf(pass, strategyIn(n)))
			}
		case *ast.AssignStmt:
			all = append(all, namingsSet(pass, n)...)
		}
	}
	if given && len(all) == 0 { // with a config from elsewhere, whose strategy isn't known
		all = append(all, naming{})
	}
	return all
}

// strategyIn returns the strategy of a gorm.Config, or nil.
func strategyIn(config *ast.CompositeLit) ast.Expr {
	for _, element := range config.Elts {
		if field, ok := element.(*ast.KeyValueExpr); ok && types.ExprString(field.Key) == "NamingStrategy" {
			return field.Value
		}
	}
	return nil
}

// namingsSet returns what an assignment gives to the field NamingStrategy of a gorm.Config.
func namingsSet(pass *source, assign *ast.AssignStmt) (set []naming) {
	for i, left := range assign.Lhs {
		selector, ok := left.(*ast.SelectorExpr)
		if ok && selector.Sel.Name == "NamingStrategy" && pass.TypesInfo.Uses[selector.Sel].Pkg().Path() == "gorm.io/gorm" {
			set = append(set, namingOf(pass, assign.Rhs[min(i, len(assign.Rhs)-1)]))
		}
	}
	return set
}

// namingOf returns the naming of a strategy, and that of GORM's default for nil.
func namingOf(pass *source, strategy ast.Expr) naming {
	n := naming{Plural: true}
	if strategy == nil {
		return n
	}
	if address, ok := strategy.(*ast.UnaryExpr); ok {
		strategy = address.X
	}
	literal, ok := strategy.(*ast.CompositeLit)
	if !ok || typeName(pass.TypesInfo.TypeOf(literal)) != "gorm.io/gorm/schema.NamingStrategy" {
		return naming{}
	}
	for _, element := range literal.Elts {
		field, ok := element.(*ast.KeyValueExpr)
		if !ok || !n.set(pass, types.ExprString(field.Key), field.Value) {
			return naming{}
		}
	}
	return n
}

// set reads a field of schema.NamingStrategy, and reports whether it could.
func (n *naming) set(pass *source, field string, e ast.Expr) (known bool) {
	value := pass.TypesInfo.Types[e].Value
	switch {
	case field == "NoLowerCase" || field == "IdentifierMaxLength": // not for what makes compares
		return true
	case field == "TablePrefix" && value != nil:
		n.Prefix = constant.StringVal(value)
		return true
	case field == "SingularTable" && value != nil:
		n.Singular = constant.BoolVal(value)
		n.Plural = !n.Singular
		return true
	case field == "NameReplacer":
		call, ok := e.(*ast.CallExpr)
		if !ok || nameOf(pass, call) != "strings.NewReplacer" {
			return false
		}
		for _, arg := range call.Args {
			if pass.TypesInfo.Types[arg].Value != nil {
				n.Replaced = append(n.Replaced, textOf(pass.TypesInfo, arg))
			}
		}
		return len(n.Replaced) == len(call.Args) && len(call.Args)%2 == 0
	}
	return false
}
