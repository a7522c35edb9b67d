package lockgorm

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"

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
		c, err := lookUpIn(db, at.table, t.id)
		if err != nil {
			return err
		}
		why, _ = p.columns.LoadOrStore(at, c.Misfit(t.id.IndirectFieldType, t.fold))
	}
	if why != "" {
		return wrongTag(stmt.Schema, fmt.Errorf("the column %s %s", t.id.DBName, why))
	}
	return nil
}

// lookUpIn looks a column up in the transaction of a statement.
func lookUpIn(db *gorm.DB, table string, id *schema.Field) (columns.Type, error) {
	c, err := lookUp(table, db.Statement.Quote(id.DBName), func(text string) (*sql.Rows, error) {
		return unwatched(db.Statement.ConnPool).QueryContext(db.Statement.Context, text)
	})
	if err != nil {
		return c, fmt.Errorf("lockgorm: %w (what is declared %s is not looked up)", err, varbinary)
	}
	return c, nil
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

// spelling is how the strings were written of which a method LockKeys has made keys.
type spelling struct{ lower, upper, told atomic.Bool }

// noteSpelling warns once if a method LockKeys makes keys of strings as they are, in small
// letters and in capitals, and to the column both are one.
func (p *Plugin) noteSpelling(db *gorm.DB, model reflect.Value, keys []txlock.Key) {
	stmt := db.Statement
	if len(stmt.Schema.PrimaryFields) != 1 || stmt.Schema.PrimaryFields[0].IndirectFieldType.Kind() != reflect.String {
		return
	}
	id := stmt.Schema.PrimaryFields[0]
	value, zero := id.ValueOf(stmt.Context, model)
	text := fmt.Sprint(reflect.Indirect(reflect.ValueOf(value)))
	known, _ := p.spellings.LoadOrStore(stmt.Schema, new(spelling))
	s := known.(*spelling)
	if zero || s.told.Load() || declaredBy(id).Class() == columns.Bytes {
		return
	}
	for _, key := range keys {
		if key, _ := inner.Asked(key); key.String() == text || strings.HasSuffix(key.String(), ":"+text) {
			s.lower.Store(s.lower.Load() || text != strings.ToUpper(text))
			s.upper.Store(s.upper.Load() || text != strings.ToLower(text))
		}
	}
	if !s.lower.Load() || !s.upper.Load() {
		return
	}
	c, err := lookUpIn(db, tableOf(stmt), id)
	if errors.Is(err, txlock.ErrNoTransaction) || !s.told.CompareAndSwap(false, true) {
		return
	}
	if why := c.Misfit(id.IndirectFieldType, ""); err == nil && why != "" {
		db.Logger.Warn(stmt.Context, "lockgorm: LockKeys of %s makes keys of %s as it is, and the column %s %s: or let LockKeys convert it to one spelling", stmt.Schema.Name, id.Name, id.DBName, why)
	}
}
