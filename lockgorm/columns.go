package lockgorm

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/internal/columns"
	"github.com/dca00107/lockstep/txlock"
)

// varbinary is what to write for a column that compares strings as keys are compared.
const varbinary = `gorm:"type:varbinary(191)"`

// declaredBy returns what the tag of a field declares, or the zero value.
func declaredBy(field *schema.Field) columns.Type {
	words := strings.FieldsFunc(strings.ToUpper(field.TagSettings["TYPE"]), func(r rune) bool { return r == '(' || r == ' ' })
	if len(words) == 0 {
		return columns.Type{}
	}
	c := columns.Type{Kind: words[0]}
	if c.Class() == columns.Bytes {
		c.Collation = "binary"
	}
	return c
}

// lookUp asks the server for a column of a table, both quoted.
func lookUp(table, name string, ask func(text string) (*sql.Rows, error)) (columns.Type, error) {
	c, err := columns.LookUp(table, name, ask)
	if errors.Is(err, columns.ErrMissing) {
		err = fmt.Errorf("%w: name the column that the table has by gorm:\"column:...\": %w", txlock.ErrInvalidKey, err)
	}
	return c, err
}

// checkColumn looks up, once for each table, whether it tells rows apart as the keys of a
// tag do.
func (p *Plugin) checkColumn(db *gorm.DB, t *tag) error {
	type of struct {
		model *schema.Schema
		table string
	}
	stmt := db.Statement
	at := of{stmt.Schema, tableOf(stmt)}
	why, known := p.columns.Load(at)
	if !known {
		c, err := lookUp(at.table, stmt.Quote(t.id.DBName), func(text string) (*sql.Rows, error) {
			return senderOf(stmt).QueryContext(stmt.Context, text)
		})
		if err != nil {
			return fmt.Errorf("lockgorm: %w (what is declared %s is not looked up)", err, varbinary)
		}
		why, _ = p.columns.LoadOrStore(at, c.Misfit(t.id.IndirectFieldType, t.fold))
	}
	if why != "" {
		return wrongTag(stmt.Schema, fmt.Errorf("the column %s %s", t.id.DBName, why))
	}
	return nil
}

// tableOf returns the table of a statement, quoted and without an alias.
func tableOf(stmt *gorm.Statement) string {
	if stmt.TableExpr != nil {
		if parts := table.FindStringSubmatch(tableText(stmt)); parts != nil {
			return parts[1] + parts[2]
		}
	}
	return stmt.Quote(stmt.Schema.Table)
}
