// Package driverrows wraps the rows of a driver without hiding what they can do.
package driverrows

import (
	"database/sql/driver"
	"io"
	"reflect"
)

// Rows are rows that have all optional methods. Where the wrapped ones lack one, it answers what
// database/sql takes for that.
type Rows struct{ driver.Rows }

var (
	_ driver.RowsNextResultSet              = Rows{}
	_ driver.RowsColumnTypeDatabaseTypeName = Rows{}
	_ driver.RowsColumnTypeLength           = Rows{}
	_ driver.RowsColumnTypeNullable         = Rows{}
	_ driver.RowsColumnTypePrecisionScale   = Rows{}
	_ driver.RowsColumnTypeScanType         = Rows{}
)

// HasNextResultSet reports whether another result follows.
func (r Rows) HasNextResultSet() bool {
	next, ok := r.Rows.(driver.RowsNextResultSet)
	return ok && next.HasNextResultSet()
}

// NextResultSet goes on to the next result.
func (r Rows) NextResultSet() error {
	if next, ok := r.Rows.(driver.RowsNextResultSet); ok {
		return next.NextResultSet()
	}
	return io.EOF
}

// ColumnTypeDatabaseTypeName returns the server's name for the type of a column.
func (r Rows) ColumnTypeDatabaseTypeName(i int) string {
	if typed, ok := r.Rows.(driver.RowsColumnTypeDatabaseTypeName); ok {
		return typed.ColumnTypeDatabaseTypeName(i)
	}
	return ""
}

// ColumnTypeLength returns the length of a column whose type has one.
func (r Rows) ColumnTypeLength(i int) (length int64, ok bool) {
	if typed, ok := r.Rows.(driver.RowsColumnTypeLength); ok {
		return typed.ColumnTypeLength(i)
	}
	return 0, false
}

// ColumnTypeNullable reports whether a column may be NULL.
func (r Rows) ColumnTypeNullable(i int) (nullable, ok bool) {
	if typed, ok := r.Rows.(driver.RowsColumnTypeNullable); ok {
		return typed.ColumnTypeNullable(i)
	}
	return false, false
}

// ColumnTypePrecisionScale returns the precision and scale of a decimal column.
func (r Rows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	if typed, ok := r.Rows.(driver.RowsColumnTypePrecisionScale); ok {
		return typed.ColumnTypePrecisionScale(i)
	}
	return 0, 0, false
}

// ColumnTypeScanType returns the Go type that fits a column.
func (r Rows) ColumnTypeScanType(i int) reflect.Type {
	if typed, ok := r.Rows.(driver.RowsColumnTypeScanType); ok {
		return typed.ColumnTypeScanType(i)
	}
	return reflect.TypeFor[any]()
}
