package guard

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"

	"github.com/dca00107/lockstep/internal/driverrows"
	"github.com/dca00107/lockstep/internal/fault"
)

// rows are the rows of a statement. An error of the statement may come while they are
// read.
type rows struct {
	driverrows.Rows
	conn      *conn
	statement statement
	last      bool // they are the last result of the program, and a reply follows
	failed    bool
	closed    bool
}

// rows notes a statement that was sent for rows, and wraps these.
func (c *conn) rows(ctx context.Context, s statement, base driver.Rows, err error) (driver.Rows, error) {
	if err != nil {
		return nil, c.after(ctx, s, err)
	}
	r := &rows{Rows: driverrows.Rows{Rows: base}, conn: c, statement: s}
	if len(base.Columns()) == 0 && !r.HasNextResultSet() {
		// It has none, and the program may never close them. Until they are closed, the
		// driver watches the context, and drops the connection when it is given a second
		// one.
		return none{}, c.after(ctx, s, base.Close())
	}
	c.ran(ctx, s)
	c.open++
	return r, nil
}

// none stands for the rows of a statement that has none.
type none struct{}

// Columns returns no names.
func (none) Columns() []string { return []string{} }

// Next says that there is no row.
func (none) Next([]driver.Value) error { return io.EOF }

// Close does nothing.
func (none) Close() error { return nil }

// seen judges an error that came with the rows.
func (r *rows) seen(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	r.failed = true
	return r.conn.judgeError(context.Background(), r.statement, err)
}

// Next reads a row.
func (r *rows) Next(dest []driver.Value) error {
	err := r.Rows.Next(dest)
	if r.last && errors.Is(err, io.EOF) {
		if err = r.Rows.NextResultSet(); err == nil {
			err = fault.UnknownReply("a read under a lock", "one result more")
		}
	}
	return r.seen(err)
}

// Close reads the remaining rows and closes them.
func (r *rows) Close() error {
	err := r.seen(r.Rows.Close())
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

// NextResultSet goes on to the next result.
func (r *rows) NextResultSet() error {
	if r.last {
		return io.EOF
	}
	return r.seen(r.Rows.NextResultSet())
}
