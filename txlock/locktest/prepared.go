package locktest

import (
	"context"
	"database/sql/driver"
	"errors"
)

// PrepareContext prepares a statement of the program on its database.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	s := &stmt{unsent{}, c, query}
	if h, _, err := c.kit.parse(query); h != nil || err != nil {
		return s, err
	}
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	return s, c.hand(ctx, query, func(base driver.Conn) (err error) {
		if p, ok := base.(driver.ConnPrepareContext); ok {
			s.Stmt, err = p.PrepareContext(ctx, query)
		} else {
			s.Stmt, err = base.Prepare(query)
		}
		return err
	})
}

// unsent stands for a statement of lockstep's own, which the program's database doesn't get.
type unsent struct{}

func (unsent) Close() error                               { return nil }
func (unsent) NumInput() int                              { return -1 }
func (unsent) Exec([]driver.Value) (driver.Result, error) { return nil, errors.ErrUnsupported }
func (unsent) Query([]driver.Value) (driver.Rows, error)  { return nil, errors.ErrUnsupported }

// stmt is a prepared statement.
type stmt struct {
	driver.Stmt
	conn  *conn
	query string
}

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return run(ctx, s.conn, s.query, args, asResult, func(_ driver.Conn, args []driver.NamedValue) (driver.Result, error) {
		if e, ok := s.Stmt.(driver.StmtExecContext); ok {
			return e.ExecContext(ctx, args)
		}
		return nil, errors.ErrUnsupported
	})
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return run(ctx, s.conn, s.query, args, asRows, func(_ driver.Conn, args []driver.NamedValue) (driver.Rows, error) {
		if q, ok := s.Stmt.(driver.StmtQueryContext); ok {
			return q.QueryContext(ctx, args)
		}
		return nil, errors.ErrUnsupported
	})
}
