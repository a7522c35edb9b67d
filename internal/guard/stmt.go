package guard

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"
)

// stmt is a prepared statement of a guarded connection.
type stmt struct {
	base      driver.Stmt
	conn      *conn
	statement statement
}

var (
	_ driver.StmtExecContext   = (*stmt)(nil)
	_ driver.StmtQueryContext  = (*stmt)(nil)
	_ driver.NamedValueChecker = (*stmt)(nil)
	_ driver.ColumnConverter   = (*stmt)(nil) //nolint:staticcheck // go-sql-driver has it
)

// ExecContext executes a statement without rows.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.conn.before(ctx, s.statement); err != nil {
		return nil, err
	}
	var result driver.Result
	var err error
	if execer, ok := s.base.(driver.StmtExecContext); ok {
		result, err = execer.ExecContext(ctx, args)
	} else {
		result, err = s.base.Exec(unnamed(args)) //nolint:staticcheck // what database/sql does without the interface
	}
	if err := s.conn.after(ctx, s.statement, err); err != nil {
		return nil, err
	}
	return result, nil
}

// QueryContext executes a statement with rows.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.conn.before(ctx, s.statement); err != nil {
		return nil, err
	}
	var base driver.Rows
	var err error
	if queryer, ok := s.base.(driver.StmtQueryContext); ok {
		base, err = queryer.QueryContext(ctx, args)
	} else {
		base, err = s.base.Query(unnamed(args)) //nolint:staticcheck // what database/sql does without the interface
	}
	return s.conn.rows(ctx, s.statement, base, err)
}

// Exec is ExecContext for database/sql of before Go 1.8.
func (s *stmt) Exec(args []driver.Value) (driver.Result, error) {
	return s.ExecContext(context.Background(), named(args))
}

// Query is QueryContext for database/sql of before Go 1.8.
func (s *stmt) Query(args []driver.Value) (driver.Rows, error) {
	return s.QueryContext(context.Background(), named(args))
}

// Close closes the statement.
func (s *stmt) Close() error { return s.base.Close() }

// NumInput returns the number of placeholders.
func (s *stmt) NumInput() int { return s.base.NumInput() }

// CheckNamedValue converts an argument.
func (s *stmt) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := s.base.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return s.conn.CheckNamedValue(v)
}

// ColumnConverter converts an argument, where CheckNamedValue is not used.
func (s *stmt) ColumnConverter(i int) driver.ValueConverter {
	if converter, ok := s.base.(driver.ColumnConverter); ok { //nolint:staticcheck // go-sql-driver has it
		return converter.ColumnConverter(i)
	}
	return driver.DefaultParameterConverter
}

func unnamed(args []driver.NamedValue) []driver.Value {
	values := make([]driver.Value, len(args))
	for i, v := range args {
		values[i] = v.Value
	}
	return values
}

// unsent is a statement that is answered here: with the error, or with success.
type unsent struct{ err error }

// Close does nothing.
func (u unsent) Close() error { return nil }

// NumInput says that any number of arguments will do.
func (u unsent) NumInput() int { return -1 }

// Exec returns the answer.
func (u unsent) Exec([]driver.Value) (driver.Result, error) { return driver.ResultNoRows, u.err }

// Query returns the error.
func (u unsent) Query([]driver.Value) (driver.Rows, error) {
	return nil, cmp.Or(u.err, errors.New("lockstep: the statement has no rows"))
}

// CheckNamedValue takes every argument as it is.
func (u unsent) CheckNamedValue(*driver.NamedValue) error { return nil }

// rows are the rows of a statement, whose error may come while they are read.
type rows struct {
	base      driver.Rows
	conn      *conn
	statement statement
	failed    bool
	closed    bool
}

var (
	_ driver.RowsNextResultSet              = (*rows)(nil)
	_ driver.RowsColumnTypeDatabaseTypeName = (*rows)(nil)
	_ driver.RowsColumnTypeNullable         = (*rows)(nil)
	_ driver.RowsColumnTypePrecisionScale   = (*rows)(nil)
	_ driver.RowsColumnTypeScanType         = (*rows)(nil)
)

// rows keeps book of a statement that was sent for rows, and wraps these.
func (c *conn) rows(ctx context.Context, s statement, base driver.Rows, err error) (driver.Rows, error) {
	if err != nil {
		return nil, c.after(ctx, s, err)
	}
	r := &rows{base: base, conn: c, statement: s}
	if len(base.Columns()) == 0 && !r.HasNextResultSet() {
		// It has none, and the program may never close them. Until they are closed the
		// driver watches the context, and gives the connection up for a second one.
		return none{}, c.after(ctx, s, base.Close())
	}
	c.ran(ctx, s)
	c.open++
	return r, nil
}

// none are the rows of a statement that has none.
type none struct{}

// Columns returns no names.
func (none) Columns() []string { return []string{} }

// Next says that there is no row.
func (none) Next([]driver.Value) error { return io.EOF }

// Close does nothing.
func (none) Close() error { return nil }

// seen lets the connection judge an error that came with the rows.
func (r *rows) seen(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	r.failed = true
	return r.conn.judged(context.Background(), r.statement, err)
}

// Columns returns the names of the columns.
func (r *rows) Columns() []string { return r.base.Columns() }

// Next reads a row.
func (r *rows) Next(dest []driver.Value) error { return r.seen(r.base.Next(dest)) }

// Close reads what is left and closes the rows.
func (r *rows) Close() error {
	err := r.seen(r.base.Close())
	if r.closed {
		return err
	}
	r.closed = true
	r.conn.open--
	if why := r.conn.settle(context.Background(), r.statement, r.failed); err == nil {
		err = why
	}
	return err
}

// HasNextResultSet tells whether another result follows.
func (r *rows) HasNextResultSet() bool {
	next, ok := r.base.(driver.RowsNextResultSet)
	return ok && next.HasNextResultSet()
}

// NextResultSet goes on to the next result.
func (r *rows) NextResultSet() error {
	next, ok := r.base.(driver.RowsNextResultSet)
	if !ok {
		return io.EOF
	}
	return r.seen(next.NextResultSet())
}

// ColumnTypeDatabaseTypeName returns the type of a column by the server's name.
func (r *rows) ColumnTypeDatabaseTypeName(i int) string {
	if typed, ok := r.base.(driver.RowsColumnTypeDatabaseTypeName); ok {
		return typed.ColumnTypeDatabaseTypeName(i)
	}
	return ""
}

// ColumnTypeNullable tells whether a column may be NULL.
func (r *rows) ColumnTypeNullable(i int) (nullable, ok bool) {
	if typed, ok := r.base.(driver.RowsColumnTypeNullable); ok {
		return typed.ColumnTypeNullable(i)
	}
	return false, false
}

// ColumnTypePrecisionScale returns the size of a decimal column.
func (r *rows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	if typed, ok := r.base.(driver.RowsColumnTypePrecisionScale); ok {
		return typed.ColumnTypePrecisionScale(i)
	}
	return 0, 0, false
}

// ColumnTypeScanType returns the Go type that fits a column.
func (r *rows) ColumnTypeScanType(i int) reflect.Type {
	if typed, ok := r.base.(driver.RowsColumnTypeScanType); ok {
		return typed.ColumnTypeScanType(i)
	}
	return reflect.TypeFor[any]()
}
