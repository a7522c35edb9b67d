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
	views    map[string][]string // what each reads
	foreign  []*foreignKey
	defaults collated // of the database
}

type tableDef struct {
	database string // if it is said
	columns  map[string]*column
	unique   []*index
	defaults collated
}

// collated is a character set and a collation; what isn't said is empty.
type collated struct{ charset, collation string }

// column is a column as a key is compared with it.
type column struct {
	collated
	kind      byte // of package mysql
	said      string
	unsigned  bool
	length    int
	counts    bool // AUTO_INCREMENT
	generated bool
}

// What begins the part of a migration that undoes it, and that sqlc leaves out.
var undoes = regexp.MustCompile(`(?mis)^-- (\+goose down|\+migrate down|migrate:down)|^---- create above / drop below ----`)

// readSchema reads the files of a schema.
func readSchema(files []string) (*catalog, error) {
	c := &catalog{tables: map[string]*tableDef{}, views: map[string][]string{}}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if at := undoes.FindIndex(text); at != nil {
			text = text[:at[0]]
		}
		all, _, err := parser.New().Parse(string(text), "", "")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		for _, s := range all {
			if err := c.read(s); err != nil {
				return nil, fmt.Errorf("%s: %w", filepath.Base(file), err)
			}
		}
	}
	return c, nil
}

// read reads a statement, if it changes what columns and keys there are. It returns an error
// for one that it doesn't know.
func (c *catalog) read(s ast.StmtNode) error {
	switch s := s.(type) {
	case *ast.CreateDatabaseStmt:
		c.database(s.Options)
	case *ast.AlterDatabaseStmt:
		c.database(s.Options)
	case *ast.CreateTableStmt:
		return c.create(s)
	case *ast.CreateViewStmt:
		c.views[s.ViewName.Name.L] = namesIn(s.Select)
	case *ast.DropTableStmt:
		for _, t := range s.Tables {
			c.drop(t.Name.L)
		}
	case *ast.RenameTableStmt:
		for _, t := range s.TableToTables {
			c.rename(t.OldTable.Name.L, t.NewTable.Name.L)
		}
	case *ast.CreateIndexStmt:
		if t := c.tables[s.Table.Name.L]; t != nil && s.KeyType == ast.IndexKeyTypeUnique {
			t.addUnique(s.IndexName, s.IndexPartSpecifications)
		}
	case *ast.DropIndexStmt:
		if t := c.tables[s.Table.Name.L]; t != nil {
			t.dropIndex(s.IndexName)
		}
	case *ast.AlterTableStmt:
		return c.alter(s)
	case *ast.InsertStmt, *ast.UpdateStmt, *ast.DeleteStmt, *ast.SelectStmt, *ast.SetStmt, *ast.UseStmt,
		*ast.BeginStmt, *ast.CommitStmt, *ast.RollbackStmt, *ast.LockTablesStmt, *ast.UnlockTablesStmt,
		*ast.ProcedureInfo, *ast.DropProcedureStmt, *ast.GrantStmt, *ast.RevokeStmt, *ast.CreateUserStmt,
		*ast.DropUserStmt, *ast.TruncateTableStmt:
	default:
		return fmt.Errorf("lockgen doesn't know what %q does to the schema: move it to a file that sqlc.yaml doesn't name as schema", clip(s.Text()))
	}
	return nil
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

// hasAll tells whether a table has these columns.
func (c *catalog) hasAll(table string, columns []string) bool {
	t := c.tables[table]
	return t != nil && !slices.ContainsFunc(columns, func(name string) bool { return t.columns[name] == nil })
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
	case c.kind == mysql.TypeSet:
		return fmt.Errorf("is a SET, of which one value may have several texts: lock it by another column")
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
