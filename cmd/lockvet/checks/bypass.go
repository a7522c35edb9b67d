package checks

import (
	"cmp"
	"go/ast"
	"go/types"
	"slices"
	"strings"
)

// Bypass finds writes of a model's table that the plugin of lockgorm doesn't lock.
var Bypass = check("bypass", "find writes by Exec, Raw and Table of a table whose model the plugin of lockgorm locks", runBypass)

// tablePrefix is what the names of tables begin with, instead of what naming strategies say.
var tablePrefix string

func init() {
	Bypass.Flags.StringVar(&tablePrefix, "prefix", "", "prefix of the tables' names, instead of the naming strategies that it finds")
}

func runBypass(pass *source) {
	if len(pass.models.All) == 0 {
		return
	}
	if tablePrefix != "" {
		pass.models.Namings = []naming{{Prefix: tablePrefix, Singular: true, Plural: true}}
	}
	for _, file := range programs(pass) {
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
				checkBypass(pass, fn.Body)
			}
		}
	}
}

// ensuring are functions of lockgorm, beside Lock, that lock or make sure of a lock, also for another
// statement.
var ensuring = []string{"lockgorm.AssertLocked", "lockgorm.Join", "lockgorm.On"}

// locksIn reports whether a function locks something, and returns the handles of the transactions that
// it begins without a lock.
func locksIn(pass *source, body *ast.BlockStmt) (locks bool, begun map[types.Object]bool) {
	begun = map[types.Object]bool{}
	for call := range nodes[*ast.CallExpr](body) {
		if t, ok := transactionOf(pass, call); ok {
			begun[t.tx] = !t.keys && !isGiven(receiverPath(pass, call).root, begun) // else perhaps a savepoint
			locks = locks || t.keys
		}
		locks = locks || lockedBy(pass, call) != nil || slices.Contains(ensuring, nameOf(pass, call))
	}
	return locks, begun
}

// checkBypass reports what a function writes by a handle of which it is known that nothing was
// locked in its transaction: not in functions that lock something, nor by the handle that a
// function is given, whose caller may have locked.
func checkBypass(pass *source, body *ast.BlockStmt) {
	locks, begun := locksIn(pass, body)
	if locks {
		return
	}
	for call := range nodes[*ast.CallExpr](body) {
		how, tables, written := writtenBy(pass, call)
		if v, ok := receiverPath(pass, call).root.(*types.Var); !ok || isGiven(v, begun) {
			continue
		}
		for _, table := range tables {
			i := slices.IndexFunc(pass.models.All, func(m model) bool { return m.hasTable(table, pass.models.Namings) })
			if i < 0 {
				continue
			}
			if m := pass.models.All[i]; written == nil || !isModel(written) {
				report(pass, call, how+" writes the table "+table+" without a lock of its model "+m.Name+
					": write it by Model(&"+m.Name+"{...}), or name the keys by Clauses(lockgorm.On(...))")
			}
		}
	}
}

// isGiven reports whether a function is given a handle, or what has it.
func isGiven(handle types.Object, begun map[types.Object]bool) bool {
	v, ok := handle.(*types.Var)
	return ok && v.Kind() == types.ParamVar && !begun[v]
}

// isModel reports whether the plugin locks a value of this type, or the elements of one.
func isModel(t types.Type) bool {
	for range 10 { // a type may be a slice of itself
		switch of := t.Underlying().(type) {
		case *types.Pointer:
			t = of.Elem()
		case *types.Slice:
			t = of.Elem()
		case *types.Array:
			t = of.Elem()
		default:
			return isLocker(t) || types.IsInterface(t)
		}
	}
	return false
}

// writtenBy returns the tables that a call of GORM writes by their names, how it does so, and the
// type of the model that it has in spite of that, or nil.
func writtenBy(pass *source, call *ast.CallExpr) (how string, tables []string, written types.Type) {
	name := nameOf(pass, call)
	_, method, _ := strings.Cut(name, ").")
	generic := name == "(gorm.io/gorm.Interface[T any]).Exec"
	if !generic && name != "(*gorm.io/gorm.DB)."+method {
		return "", nil, nil
	}
	named, model := chainOf(pass, receiverOf(call))
	switch method {
	case "Exec", "Raw":
		text := call.Args[0]
		if generic && len(call.Args) > 1 {
			text = call.Args[1] // behind the context
		}
		return method, writtenTables(textOf(pass.TypesInfo, text)), nil
	case "Create", "CreateInBatches", "Delete", "FirstOrCreate", "Save", "Update", "UpdateColumn", "UpdateColumns", "Updates":
		if written = model; written == nil && method != "Update" && method != "UpdateColumn" {
			written = pass.TypesInfo.TypeOf(call.Args[0])
		}
		table, _ := statementOf(named).name()
		return "Table(\"" + named + "\")." + method, []string{table}, written
	}
	return "", nil, nil
}

// chainOf returns what the calls before the last one say of a statement of GORM: the name of its
// table, and the type of its model.
func chainOf(pass *source, e ast.Expr) (table string, model types.Type) {
	for depth := 0; e != nil && depth < 50; depth++ {
		call, ok := ast.Unparen(e).(*ast.CallExpr)
		if !ok {
			e = pass.only(e)
			continue
		}
		switch nameOf(pass, call) {
		case "(*gorm.io/gorm.DB).Table":
			table = cmp.Or(table, textOf(pass.TypesInfo, call.Args[0]))
		case "(*gorm.io/gorm.DB).Model":
			if model == nil {
				model = pass.TypesInfo.TypeOf(call.Args[0])
			}
		}
		e = receiverOf(call)
	}
	return table, model
}
