package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pingcap/tidb/pkg/parser/ast"
	"github.com/pingcap/tidb/pkg/parser/opcode"
	"github.com/pingcap/tidb/pkg/parser/test_driver"
)

// block is a FROM, or the tables of a write, with the condition that rows pass.
type block struct {
	*meaning
	from  ast.ResultSetNode
	where ast.ExprNode
	uses  []*use
	using bool // columns without a table may be of two
}

// columnRef is a column of a table, by what the block calls it.
type columnRef struct{ alias, name string }

// servers are databases whose tables no program makes.
var servers = []string{"information_schema", "performance_schema"}

// block reads a FROM. What stands in subqueries of it are blocks of their own.
func (m *meaning) block(from ast.ResultSetNode, where ast.ExprNode) *block {
	b := &block{meaning: m, from: from, where: where}
	b.read(from)
	return b
}

func (b *block) read(n ast.ResultSetNode) {
	switch n := n.(type) {
	case *ast.Join:
		b.blocks[n] = true
		b.using = b.using || n.NaturalJoin || len(n.Using) > 0
		b.read(n.Left)
		if n.Right != nil {
			b.read(n.Right)
		}
	case *ast.TableSource:
		switch source := n.Source.(type) {
		case *ast.TableName:
			u := &use{table: source.Name.L, alias: cmp.Or(n.AsName.L, source.Name.L), in: b}
			if source.Schema.L != "" {
				u.why, u.server = "it is named with a database", slices.Contains(servers, source.Schema.L)
			}
			b.uses = append(b.uses, u)
		case *ast.Join:
			b.read(source)
		}
	}
}

// resolve finds the table of a column. Where several tables of the block have one of that
// name, the server refuses the statement.
func (b *block) resolve(c *ast.ColumnName) (columnRef, bool) {
	var found []*use
	for _, u := range b.uses {
		if table := b.schema.tables[u.table]; c.Table.L == u.alias || c.Table.L == "" && table != nil && table.columns[c.Name.L] != nil {
			found = append(found, u)
		}
	}
	if len(found) != 1 || c.Schema.L != "" || c.Table.L == "" && b.using {
		return columnRef{}, false
	}
	return columnRef{found[0].alias, c.Name.L}, b.column(columnRef{found[0].alias, c.Name.L}) != nil
}

// column returns a column that was resolved.
func (b *block) column(c columnRef) *column {
	for _, u := range b.uses {
		if table := b.schema.tables[u.table]; u.alias == c.alias && table != nil {
			return table.columns[c.name]
		}
	}
	return nil
}

// fact is what is true of rows: columns are equal to what sqlc passes, or to each other,
// and of each of some alternatives one is true.
type fact struct {
	args   map[columnRef][]string
	equal  [][2]columnRef
	either [][]*fact
}

// fact returns what is true of the rows of a table that pass the block's conditions.
func (b *block) fact(alias string) *fact {
	f := &fact{args: map[columnRef][]string{}}
	b.learn(f, b.where)
	for _, on := range conditions(b.from, alias) {
		b.learn(f, on)
	}
	return f
}

// conditions returns the ON conditions that are true of each row of a table that isn't the
// NULLs of an outer join.
func conditions(n ast.ResultSetNode, alias string) []ast.ExprNode {
	join, ok := n.(*ast.Join)
	if !ok || join.Right == nil {
		if ok {
			return conditions(join.Left, alias)
		}
		return nil
	}
	left, right := named(join.Left, alias), named(join.Right, alias)
	var all []ast.ExprNode
	if join.Tp != ast.LeftJoin || right {
		all = append(all, conditions(join.Right, alias)...)
	}
	if join.Tp != ast.RightJoin || left {
		all = append(all, conditions(join.Left, alias)...)
	}
	if join.On != nil && (join.Tp == ast.CrossJoin || join.Tp == ast.LeftJoin && right || join.Tp == ast.RightJoin && left) {
		all = append(all, join.On.Expr)
	}
	return all
}

// named tells whether a FROM has a table of that name.
func named(n ast.ResultSetNode, alias string) bool {
	switch n := n.(type) {
	case *ast.Join:
		return named(n.Left, alias) || n.Right != nil && named(n.Right, alias)
	case *ast.TableSource:
		t, ok := n.Source.(*ast.TableName)
		return ok && cmp.Or(n.AsName.L, t.Name.L) == alias
	}
	return false
}

// learn adds what is true where an expression is.
func (b *block) learn(f *fact, e ast.ExprNode) {
	switch e := bare(e).(type) {
	case *ast.BinaryOperationExpr:
		switch e.Op {
		case opcode.LogicAnd:
			b.learn(f, e.L)
			b.learn(f, e.R)
		case opcode.LogicOr:
			f.either = append(f.either, []*fact{b.of(e.L), b.of(e.R)})
		case opcode.EQ, opcode.NullEQ:
			b.same(f, e.L, e.R)
		}
	case *ast.PatternInExpr:
		if e.Not || e.Sel != nil {
			return
		}
		var one []*fact
		for _, element := range e.List {
			is := &fact{args: map[columnRef][]string{}}
			b.same(is, e.Expr, element)
			one = append(one, is)
		}
		f.either = append(f.either, one)
	}
}

// of returns what is true where an expression is.
func (b *block) of(e ast.ExprNode) *fact {
	f := &fact{args: map[columnRef][]string{}}
	b.learn(f, e)
	return f
}

// same adds that two expressions are equal. Columns are the same only where equality
// doesn't depend on how they are compared.
func (b *block) same(f *fact, l, r ast.ExprNode) {
	left, isLeft := b.ref(l)
	right, isRight := b.ref(r)
	switch {
	case isLeft && isRight:
		if b.column(left).alike(b.column(right)) {
			f.equal = append(f.equal, [2]columnRef{left, right})
		}
	case isLeft:
		if arg := b.arg(r); arg != "" {
			f.args[left] = append(f.args[left], arg)
		}
	case isRight:
		if arg := b.arg(l); arg != "" {
			f.args[right] = append(f.args[right], arg)
		}
	}
}

func (b *block) ref(e ast.ExprNode) (columnRef, bool) {
	c, ok := bare(e).(*ast.ColumnNameExpr)
	if !ok {
		return columnRef{}, false
	}
	return b.resolve(c.Name)
}

// arg returns what sqlc passes for an expression that is a ?, or nothing.
func (m *meaning) arg(e ast.ExprNode) string {
	if mark, ok := bare(e).(*test_driver.ParamMarkerExpr); ok {
		return m.args[mark.Offset]
	}
	return ""
}

// alike tells whether two columns compare with each other as each does with a parameter.
func (c *column) alike(other *column) bool {
	return c.isInteger() && other.isInteger() || c.isText() && other.isText() && c.collated == other.collated && (c.binary() || c.collation != "")
}

// values returns what sqlc passes that a column is equal to.
func (f *fact) values(c columnRef) (args []string) {
	known := []columnRef{c}
	for i := 0; i < len(known); i++ {
		args = append(args, f.args[known[i]]...)
		for _, e := range f.equal {
			for side := range e {
				if e[side] == known[i] && !slices.Contains(known, e[1-side]) {
					known = append(known, e[1-side])
				}
			}
		}
	}
	return args
}

// all returns what sqlc passes that a column is equal to, in an alternative, too.
func (f *fact) all(c columnRef) []string {
	args := f.values(c)
	for _, one := range f.either {
		for _, is := range one {
			args = append(args, f.with(is).all(c)...)
		}
	}
	return args
}

// covers tells whether a row of which the fact is true has one of the keys.
func (f *fact) covers(columns []columnRef, keys []key) bool {
	if slices.ContainsFunc(keys, func(k key) bool { return k.is(func(i int) []string { return f.values(columns[i]) }) }) {
		return true
	}
	return slices.ContainsFunc(f.either, func(one []*fact) bool {
		return !slices.ContainsFunc(one, func(is *fact) bool { return !f.with(is).covers(columns, keys) })
	})
}

// with returns both facts, of the alternatives only those of the second.
func (f *fact) with(other *fact) *fact {
	both := &fact{args: map[columnRef][]string{}, equal: append(slices.Clone(f.equal), other.equal...), either: other.either}
	for _, args := range []map[columnRef][]string{f.args, other.args} {
		for c, a := range args {
			both.args[c] = append(both.args[c], a...)
		}
	}
	return both
}

// is tells whether a key is made of these values.
func (k key) is(values func(part int) []string) bool {
	for i, v := range k.values {
		if !slices.Contains(values(i), v.expr) {
			return false
		}
	}
	return true
}

// unproven returns why rows that the statement reads or writes there may have other keys
// than these, or nothing.
func (u *use) unproven(columns []string, keys []key) (why string) {
	if u.why != "" {
		return u.why
	}
	if u.insert != nil {
		return u.unprovenInsert(columns, keys)
	}
	var refs []columnRef
	for _, c := range columns {
		refs = append(refs, columnRef{u.alias, c})
	}
	f := u.in.fact(u.alias)
	if !f.covers(refs, keys) {
		return "its condition must say that " + u.alias + "." + strings.Join(columns, ", "+u.alias+".") + " = ?, with the parameters of a key and no cast or function, and let no other row pass"
	}
	if !u.writes {
		return ""
	}
	return u.moves(columns, keys, func(part int) []string { return f.values(refs[part]) })
}

// moves returns why the statement may give a row another key than these, or nothing.
func (u *use) moves(columns []string, keys []key, old func(part int) []string) (why string) {
	parts, moved := make([][]string, len(columns)), map[int]bool{}
	for i, name := range columns {
		parts[i] = old(i)
		for n, a := range u.sets {
			if a.Column.Name.L != name || u.keeps(name, a.Expr) {
				continue
			}
			later := slices.ContainsFunc(u.sets[n+1:], func(b *ast.Assignment) bool { return b.Column.Name.L == name })
			arg := u.in.arg(a.Expr)
			if moved[i] || later || arg == "" {
				return "it sets " + u.table + "." + name + ", and only a parameter of a key can be its new value"
			}
			parts[i], moved[i] = []string{arg}, true
		}
	}
	if len(moved) == 0 {
		return ""
	}
	return u.gets(columns, keys, parts, func(i int) bool { return moved[i] })
}

// keeps tells whether a column is set to what it is.
func (u *use) keeps(name string, e ast.ExprNode) bool {
	if values, ok := bare(e).(*ast.ValuesExpr); ok {
		return u.insert != nil && values.Column.Name.Name.L == name
	}
	c, ok := u.in.ref(e)
	return ok && c == columnRef{u.alias, name}
}

// gets returns why these parts are none of the keys, or may be stored as another one.
func (u *use) gets(columns []string, keys []key, parts [][]string, stored func(part int) bool) (why string) {
	at := slices.IndexFunc(keys, func(k key) bool { return k.is(func(i int) []string { return parts[i] }) })
	if at < 0 {
		return "each row needs a lock of its own: its " + strings.Join(columns, ", ") + " must be the parameters of a key"
	}
	for i, v := range keys[at].values {
		if !stored(i) {
			continue
		}
		if err := u.in.column(columnRef{u.alias, columns[i]}).stores(v, u.ignore); err != nil {
			return columns[i] + " " + err.Error()
		}
	}
	return ""
}
