package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pingcap/tidb/pkg/parser/ast"
	"github.com/pingcap/tidb/pkg/parser/test_driver"
)

// rowsOf returns the rows of an INSERT, or that of its SELECT.
func rowsOf(s *ast.InsertStmt) [][]ast.ExprNode {
	if s.Select == nil {
		return s.Lists
	}
	var row []ast.ExprNode // without what can't be told
	if from, ok := s.Select.(*ast.SelectStmt); ok && from.Fields != nil && from.GroupBy == nil && from.Kind == ast.SelectStmtKindSelect {
		for _, f := range from.Fields.Fields {
			if f.Expr == nil {
				break // a *, behind which no place can be told
			}
			row = append(row, f.Expr)
		}
	}
	return [][]ast.ExprNode{row}
}

// unprovenInsert is unproven for INSERT and REPLACE.
func (u *use) unprovenInsert(columns []string, keys []key) (why string) {
	table := u.in.schema.tables[u.table]
	plain := !u.insert.IsReplace && len(u.sets) == 0
	for _, unique := range table.unique {
		if !plain && slices.ContainsFunc(columns, func(c string) bool { return !slices.Contains(unique.columns, c) }) {
			return "by the unique key " + cmp.Or(unique.name, strings.Join(unique.columns, ", ")) + " it may meet the row of another " + strings.Join(columns, ", ")
		}
	}
	for _, row := range rowsOf(u.insert) {
		parts, made, why := u.row(columns, row)
		switch {
		case why != "":
			return why
		case made && plain:
			continue // nobody else can name that row before COMMIT
		case made:
			return "a key that the server makes may be that of a row which is there"
		}
		old := func(part int) []string { return parts[part] }
		why = cmp.Or(u.gets(columns, keys, parts, func(int) bool { return true }), u.moves(columns, keys, old))
		if why != "" {
			return why
		}
	}
	return ""
}

// row returns what sqlc passes for the key of a row of an INSERT, and whether the server
// makes a part of it.
func (u *use) row(columns []string, row []ast.ExprNode) (parts [][]string, made bool, why string) {
	table := u.in.schema.tables[u.table]
	if len(u.insert.Columns) == 0 {
		return nil, false, "it must name the columns of " + u.table
	}
	for _, name := range columns {
		at := slices.IndexFunc(u.insert.Columns, func(c *ast.ColumnName) bool { return c.Name.L == name })
		switch {
		case at >= 0 && at < len(row) && u.in.arg(row[at]) != "":
			parts = append(parts, []string{u.in.arg(row[at])})
		case table.columns[name].counts && (at < 0 || at < len(row) && isNothing(row[at])):
			parts, made = append(parts, nil), true
		case at < 0:
			return nil, false, "it leaves out " + name + ", which has no AUTO_INCREMENT, so that its default may be the key of a row which is there"
		default:
			return nil, false, "the value of " + name + " must be a parameter"
		}
	}
	return parts, made, ""
}

// isNothing tells whether a value is NULL or DEFAULT.
func isNothing(e ast.ExprNode) bool {
	if d, ok := e.(*ast.DefaultExpr); ok {
		return d.Name == nil
	}
	v, ok := e.(*test_driver.ValueExpr)
	return ok && v.Kind() == test_driver.KindNull
}
