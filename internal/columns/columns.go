// Package columns compares the columns of a program's tables with the identifiers from which
// keys are made, so that no row has two keys.
package columns

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
)

// ErrMissing is returned by LookUp for a column that the table doesn't have.
var ErrMissing = errors.New("no such column")

// varbinary compares texts as keys are compared.
const varbinary = `VARBINARY (in GORM gorm:"type:varbinary(191)")`

// noCollation is that of numbers and dates, and of MariaDB's UUID and INET6, which are told as CHAR:
// what has no collation of its own has the coercibility 5, on MariaDB 11.8 it is 7.
const noCollation = "none"

// Type is what a column is, as a model declares it or as the server knows it.
type Type struct {
	Kind      string // VARCHAR, UNSIGNED BIGINT
	Collation string // "" if only the server knows it
}

// Class is what a column stores.
type Class int

// The classes of columns.
const (
	Unknown Class = iota
	Numbers
	Texts
	Bytes
	Others
)

// Class returns what the column stores.
func (c Type) Class() Class {
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(c.Kind, part) })
	}
	switch {
	case c.Kind == "":
		return Unknown
	case strings.HasSuffix(c.Kind, "INT"), has("INTEGER", "DECIMAL", "NUMERIC", "BIT"):
		return Numbers
	case strings.HasPrefix(c.Kind, "ENUM"), strings.HasPrefix(c.Kind, "SET"): // a number is a value, too
		return Others
	case has("CHAR", "TEXT"):
		return Texts
	case has("BINARY", "BLOB"):
		return Bytes
	case has("FLOAT", "DOUBLE", "REAL", "DATE", "TIME", "YEAR", "JSON"):
		return Others
	}
	return Unknown
}

// Misfit returns why identifiers of this type, folded as a collation compares them if one
// is given, don't tell the rows of the column apart, or "". It ignores what Fills is about.
func (c Type) Misfit(id reflect.Type, fold string) string {
	switch is := c.Class(); {
	case is == Others:
		return fmt.Sprintf("is a %s, a key is for integers, strings and UUIDs: lock by another key (of a GORM model: write a method LockKeys)", c.Kind)
	case id == reflect.TypeFor[uuid.UUID]():
		if is == Numbers {
			return fmt.Sprintf("is a %s, the identifier a UUID: make the column CHAR(36)", c.Kind)
		}
	case id.Kind() == reflect.String:
		return c.misfitOfTexts(fold)
	case is == Texts || is == Bytes:
		return fmt.Sprintf("is a %s, in which several values may be one number: make it BIGINT, or the identifier a string", c.Kind)
	}
	return ""
}

func (c Type) misfitOfTexts(fold string) string {
	switch {
	case c.Class() == Numbers:
		return fmt.Sprintf("is a %s, to which several strings are one number: make the identifier an integer", c.Kind)
	case c.Collation == noCollation:
		return "is of a type such as UUID or INET6, to which several strings are one value: make it " + varbinary + ", or lock by the text that is stored (of a GORM model: write a method LockKeys)"
	case c.Collation == "":
		return ""
	case fold != "" && c.Collation != fold:
		return fmt.Sprintf("has the collation %s, but its keys fold as %s does: name the collation of the column, or fold nothing", c.Collation, fold)
	case fold == "" && !strings.HasSuffix(c.Collation, "_bin") && c.Collation != "binary":
		return fmt.Sprintf("has the collation %[1]s, to which several strings may be one, such as Bob and bob, and keys are compared byte by byte, so that one row has several keys: make it %[2]s, or give it a binary collation, or fold the keys as it compares (fold=%[1]s in a tag, txlock.Fold in a family), or lock by another key", c.Collation, varbinary)
	}
	return ""
}

// Fills returns what the column doesn't count at the end of a text, blanks or zero bytes,
// or "".
func (c Type) Fills() string {
	counts := strings.HasSuffix(c.Collation, "_nopad_bin") || strings.HasSuffix(c.Collation, "_0900_bin")
	switch {
	case c.Kind == "BINARY":
		return "zero bytes"
	case c.Class() == Texts && (c.Kind == "CHAR" || !counts):
		return "blanks"
	}
	return ""
}

// ListKind asks the server whether a column is an ENUM or a SET, which LookUp sees as CHAR.
func ListKind(table, name string, ask func(text string) (*sql.Rows, error)) (kind string, err error) {
	rows, err := ask(fmt.Sprintf("SELECT %s FROM %s LIMIT 0", name, table))
	if err != nil {
		return "", fmt.Errorf("inspect column %s of %s: %w", name, table, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	types, err := rows.ColumnTypes()
	if err != nil {
		return "", err
	}
	if kind = types[0].DatabaseTypeName(); kind != "ENUM" && kind != "SET" {
		kind = ""
	}
	return kind, rows.Err()
}

// LookUp asks the server for a column of a table, both quoted. It reads no row, so that a
// transaction has no snapshot afterwards.
func LookUp(table, name string, ask func(text string) (*sql.Rows, error)) (c Type, err error) {
	of := fmt.Sprintf("(SELECT %s FROM %s LIMIT 0)", name, table)
	rows, err := ask(fmt.Sprintf("SELECT %s, IF(COERCIBILITY(%s) >= 5, '%s', COLLATION(%s)) LIMIT 1", of, of, noCollation, of))
	if err != nil {
		var server *mysql.MySQLError
		if errors.As(err, &server) && server.Number == 1054 { // ER_BAD_FIELD_ERROR
			return c, fmt.Errorf("%w: the table %s has no column %s: %w", ErrMissing, table, name, err)
		}
		return c, fmt.Errorf("inspect column %s of %s: %w", name, table, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	types, err := rows.ColumnTypes()
	if err != nil {
		return c, err
	}
	var none sql.RawBytes
	for rows.Next() {
		c.Kind = types[0].DatabaseTypeName()
		err = rows.Scan(&none, &c.Collation)
		if name, old := strings.CutPrefix(c.Collation, "utf8_"); old {
			c.Collation = "utf8mb3_" + name
		}
	}
	return c, errors.Join(err, rows.Err())
}
