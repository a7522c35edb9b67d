package guard

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
)

// stmt is a prepared statement of a guarded connection. Database/sql may keep it with the
// connection, for later transactions.
type stmt struct {
	base      driver.Stmt // nil if the statement was refused, and is not prepared
	conn      *conn
	statement statement
	text      string

	// The transaction in which it was prepared, the marks of the context, and why it was refused.
	tx      *TxState
	first   *First
	last    *Last
	refused error
}

var (
	_ driver.StmtExecContext   = (*stmt)(nil)
	_ driver.StmtQueryContext  = (*stmt)(nil)
	_ driver.NamedValueChecker = (*stmt)(nil)
	_ driver.ColumnConverter   = (*stmt)(nil) //nolint:staticcheck // go-sql-driver has it
)

// ExecContext executes a statement without rows.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	statement := s.statement.of("", args)
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	if last := s.conn.last(ctx); last != nil {
		return s.conn.write(ctx, last, write{statement: statement, writes: statement.writes(s.text)}, func() (driver.Result, error) { return s.exec(ctx, args) })
	}
	if err := s.conn.before(ctx, statement); err != nil {
		return nil, err
	}
	if call := s.conn.call(ctx); call != nil && call.Reply != nil { // around the guard is a wrapper that prepares everything
		r, err := readRows(s.query(ctx, args))
		return s.conn.result(ctx)(r, s.conn.after(ctx, statement, err))
	}
	result, err := s.exec(ctx, args)
	if err := s.conn.after(ctx, statement, err); err != nil {
		return nil, err
	}
	return result, nil
}

// prepare prepares the statement, unless it is refused.
func (s *stmt) prepare(ctx context.Context) (err error) {
	c := s.conn
	if s.refused = c.marked(ctx); s.refused == nil && (c.call(ctx) != nil || !c.usable()) {
		s.refused = c.before(ctx, s.statement)
	}
	if s.refused != nil {
		return nil
	}
	if preparer, ok := c.base.(driver.ConnPrepareContext); ok {
		s.base, err = preparer.PrepareContext(ctx, s.text)
	} else {
		s.base, err = c.base.Prepare(s.text)
	}
	if err != nil {
		return c.failed(ctx, statement{kind: kindQuiet}, err) // a prepare neither reads nor commits
	}
	if s.refused = c.checkPrepared(ctx); s.refused != nil {
		s.refused = errors.Join(s.refused, s.base.Close())
		s.base = nil
	}
	return nil
}

// ready prepares the statement if it was refused before, and takes the lock of the context. As long as
// the transaction lasts, it is refused again, and what it was prepared for isn't ignored.
func (s *stmt) ready(ctx context.Context) error {
	why := s.refused
	if s.first != nil && !s.first.taken && s.first != s.conn.first(ctx) || s.last != nil && s.last != s.conn.last(ctx) {
		why = ErrPrepared
	}
	if s.tx != s.conn.tx {
		why = nil
	}
	if why != nil && s.tx != nil {
		return why
	}
	if s.refused, s.first, s.last = nil, nil, nil; why != nil {
		return why
	}
	if s.base == nil {
		s.tx = s.conn.tx
		if err := cmp.Or(s.prepare(ctx), s.refused); err != nil {
			return err
		}
	}
	return s.conn.lockFirst(ctx)
}

// exec sends the statement.
func (s *stmt) exec(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if execer, ok := s.base.(driver.StmtExecContext); ok {
		return execer.ExecContext(ctx, args)
	}
	return s.base.Exec(unnamed(args)) //nolint:staticcheck // what database/sql does without the interface
}

// QueryContext executes a statement with rows.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if s.conn.last(ctx) != nil {
		return nil, ErrNoWrite
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	statement := s.statement.of("", args)
	if err := s.conn.before(ctx, statement); err != nil {
		return nil, err
	}
	base, err := s.query(ctx, args)
	return s.conn.rows(ctx, statement, base, err)
}

// query sends the statement for its rows.
func (s *stmt) query(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if queryer, ok := s.base.(driver.StmtQueryContext); ok {
		return queryer.QueryContext(ctx, args)
	}
	return s.base.Query(unnamed(args)) //nolint:staticcheck // what database/sql does without the interface
}

// Exec does what ExecContext does, for database/sql before Go 1.8.
func (s *stmt) Exec(args []driver.Value) (driver.Result, error) {
	return s.ExecContext(context.Background(), named(args))
}

// Query does what QueryContext does, for database/sql before Go 1.8.
func (s *stmt) Query(args []driver.Value) (driver.Rows, error) {
	return s.QueryContext(context.Background(), named(args))
}

// Close closes the statement.
func (s *stmt) Close() error {
	if s.base == nil {
		return nil
	}
	return s.base.Close()
}

// NumInput returns the number of placeholders, and of one that is not prepared that it isn't known.
func (s *stmt) NumInput() int {
	if s.base == nil {
		return -1
	}
	return s.base.NumInput()
}

// CheckNamedValue converts an argument.
func (s *stmt) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := s.base.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return s.conn.CheckNamedValue(v)
}

// ColumnConverter converts an argument if CheckNamedValue is not used.
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

// unsent is a prepared statement of lockstep's own that never reaches the server: it answers with
// the error, or with success if that is nil.
type unsent struct{ err error }

// Close does nothing.
func (u unsent) Close() error { return nil }

// NumInput allows any number of arguments.
func (u unsent) NumInput() int { return -1 }

// Exec returns the answer.
func (u unsent) Exec([]driver.Value) (driver.Result, error) { return driver.ResultNoRows, u.err }

// Query returns the error.
func (u unsent) Query([]driver.Value) (driver.Rows, error) {
	return nil, cmp.Or(u.err, errors.New("lockstep: the statement has no rows"))
}

// CheckNamedValue takes every argument as it is.
func (u unsent) CheckNamedValue(*driver.NamedValue) error { return nil }
