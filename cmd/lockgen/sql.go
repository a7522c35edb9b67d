package main

import (
	"cmp"
	"errors"
	"reflect"
	"slices"

	"github.com/pingcap/tidb/pkg/parser"
	"github.com/pingcap/tidb/pkg/parser/ast"
	"github.com/pingcap/tidb/pkg/parser/test_driver" // the parser's values, of which ? is one
)

// meaning is what a statement does, as far as locks are concerned.
type meaning struct {
	schema *catalog
	uses   []*use
	insert bool              // a plain one, which touches no row that is there
	named  map[string][]int  // the ? that a column of that name is compared with, or set to
	marks  []int             // the offset of each ?
	args   map[int]string    // what sqlc passes for the ? at an offset
	blocks map[ast.Node]bool // joins that are read already
	ctes   []string
}

// use is a place of a statement in which a table stands: rows are read or written there.
type use struct {
	table  string
	alias  string
	in     *block
	writes bool
	sets   []*ast.Assignment
	insert *ast.InsertStmt
	ignore bool
	server bool   // a table that the server makes
	why    string // why it can't be told which rows
}

// parse reads one statement; args is what sqlc passes for each ?. Its error says that lockgen
// can't tell all that the statement does. The meaning is nil where it tells nothing.
func parse(sql string, args []string, schema *catalog) (*meaning, error) {
	all, _, err := parser.New().Parse(sql, "", "")
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, errors.New("it is not one statement")
	}
	m := &meaning{schema: schema, named: map[string][]int{}, args: map[int]string{}, blocks: map[ast.Node]bool{}}
	all[0].Accept((*marker)(m))
	slices.Sort(m.marks)
	for i, at := range m.marks {
		if i < len(args) {
			m.args[at] = args[i]
		}
	}
	switch s := all[0].(type) {
	case *ast.SelectStmt, *ast.SetOprStmt:
	case *ast.InsertStmt:
		m.inserted(s)
	case *ast.UpdateStmt:
		m.updated(s)
	case *ast.DeleteStmt:
		m.deleted(s)
	default:
		return nil, errors.New("it is neither SELECT nor INSERT, REPLACE, UPDATE or DELETE")
	}
	all[0].Accept(m)
	m.expand()
	return m, cmp.Or(conditional(sql), unknown(reflect.ValueOf(all[0])), m.strange())
}

// strange returns an error where a name doesn't mean a table of the schema.
func (m *meaning) strange() error {
	for _, name := range m.ctes {
		if m.schema.has(name) {
			return errors.New("WITH " + name + " hides the table of that name: give it another one")
		}
	}
	for _, u := range m.uses {
		if !m.schema.has(u.table) && !slices.Contains(m.ctes, u.table) && !u.server {
			return errors.New("the schema has no table " + u.table)
		}
	}
	return nil
}

// has tells whether the schema has a table or a view of that name.
func (c *catalog) has(name string) bool {
	_, isView := c.views[name]
	return isView || c.tables[name] != nil
}

// marker collects the ? of a statement.
type marker meaning

// Enter is for ast.Visitor.
func (m *marker) Enter(n ast.Node) (ast.Node, bool) {
	if mark, ok := n.(*test_driver.ParamMarkerExpr); ok {
		m.marks = append(m.marks, mark.Offset)
	}
	return n, false
}

// Leave is for ast.Visitor.
func (m *marker) Leave(n ast.Node) (ast.Node, bool) { return n, true }

// inserted notes the table of an INSERT, and which ? becomes which column.
func (m *meaning) inserted(s *ast.InsertStmt) {
	m.insert = !s.IsReplace && len(s.OnDuplicate) == 0
	for _, u := range m.block(s.Table.TableRefs, nil).uses {
		u.writes, u.insert, u.sets, u.ignore = true, s, s.OnDuplicate, s.IgnoreErr
		m.uses = append(m.uses, u)
	}
	for i, c := range s.Columns {
		for _, row := range rowsOf(s) {
			if i < len(row) {
				m.name(c, row[i])
			}
		}
	}
}

// updated notes the tables of an UPDATE.
func (m *meaning) updated(s *ast.UpdateStmt) {
	b := m.block(s.TableRefs.TableRefs, s.Where)
	for _, a := range s.List {
		alias, known := b.resolve(a.Column)
		for _, u := range b.uses {
			if !known || u.alias == alias.alias {
				u.writes, u.ignore, u.sets = true, s.IgnoreErr, append(u.sets, a)
			}
			if !known {
				u.why = "lockgen can't determine the table of the column " + a.Column.Name.O + " is"
			}
		}
	}
	m.uses = append(m.uses, b.uses...)
}

// deleted notes the tables of a DELETE.
func (m *meaning) deleted(s *ast.DeleteStmt) {
	b := m.block(s.TableRefs.TableRefs, s.Where)
	m.uses = append(m.uses, b.uses...)
	if s.Tables == nil {
		for _, u := range b.uses {
			u.writes = true
		}
		return
	}
	for _, t := range s.Tables.Tables {
		known := 0
		for _, u := range b.uses {
			if u.alias == t.Name.L && t.Schema.L == "" {
				known++
				u.writes = true
			}
		}
		for _, u := range b.uses {
			if known != 1 {
				u.writes, u.why = true, "lockgen can't determine which of its tables "+t.Name.O+" is"
			}
		}
	}
}

// Enter notes what stands in the statement.
func (m *meaning) Enter(n ast.Node) (ast.Node, bool) {
	switch n := n.(type) {
	case *ast.CommonTableExpression:
		m.ctes = append(m.ctes, n.Name.L)
	case *ast.SelectStmt:
		if n.From != nil {
			m.uses = append(m.uses, m.block(n.From.TableRefs, n.Where).uses...)
		}
	case *ast.Join:
		if !m.blocks[n] { // it is no part of a SELECT
			m.uses = append(m.uses, m.block(n, nil).uses...)
		}
	case *ast.BinaryOperationExpr:
		m.pair(n.L, n.R)
		m.pair(n.R, n.L)
	case *ast.PatternInExpr:
		for _, e := range n.List {
			m.pair(n.Expr, e)
		}
	case *ast.Assignment:
		m.name(n.Column, n.Expr)
	}
	return n, false
}

// Leave is for ast.Visitor.
func (m *meaning) Leave(n ast.Node) (ast.Node, bool) { return n, true }

func (m *meaning) pair(a, b ast.ExprNode) {
	if c, ok := bare(a).(*ast.ColumnNameExpr); ok {
		m.name(c.Name, b)
	}
}

func (m *meaning) name(c *ast.ColumnName, e ast.ExprNode) {
	if mark, ok := bare(e).(*test_driver.ParamMarkerExpr); ok {
		m.named[c.Name.L] = append(m.named[c.Name.L], mark.Offset)
	}
}

// expand adds what stands behind views, and what foreign keys change.
func (m *meaning) expand() {
	add := func(of *use, table string, writes bool, why string) {
		m.uses = append(m.uses, &use{table: table, in: of.in, writes: writes, why: why})
	}
	for _, u := range slices.Clone(m.uses) {
		if _, isView := m.schema.views[u.table]; isView {
			for _, table := range m.schema.behind(u.table) {
				add(u, table, u.writes, "it stands in the view "+u.table)
			}
		}
	}
	for _, u := range slices.Clone(m.uses) {
		if !u.writes {
			continue
		}
		c := change{table: u.table, removes: u.sets == nil && (u.insert == nil || u.insert.IsReplace)}
		for _, a := range u.sets {
			c.sets = append(c.sets, a.Column.Name.L)
		}
		for _, table := range m.schema.cascades(c) {
			add(u, table, true, "a foreign key on "+u.table+" changes rows of it")
		}
	}
}

// namesIn returns the tables that a statement names.
func namesIn(s ast.Node) []string {
	var n names
	s.Accept(&n)
	return n
}

type names []string

// Enter is for ast.Visitor.
func (all *names) Enter(n ast.Node) (ast.Node, bool) {
	if t, ok := n.(*ast.TableName); ok {
		*all = append(*all, t.Name.L)
	}
	return n, false
}

// Leave is for ast.Visitor.
func (all *names) Leave(n ast.Node) (ast.Node, bool) { return n, true }

// bare is an expression without parentheses.
func bare(e ast.ExprNode) ast.ExprNode {
	for {
		inner, ok := e.(*ast.ParenthesesExpr)
		if !ok {
			return e
		}
		e = inner.Expr
	}
}

// changes tells whether the statement changes rows of a table that are there: a plain
// INSERT does so by foreign keys only, of which it has none.
func (m *meaning) changes(table string) bool {
	return !m.insert && slices.ContainsFunc(m.uses, func(u *use) bool { return u.writes && u.table == table })
}

// mentions tells whether the statement names a table.
func (m *meaning) mentions(table string) bool {
	return slices.ContainsFunc(m.uses, func(u *use) bool { return u.table == table })
}

// argsOf returns what sqlc passes for a column of a table: what each row has that passes a
// condition, or gets.
func (m *meaning) argsOf(table, column string) (args []string) {
	for _, u := range m.uses {
		if u.table != table || u.in == nil || m.schema.tables[table] == nil {
			continue
		}
		args = append(args, u.in.fact(u.alias).all(columnRef{u.alias, column})...)
		for _, a := range u.sets {
			if a.Column.Name.L == column && m.arg(a.Expr) != "" {
				args = append(args, m.arg(a.Expr))
			}
		}
		if u.insert != nil {
			args = append(args, m.insertedIn(u.insert, column)...)
		}
	}
	return args
}

// insertedIn returns what sqlc passes for a column of the rows of an INSERT.
func (m *meaning) insertedIn(insert *ast.InsertStmt, column string) (args []string) {
	for i, c := range insert.Columns {
		for _, row := range rowsOf(insert) {
			if c.Name.L == column && i < len(row) && m.arg(row[i]) != "" {
				args = append(args, m.arg(row[i]))
			}
		}
	}
	return args
}
