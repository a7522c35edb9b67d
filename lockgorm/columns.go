package lockgorm

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/txlock"
)

// varbinary is what to write for a column that compares strings as keys are compared.
const varbinary = `gorm:"type:varbinary(191)"`

// noCollation is that of numbers and dates, and of MariaDB's UUID and INET6, which are told as CHAR:
// what has no collation of its own has the coercibility 5, on MariaDB 11.8 it is 7.
const noCollation = "none"

// columnType is what a column of a primary key is, as a model declares it or as the server knows it.
type columnType struct {
	kind      string // VARCHAR, UNSIGNED BIGINT
	collation string // "" if only the server knows it
}

// class is what a column stores.
type class int

const (
	unknown class = iota
	numbers
	texts
	bytes
	others
)

func (c columnType) class() class {
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(c.kind, part) {
				return true
			}
		}
		return false
	}
	switch {
	case c.kind == "":
		return unknown
	case strings.HasSuffix(c.kind, "INT"), has("INTEGER", "DECIMAL", "NUMERIC", "BIT"):
		return numbers
	case has("CHAR", "TEXT", "ENUM"):
		return texts
	case has("BINARY", "BLOB"):
		return bytes
	case has("FLOAT", "DOUBLE", "REAL", "DATE", "TIME", "YEAR", "JSON"):
		return others
	}
	return unknown
}

// misfit returns why identifiers of this type, folded as a collation compares them if one
// is given, don't tell the rows of the column apart, or "".
func (c columnType) misfit(id reflect.Type, fold string) string {
	switch is := c.class(); {
	case is == others:
		return fmt.Sprintf("is a %s, a key is for integers, strings and UUIDs: write a method LockKeys", c.kind)
	case id == reflect.TypeFor[uuid.UUID]():
		if is == numbers {
			return fmt.Sprintf("is a %s, the field a UUID: make the column CHAR(36)", c.kind)
		}
	case id.Kind() == reflect.String:
		if is == numbers {
			return fmt.Sprintf("is a %s, to which several strings are one number: make the field an integer", c.kind)
		}
		if c.collation == noCollation {
			return fmt.Sprintf("is of a type such as UUID or INET6, to which several strings are one value: make it %s, or write a method LockKeys that names what is stored", varbinary)
		}
		if fold != "" && c.collation != "" && c.collation != fold {
			return fmt.Sprintf("has the collation %s, but the tag folds as %s does: name the collation of the column, or leave fold= out", c.collation, fold)
		}
		if fold == "" && c.collation != "" && !strings.HasSuffix(c.collation, "_bin") && c.collation != "binary" {
			return fmt.Sprintf("has the collation %s, to which several strings may be one, such as Bob and bob, and keys are compared byte by byte, so that one row has several keys: make it %s, or give it a binary collation, or fold the keys as it compares (fold=%s in a tag, txlock.Fold in a family), or lock by another key", c.collation, varbinary, c.collation)
		}
	case is == texts || is == bytes:
		return fmt.Sprintf("is a %s, in which several values may be one number: make it BIGINT, or the field a string", c.kind)
	}
	return ""
}

// declaredBy returns what the tag of a field declares, or the zero value.
func declaredBy(field *schema.Field) columnType {
	words := strings.FieldsFunc(strings.ToUpper(field.TagSettings["TYPE"]), func(r rune) bool { return r == '(' || r == ' ' })
	if len(words) == 0 {
		return columnType{}
	}
	c := columnType{kind: words[0]}
	if c.class() == bytes {
		c.collation = "binary"
	}
	return c
}

// lookUp asks the server for a column of a table, both quoted. It reads no row, so that a
// transaction has no snapshot afterwards.
func lookUp(table, name string, ask func(text string) (*sql.Rows, error)) (c columnType, err error) {
	of := fmt.Sprintf("(SELECT %s FROM %s LIMIT 0)", name, table)
	rows, err := ask(fmt.Sprintf("SELECT %s, IF(COERCIBILITY(%s) >= 5, '%s', COLLATION(%s)) LIMIT 1", of, of, noCollation, of))
	if err != nil {
		var server *mysql.MySQLError
		if errors.As(err, &server) && server.Number == 1054 { // ER_BAD_FIELD_ERROR
			return c, fmt.Errorf("%w: the table %s has no column %s: name the one it has by gorm:\"column:...\": %w", txlock.ErrInvalidKey, table, name, err)
		}
		return c, fmt.Errorf("lockgorm: look at the column %s of %s: %w", name, table, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	types, err := rows.ColumnTypes()
	if err != nil {
		return c, err
	}
	var none sql.RawBytes
	for rows.Next() {
		c.kind = types[0].DatabaseTypeName()
		err = rows.Scan(&none, &c.collation)
		if name, old := strings.CutPrefix(c.collation, "utf8_"); old {
			c.collation = "utf8mb3_" + name
		}
	}
	return c, errors.Join(err, rows.Err())
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
		why, _ = p.columns.LoadOrStore(at, c.misfit(t.id.IndirectFieldType, t.fold))
	}
	if why != "" {
		return wrongTag(stmt.Schema, fmt.Errorf("the column %s %s", t.id.DBName, why))
	}
	return nil
}

// lookUpIn looks a column up in the transaction of a statement.
func lookUpIn(db *gorm.DB, table string, id *schema.Field) (columnType, error) {
	tx, err := transactionOf(db)
	if err != nil {
		return columnType{}, err
	}
	c, err := lookUp(table, db.Statement.Quote(id.DBName), func(text string) (*sql.Rows, error) {
		return tx.QueryContext(db.Statement.Context, text)
	})
	if err != nil {
		return c, fmt.Errorf("%w (what is declared %s is not looked up)", err, varbinary)
	}
	return c, nil
}

// tableOf returns the table of a statement, quoted and without an alias.
func tableOf(stmt *gorm.Statement) string {
	if stmt.TableExpr != nil {
		expr := scratchOf(stmt)
		stmt.TableExpr.Build(expr)
		if parts := table.FindStringSubmatch(expr.SQL.String()); parts != nil {
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
	if zero || s.told.Load() || declaredBy(id).class() == bytes {
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
	if why := c.misfit(id.IndirectFieldType, ""); err == nil && why != "" {
		db.Logger.Warn(stmt.Context, "lockgorm: LockKeys of %s makes keys of %s as it is, and the column %s %s: or let LockKeys convert it to one spelling", stmt.Schema.Name, id.Name, id.DBName, why)
	}
}
