package main

import (
	"cmp"
	"errors"
	"slices"

	"github.com/pingcap/tidb/pkg/parser"
	"github.com/pingcap/tidb/pkg/parser/ast"
	"github.com/pingcap/tidb/pkg/parser/opcode"
	"github.com/pingcap/tidb/pkg/parser/test_driver" // the parser's values, of which ? is one
)

// tableRef is a table that a statement names, and what it calls it.
type tableRef struct{ name, alias string }

// columnRef is a column that a statement names; alias is empty where it says no table.
type columnRef struct{ alias, name string }

// meaning is what a statement does, as far as locks are concerned.
type meaning struct {
	tables  []tableRef // all that it names, in subqueries, too
	written []string
	insert  bool        // a plain one, which touches no row that is there
	columns []string    // what an INSERT gives, if it says so
	bound   []columnRef // columns that a ? is compared with or written to ...
	binding []int       // ... and the offset of that ?
	equal   [][2]columnRef
	marks   []int // the offset of each ?
	names   []string
}

// parse reads one statement. Its error says that lockgen can't tell what the statement does.
func parse(sql string) (*meaning, error) {
	all, _, err := parser.New().Parse(sql, "", "")
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, errors.New("not one statement")
	}
	m := &meaning{}
	all[0].Accept(m)
	m.tables = slices.DeleteFunc(m.tables, func(t tableRef) bool { return slices.Contains(m.names, t.name) })
	slices.Sort(m.marks)
	switch s := all[0].(type) {
	case *ast.SelectStmt, *ast.SetOprStmt:
	case *ast.InsertStmt:
		m.inserted(s)
	case *ast.UpdateStmt:
		targets := tablesOf(s.TableRefs)
		for _, a := range s.List {
			m.write(targets, a.Column.Table.L)
		}
	case *ast.DeleteStmt:
		targets := tablesOf(s.TableRefs)
		if !s.IsMultiTable {
			m.write(targets, "")
			break
		}
		for _, t := range s.Tables.Tables {
			m.write(targets, t.Name.L)
		}
	default:
		return nil, errors.New("neither SELECT nor INSERT, REPLACE, UPDATE or DELETE")
	}
	return m, nil
}

// write notes the tables that an alias may mean; without one, all.
func (m *meaning) write(targets []tableRef, alias string) {
	for _, t := range targets {
		if (alias == "" || alias == t.alias) && !slices.Contains(m.written, t.name) && !slices.Contains(m.names, t.name) {
			m.written = append(m.written, t.name)
		}
	}
}

// inserted reads which ? becomes which column.
func (m *meaning) inserted(s *ast.InsertStmt) {
	m.write(tablesOf(s.Table), "")
	m.insert = !s.IsReplace && len(s.OnDuplicate) == 0
	rows := s.Lists
	if from, ok := s.Select.(*ast.SelectStmt); ok && from.Fields != nil {
		var row []ast.ExprNode
		for _, f := range from.Fields.Fields {
			row = append(row, f.Expr)
		}
		rows = append(rows, row)
	}
	for i, c := range s.Columns {
		m.columns = append(m.columns, c.Name.L)
		for _, row := range rows {
			if i < len(row) {
				m.bind(columnRef{alias: m.written[0], name: c.Name.L}, row[i])
			}
		}
	}
}

// tablesOf returns the tables that are joined, without those of subqueries.
func tablesOf(from *ast.TableRefsClause) []tableRef {
	var all []tableRef
	var add func(n ast.ResultSetNode)
	add = func(n ast.ResultSetNode) {
		switch n := n.(type) {
		case *ast.Join:
			if n.Left != nil {
				add(n.Left)
			}
			if n.Right != nil {
				add(n.Right)
			}
		case *ast.TableSource:
			if t, ok := n.Source.(*ast.TableName); ok {
				all = append(all, tableRef{t.Name.L, cmp.Or(n.AsName.L, t.Name.L)})
			}
		}
	}
	add(from.TableRefs)
	return all
}

// Enter notes what stands in the statement.
func (m *meaning) Enter(n ast.Node) (ast.Node, bool) {
	switch n := n.(type) {
	case *ast.CommonTableExpression:
		m.names = append(m.names, n.Name.L)
	case *ast.TableSource:
		if t, ok := n.Source.(*ast.TableName); ok {
			m.tables = append(m.tables, tableRef{t.Name.L, cmp.Or(n.AsName.L, t.Name.L)})
		}
	case *test_driver.ParamMarkerExpr:
		m.marks = append(m.marks, n.Offset)
	case *ast.BinaryOperationExpr:
		if n.Op == opcode.EQ || n.Op == opcode.NullEQ {
			m.compare(n.L, n.R)
		}
	case *ast.PatternInExpr:
		for _, e := range n.List {
			if !n.Not {
				m.compare(n.Expr, e)
			}
		}
	}
	return n, false
}

// Leave is for ast.Visitor.
func (m *meaning) Leave(n ast.Node) (ast.Node, bool) { return n, true }

// compare notes that two expressions are equal.
func (m *meaning) compare(a, b ast.ExprNode) {
	a, b = bare(a), bare(b)
	if ra, ok := a.(*ast.RowExpr); ok {
		if rb, ok := b.(*ast.RowExpr); ok && len(ra.Values) == len(rb.Values) {
			for i := range ra.Values {
				m.compare(ra.Values[i], rb.Values[i])
			}
		}
		return
	}
	ca, isA := a.(*ast.ColumnNameExpr)
	cb, isB := b.(*ast.ColumnNameExpr)
	switch {
	case isA && isB:
		m.equal = append(m.equal, [2]columnRef{ref(ca), ref(cb)})
	case isA:
		m.bind(ref(ca), b)
	case isB:
		m.bind(ref(cb), a)
	}
}

func ref(c *ast.ColumnNameExpr) columnRef { return columnRef{c.Name.Table.L, c.Name.Name.L} }

// bind notes that a column is a ?, if the expression is one.
func (m *meaning) bind(c columnRef, e ast.ExprNode) {
	if mark, ok := bare(e).(*test_driver.ParamMarkerExpr); ok {
		m.bound, m.binding = append(m.bound, c), append(m.binding, mark.Offset)
	}
}

// bare is an expression without parentheses and casts.
func bare(e ast.ExprNode) ast.ExprNode {
	for {
		switch inner := e.(type) {
		case *ast.ParenthesesExpr:
			e = inner.Expr
		case *ast.FuncCastExpr:
			e = inner.Expr
		default:
			return e
		}
	}
}

// names tells whether the statement names a table.
func (m *meaning) has(table string) bool {
	return slices.ContainsFunc(m.tables, func(t tableRef) bool { return t.name == table })
}

// columnsOf returns which of the statement's ? are the column of a table, or of what the
// statement says is equal to it, as places in marks.
func (m *meaning) columnsOf(table, column string) []int {
	same := func(a, b columnRef) bool {
		return a.name == b.name && (a.alias == b.alias || a.alias == "" || b.alias == "")
	}
	var known []columnRef
	for _, t := range m.tables {
		if t.name == table {
			known = append(known, columnRef{t.alias, column})
		}
	}
	is := func(c columnRef) bool {
		return slices.ContainsFunc(known, func(k columnRef) bool { return same(k, c) })
	}
	for range m.equal {
		for _, e := range m.equal {
			if is(e[0]) && !is(e[1]) {
				known = append(known, e[1])
			} else if is(e[1]) && !is(e[0]) {
				known = append(known, e[0])
			}
		}
	}
	var places []int
	for i, c := range m.bound {
		if is(c) {
			places = append(places, slices.Index(m.marks, m.binding[i]))
		}
	}
	return places
}
