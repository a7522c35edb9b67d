package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pingcap/tidb/pkg/parser/ast"
	"github.com/pingcap/tidb/pkg/parser/mysql"
)

// index is a unique one.
type index struct {
	name    string   // empty where the server chooses it, and DROP INDEX may mean another one
	columns []string // those of which it has the whole value
}

// foreignKey is a reference by which the server changes rows of table itself.
type foreignKey struct {
	name, table, parent string
	columns, references []string
	onDelete, onUpdate  ast.ReferOptionType
}

func (c *catalog) create(s *ast.CreateTableStmt) error {
	if c.tables[s.Table.Name.L] != nil {
		if s.IfNotExists && c.tables[s.Table.Name.L].database == s.Table.Schema.L {
			return nil
		}
		return fmt.Errorf("the schema creates table %s twice, so its columns are ambiguous: select one database, or drop the table in between", s.Table.Name.O)
	}
	t := &tableDef{database: s.Table.Schema.L, columns: map[string]*column{}, defaults: c.defaults}
	if s.ReferTable != nil {
		if like := c.tables[s.ReferTable.Name.L]; like != nil {
			for _, i := range like.unique {
				t.unique = append(t.unique, &index{i.name, slices.Clone(i.columns)})
			}
			for name, col := range like.columns {
				own := *col
				t.columns[name] = &own
			}
		}
	}
	t.options(s.Options)
	c.tables[s.Table.Name.L] = t
	for _, col := range s.Cols {
		c.add(s.Table.Name.L, col)
	}
	return c.constrain(s.Table.Name.L, s.Constraints...)
}

func (c *catalog) drop(name string) {
	delete(c.tables, name)
	delete(c.views, name)
	c.foreign = slices.DeleteFunc(c.foreign, func(f *foreignKey) bool { return f.table == name })
}

func (c *catalog) rename(old, to string) {
	if t := c.tables[old]; t != nil {
		delete(c.tables, old)
		c.tables[to] = t
	}
	for _, f := range c.foreign {
		for _, name := range []*string{&f.table, &f.parent} {
			if *name == old {
				*name = to
			}
		}
	}
}

// harmlessSpecs are parts of ALTER TABLE that change neither columns nor keys.
var harmlessSpecs = []ast.AlterTableType{
	ast.AlterTableOption, ast.AlterTableAlterColumn, ast.AlterTableLock, ast.AlterTableAlgorithm, ast.AlterTableForce,
	ast.AlterTableAddPartitions, ast.AlterTableCoalescePartitions, ast.AlterTableDropPartition, ast.AlterTablePartition,
	ast.AlterTableRemovePartitioning, ast.AlterTableReorganizePartition, ast.AlterTableEnableKeys, ast.AlterTableDisableKeys,
	ast.AlterTableAlterCheck, ast.AlterTableDropCheck, ast.AlterTableIndexInvisible, ast.AlterTableOrderByColumns,
}

func (c *catalog) alter(s *ast.AlterTableStmt) error {
	name := s.Table.Name.L
	for _, spec := range s.Specs {
		if c.tables[name] == nil {
			return fmt.Errorf("the schema alters table %s, which it doesn't make", s.Table.Name.O)
		}
		if !c.alterBy(name, spec) {
			return fmt.Errorf("lockgen doesn't know what %q does to table %s: move it to a file that sqlc.yaml doesn't name as schema", clip(s.Text()), s.Table.Name.O)
		}
		if spec.Tp == ast.AlterTableRenameTable {
			name = spec.NewTable.Name.L
		}
		for _, col := range spec.NewColumns {
			if !spec.IfNotExists || c.tables[name].columns[col.Name.Name.L] == nil {
				c.add(name, col)
			}
		}
		constraints := spec.NewConstraints
		if spec.Constraint != nil {
			constraints = append(slices.Clone(constraints), spec.Constraint)
		}
		if err := c.constrain(name, constraints...); err != nil {
			return err
		}
	}
	return nil
}

// alterBy does what a part of ALTER TABLE says but for what it adds. It tells whether it
// knows the part.
func (c *catalog) alterBy(name string, spec *ast.AlterTableSpec) bool {
	t := c.tables[name]
	t.convert(spec.Options)
	switch spec.Tp {
	case ast.AlterTableRenameTable:
		c.rename(name, spec.NewTable.Name.L)
	case ast.AlterTableDropColumn:
		c.renameColumn(name, spec.OldColumnName.Name.L, "")
	case ast.AlterTableRenameColumn:
		c.renameColumn(name, spec.OldColumnName.Name.L, spec.NewColumnName.Name.L)
	case ast.AlterTableChangeColumn:
		c.renameColumn(name, spec.OldColumnName.Name.L, spec.NewColumns[0].Name.Name.L)
	case ast.AlterTableAddColumns, ast.AlterTableModifyColumn, ast.AlterTableAddConstraint:
	case ast.AlterTableDropPrimaryKey:
		t.dropIndex("primary")
	case ast.AlterTableDropIndex:
		t.dropIndex(spec.Name)
	case ast.AlterTableRenameIndex:
		for _, i := range t.unique {
			if i.name == spec.FromKey.L {
				i.name = spec.ToKey.L
			}
		}
	case ast.AlterTableDropForeignKey:
		c.foreign = slices.DeleteFunc(c.foreign, func(f *foreignKey) bool {
			return f.table == name && f.name == strings.ToLower(spec.Name)
		})
	default:
		return slices.Contains(harmlessSpecs, spec.Tp)
	}
	return true
}

// convert reads options of ALTER TABLE.
func (t *tableDef) convert(options []*ast.TableOption) {
	if !t.options(options) {
		return
	}
	for _, col := range t.columns {
		if col.isText() {
			col.collated = t.defaults
		}
	}
}

// renameColumn renames a column wherever it stands, or removes it.
func (c *catalog) renameColumn(table, old, to string) {
	t := c.tables[table]
	if col := t.columns[old]; col != nil {
		delete(t.columns, old)
		if to != "" {
			t.columns[to] = col
		}
	}
	lists := []*[]string{}
	for _, i := range t.unique {
		lists = append(lists, &i.columns)
	}
	for _, f := range c.foreign {
		if f.table == table {
			lists = append(lists, &f.columns)
		}
		if f.parent == table {
			lists = append(lists, &f.references)
		}
	}
	for _, list := range lists {
		*list = slices.Clone(*list)
		if at := slices.Index(*list, old); at >= 0 {
			(*list)[at] = to
		}
	}
	t.unique = slices.DeleteFunc(t.unique, func(i *index) bool { return len(i.columns) > 0 && strings.Join(i.columns, "") == "" })
}

// add adds a column, or replaces it.
func (c *catalog) add(table string, def *ast.ColumnDef) {
	t := c.tables[table]
	col := &column{
		kind: def.Tp.GetType(), said: def.Tp.String(), collated: t.defaults,
		unsigned: mysql.HasUnsignedFlag(def.Tp.GetFlag()), length: def.Tp.GetFlen(),
	}
	switch charset, attribute := def.Tp.GetCharset(), mysql.HasBinaryFlag(def.Tp.GetFlag()); {
	case charset != "" && charset != "binary" && attribute:
		col.collated = collated{collation: charset + "_bin"} // VARCHAR(9) CHARACTER SET latin1 BINARY
	case charset != "":
		col.collated = collated{charset: charset}
	case attribute:
		col.collated = collated{}
	}
	for _, o := range def.Options {
		name := def.Name.Name.L
		switch o.Tp {
		case ast.ColumnOptionCollate:
			col.collated = collated{collation: o.StrValue}
		case ast.ColumnOptionAutoIncrement:
			col.counts = true
		case ast.ColumnOptionGenerated:
			col.generated = true
		case ast.ColumnOptionPrimaryKey:
			t.unique = append(t.unique, &index{"primary", []string{name}})
		case ast.ColumnOptionUniqKey:
			t.unique = append(t.unique, &index{"", []string{name}})
		case ast.ColumnOptionReference:
			c.refer(table, "", []string{name}, o.Refer)
		}
	}
	t.columns[def.Name.Name.L] = col
}

// constrain reads the keys of a table.
func (c *catalog) constrain(table string, constraints ...*ast.Constraint) error {
	t := c.tables[table]
	for _, k := range constraints {
		switch k.Tp {
		case ast.ConstraintPrimaryKey:
			t.addUnique("primary", k.Keys)
		case ast.ConstraintUniq, ast.ConstraintUniqKey, ast.ConstraintUniqIndex:
			t.addUnique(k.Name, k.Keys)
		case ast.ConstraintForeignKey:
			c.refer(table, k.Name, wholeColumns(k.Keys), k.Refer)
		case ast.ConstraintKey, ast.ConstraintIndex, ast.ConstraintFulltext, ast.ConstraintCheck:
		default:
			return fmt.Errorf("lockgen doesn't know a constraint of table %s", table)
		}
	}
	return nil
}

func (c *catalog) refer(table, name string, columns []string, to *ast.ReferenceDef) {
	f := &foreignKey{name: strings.ToLower(name), table: table, parent: to.Table.Name.L, columns: columns, references: wholeColumns(to.IndexPartSpecifications)}
	if to.OnDelete != nil {
		f.onDelete = to.OnDelete.ReferOpt
	}
	if to.OnUpdate != nil {
		f.onUpdate = to.OnUpdate.ReferOpt
	}
	c.foreign = append(c.foreign, f)
}

func (t *tableDef) addUnique(name string, parts []*ast.IndexPartSpecification) {
	t.unique = append(t.unique, &index{strings.ToLower(name), wholeColumns(parts)})
}

// wholeColumns returns the columns of a key without those of which it has a part or an
// expression.
func wholeColumns(parts []*ast.IndexPartSpecification) (columns []string) {
	for _, p := range parts {
		if p.Column != nil && p.Length <= 0 {
			columns = append(columns, p.Column.Name.L)
		}
	}
	return columns
}

func (t *tableDef) dropIndex(name string) {
	t.unique = slices.DeleteFunc(t.unique, func(i *index) bool { return i.name == strings.ToLower(name) })
}

// behind returns the tables that a name means: its own, or those of a view, which may have
// views again.
func (c *catalog) behind(name string) []string {
	found := map[string]bool{}
	for next := []string{name}; len(next) > 0; next = next[1:] {
		if more, isView := c.views[next[0]]; isView && !found[next[0]] {
			next = append(next, more...)
		}
		found[next[0]] = true
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(found)), func(n string) bool { return c.tables[n] == nil })
}

// change is what a statement does to rows of a table.
type change struct {
	table   string
	removes bool
	sets    []string // columns
}

// cascades returns the tables whose rows foreign keys change when a statement does that.
func (c *catalog) cascades(first change) (tables []string) {
	type step struct {
		*foreignKey
		removes bool
	}
	seen := map[step]bool{}
	for next := []change{first}; len(next) > 0; next = next[1:] {
		for _, f := range c.foreign {
			then, changes := f.passes(next[0])
			if !changes || seen[step{f, then.removes}] {
				continue
			}
			seen[step{f, then.removes}] = true
			next, tables = append(next, then), append(tables, f.table)
		}
	}
	slices.Sort(tables)
	return slices.Compact(tables)
}

// passes tells whether a change of the parent changes the table, and how.
func (f *foreignKey) passes(on change) (then change, changes bool) {
	acts := func(option ast.ReferOptionType) bool {
		return option == ast.ReferOptionCascade || option == ast.ReferOptionSetNull || option == ast.ReferOptionSetDefault
	}
	if f.parent != on.table {
		return change{}, false
	}
	removes := on.removes && acts(f.onDelete)
	sets := acts(f.onUpdate) && (len(f.references) == 0 && len(on.sets) > 0 || slices.ContainsFunc(f.references, func(r string) bool { return slices.Contains(on.sets, r) }))
	return change{table: f.table, removes: removes && f.onDelete == ast.ReferOptionCascade, sets: f.columns}, removes || sets
}
