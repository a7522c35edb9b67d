package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pingcap/tidb/pkg/parser"
	"github.com/pingcap/tidb/pkg/parser/ast"
	"github.com/pingcap/tidb/pkg/parser/mysql"
	"github.com/pingcap/tidb/pkg/parser/types"
)

// catalog is what the files of a schema say, one after the other.
type catalog struct {
	tables   map[string]*tableDef
	defaults collated // of the database
}

type tableDef struct {
	columns  map[string]*column
	defaults collated
}

// collated is a character set and a collation; what isn't said is empty.
type collated struct{ charset, collation string }

// column is a column as a key is compared with it.
type column struct {
	collated
	kind byte // of package mysql
	said string
}

// What begins the part of a migration that undoes it, and that sqlc leaves out.
var undoes = regexp.MustCompile(`(?mis)^-- (\+goose down|\+migrate down|migrate:down)|^---- create above / drop below ----`)

// readSchema reads the files of a schema. It returns what it has read even with an error.
func readSchema(files []string) (*catalog, error) {
	c := &catalog{tables: map[string]*tableDef{}}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return c, fmt.Errorf("lockgen: %w", err)
		}
		if at := undoes.FindIndex(text); at != nil {
			text = text[:at[0]]
		}
		all, _, err := parser.New().Parse(string(text), "", "")
		if err != nil {
			return c, fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		for _, s := range all {
			c.read(s)
		}
	}
	return c, nil
}

// read reads a statement, if it changes what columns there are.
func (c *catalog) read(s ast.StmtNode) {
	switch s := s.(type) {
	case *ast.CreateDatabaseStmt:
		c.database(s.Options)
	case *ast.AlterDatabaseStmt:
		c.database(s.Options)
	case *ast.CreateTableStmt:
		c.create(s)
	case *ast.DropTableStmt:
		for _, t := range s.Tables {
			delete(c.tables, t.Name.L)
		}
	case *ast.RenameTableStmt:
		for _, t := range s.TableToTables {
			c.rename(t.OldTable.Name.L, t.NewTable.Name.L)
		}
	case *ast.AlterTableStmt:
		for _, spec := range s.Specs {
			if t := c.tables[s.Table.Name.L]; t != nil {
				t.alter(spec)
			}
			if spec.Tp == ast.AlterTableRenameTable {
				c.rename(s.Table.Name.L, spec.NewTable.Name.L)
			}
		}
	}
}

func (c *catalog) database(options []*ast.DatabaseOption) {
	var said collated
	for _, o := range options {
		switch o.Tp {
		case ast.DatabaseOptionCharset:
			said.charset = o.Value
		case ast.DatabaseOptionCollate:
			said.collation = o.Value
		}
	}
	c.defaults = cmp.Or(said, c.defaults)
}

func (c *catalog) rename(old, to string) {
	if t := c.tables[old]; t != nil {
		delete(c.tables, old)
		c.tables[to] = t
	}
}

func (c *catalog) create(s *ast.CreateTableStmt) {
	if c.tables[s.Table.Name.L] != nil && s.IfNotExists {
		return
	}
	t := &tableDef{columns: map[string]*column{}, defaults: c.defaults}
	if s.ReferTable != nil {
		if like := c.tables[s.ReferTable.Name.L]; like != nil {
			for name, col := range like.columns {
				own := *col
				t.columns[name] = &own
			}
		}
	}
	t.options(s.Options)
	for _, col := range s.Cols {
		t.add(col)
	}
	c.tables[s.Table.Name.L] = t
}

// options reads those of a table. It tells whether they convert the columns, too.
func (t *tableDef) options(options []*ast.TableOption) (converts bool) {
	var said collated
	for _, o := range options {
		switch o.Tp {
		case ast.TableOptionCharset:
			said.charset = o.StrValue
			converts = converts || o.UintValue == ast.TableOptionCharsetWithConvertTo
		case ast.TableOptionCollate:
			said.collation = o.StrValue
		}
	}
	t.defaults = cmp.Or(said, t.defaults)
	return converts
}

func (t *tableDef) alter(spec *ast.AlterTableSpec) {
	if t.options(spec.Options) {
		for _, col := range t.columns {
			if col.isText() {
				col.collated = t.defaults
			}
		}
	}
	switch spec.Tp {
	case ast.AlterTableDropColumn, ast.AlterTableChangeColumn:
		delete(t.columns, spec.OldColumnName.Name.L)
	case ast.AlterTableRenameColumn:
		if col := t.columns[spec.OldColumnName.Name.L]; col != nil {
			delete(t.columns, spec.OldColumnName.Name.L)
			t.columns[spec.NewColumnName.Name.L] = col
		}
	}
	for _, col := range spec.NewColumns {
		t.add(col)
	}
}

// add adds a column, or replaces it.
func (t *tableDef) add(def *ast.ColumnDef) {
	c := &column{kind: def.Tp.GetType(), said: def.Tp.String(), collated: t.defaults}
	switch charset, attribute := def.Tp.GetCharset(), mysql.HasBinaryFlag(def.Tp.GetFlag()); {
	case charset != "" && charset != "binary" && attribute:
		c.collated = collated{collation: charset + "_bin"} // VARCHAR(9) CHARACTER SET latin1 BINARY
	case charset != "":
		c.collated = collated{charset: charset}
	case attribute:
		c.collated = collated{}
	}
	for _, o := range def.Options {
		if o.Tp == ast.ColumnOptionCollate {
			c.collated = collated{collation: o.StrValue}
		}
	}
	t.columns[def.Name.Name.L] = c
}

// isText tells whether a column has texts, or bytes.
func (c *column) isText() bool {
	return types.IsTypeChar(c.kind) || types.IsTypeBlob(c.kind) || c.kind == mysql.TypeVarString ||
		c.kind == mysql.TypeEnum || c.kind == mysql.TypeSet
}

// name returns the name of a collation in its full form.
func (c collated) name() string {
	switch name := strings.ToLower(c.collation); {
	case strings.HasPrefix(name, "utf8_"):
		return "utf8mb3" + name[len("utf8"):]
	case strings.HasPrefix(name, "uca1400"):
		return "utf8mb4_" + name
	default:
		return name
	}
}

// binary tells whether bytes are compared.
func (c collated) binary() bool { return c.charset == "binary" || c.collation == "binary" }

// Collations in which texts are equal where their bytes are.
var exact = []string{"utf8mb4_0900_bin", "utf8mb4_nopad_bin", "latin1_nopad_bin", "ascii_nopad_bin", "utf8mb3_nopad_bin"}

// compares returns an error where keys of a family of strings, which folds as a collation
// does if it is not empty, are not equal where the values of the column are.
func (c *column) compares(fold string) error {
	name := c.name()
	of := cmp.Or(name, strings.ToLower(c.charset)+"_")
	switch {
	case !c.isText():
		return fmt.Errorf("is %s, of which one value may have several texts: lock it by a family of integers, or by another column", c.said)
	case c.binary() && c.kind == mysql.TypeString:
		return fmt.Errorf("is BINARY, which fills values up with zero bytes: make it VARBINARY, or the family one of uuid.UUID")
	case c.binary(), fold == "" && slices.Contains(exact, name) && c.kind != mysql.TypeString:
		return nil
	case fold == "" && name == "":
		return fmt.Errorf("has no collation in the schema, and by default servers take Bob and bob for one row, which would have two keys: make it VARBINARY, or give the family txlock.Fold with the collation that the server has, where it is made")
	case fold == "":
		return fmt.Errorf("has the collation %s, which takes texts of other bytes for one row, which would have several keys: make it VARBINARY, or give the family txlock.Fold(%q) where it is made", name, name)
	case of != "_" && of != fold && (name != "" || !strings.HasPrefix(fold, of)):
		return fmt.Errorf("has the collation %s, but the family folds as %s does", cmp.Or(name, of+"..."), fold)
	}
	return nil
}
