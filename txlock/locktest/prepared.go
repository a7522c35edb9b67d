package locktest

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
)

// PrepareContext prepares a statement of the program on its database.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if text, _, _, _ := under(query); find(text, strings.Count(text, "?")) != nil || strings.Contains(strings.ToLower(query), "lockstep") {
		return ownStmt{c, query}, nil
	}
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	var base driver.Stmt
	err := c.hand(ctx, query, func(mock driver.Conn) (err error) {
		if p, ok := mock.(driver.ConnPrepareContext); ok {
			base, err = p.PrepareContext(ctx, query)
		} else {
			base, err = mock.Prepare(query)
		}
		return err
	})
	return &stmt{base, c, query}, err
}

// ownStmt is a statement of lockstep's own, prepared.
type ownStmt struct {
	conn  *conn
	query string
}

func (ownStmt) Close() error                               { return nil }
func (ownStmt) NumInput() int                              { return -1 }
func (ownStmt) Exec([]driver.Value) (driver.Result, error) { return nil, errors.ErrUnsupported }
func (ownStmt) Query([]driver.Value) (driver.Rows, error)  { return nil, errors.ErrUnsupported }
func (o ownStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return o.conn.ExecContext(ctx, o.query, args)
}
func (o ownStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return o.conn.QueryContext(ctx, o.query, args)
}

// stmt is a prepared statement of the program.
type stmt struct {
	driver.Stmt
	conn  *conn
	query string
}

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (r driver.Result, err error) {
	err = s.conn.sent(ctx, s.query, func(base driver.Conn) (err error) {
		if args, err = convert(base, args); err != nil {
			return err
		}
		e, ok := s.Stmt.(driver.StmtExecContext)
		if !ok {
			return errors.ErrUnsupported
		}
		r, err = e.ExecContext(ctx, args)
		return err
	})
	s.conn.changes(r, err)
	return r, err
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (r driver.Rows, err error) {
	err = s.conn.sent(ctx, s.query, func(base driver.Conn) (err error) {
		if args, err = convert(base, args); err != nil {
			return err
		}
		q, ok := s.Stmt.(driver.StmtQueryContext)
		if !ok {
			return errors.ErrUnsupported
		}
		r, err = q.QueryContext(ctx, args)
		return err
	})
	return r, err
}
