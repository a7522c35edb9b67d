package guard

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// reply is the reply to a statement of lockstep's own, read to its end.
type reply struct {
	columns []string
	rows    [][]driver.Value
}

var (
	_ driver.Rows   = (*reply)(nil)
	_ driver.Result = (*reply)(nil)
)

// read sends a statement and reads its rows.
func read(ctx context.Context, base driver.Conn, query string) (*reply, error) {
	queryer, ok := base.(driver.QueryerContext)
	if !ok {
		return nil, fmt.Errorf("lockstep: %T does not implement driver.QueryerContext", base)
	}
	return readRows(queryer.QueryContext(ctx, query, nil))
}

// readRows reads the rows of a reply to their end.
func readRows(rows driver.Rows, err error) (*reply, error) {
	if err != nil {
		return nil, err
	}
	r, err := readResult(rows)
	if closeErr := rows.Close(); err == nil {
		err = closeErr
	}
	return r, err
}

// readResult reads the rows of one result to their end.
func readResult(rows driver.Rows) (r *reply, err error) {
	r = &reply{columns: slices.Clone(rows.Columns())}
	for err == nil && len(r.columns) > 0 {
		row := make([]driver.Value, len(r.columns))
		if err = rows.Next(row); err != nil {
			break
		}
		for i, v := range row {
			if b, ok := v.([]byte); ok { // the driver's own, until the next row
				row[i] = slices.Clone(b)
			}
		}
		r.rows = append(r.rows, row)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return r, err
}

// result hands a reply to ExecContext and to Call.Reply.
func (c *conn) result(ctx context.Context) func(r *reply, err error) (driver.Result, error) {
	return func(r *reply, err error) (driver.Result, error) {
		if err != nil {
			return nil, err
		}
		if call := c.call(ctx); call != nil && call.Reply != nil {
			*call.Reply = Reply{Columns: len(r.columns), Rows: r.rows}
		}
		return r, nil
	}
}

// Columns returns the names of the columns.
func (r *reply) Columns() []string { return r.columns }

// Next returns a row.
func (r *reply) Next(dest []driver.Value) error {
	if len(r.rows) == 0 {
		return io.EOF
	}
	copy(dest, r.rows[0])
	r.rows = r.rows[1:]
	return nil
}

// Close does nothing.
func (r *reply) Close() error { return nil }

// LastInsertId returns what a compound statement has set, in the first column; see
// rawsql.Begin.
func (r *reply) LastInsertId() (int64, error) { return r.number(0) }

// RowsAffected returns the number of rows in the second column. A statement without it
// has as many as the reply.
func (r *reply) RowsAffected() (int64, error) {
	if len(r.columns) < 2 {
		return int64(len(r.rows)), nil
	}
	return r.number(1)
}

// number returns a number of the only row.
func (r *reply) number(column int) (int64, error) {
	if len(r.rows) != 1 || column >= len(r.columns) {
		return 0, fault.UnknownReply("a lock statement", fmt.Sprintf("%d rows of %d columns", len(r.rows), len(r.columns)))
	}
	v := r.rows[0][column]
	n, err := strconv.ParseInt(text(v), 10, 64) // of a prepared statement it is a number
	if err != nil {
		return 0, fault.UnknownReply("a lock statement", fmt.Sprintf("%q, which is not a number", text(v)))
	}
	return n, nil
}

// probe asks the server whether a transaction is open.
func (c *conn) probe(ctx context.Context) (bool, error) {
	if c.server.Began != "" {
		row, err := readRow(ctx, c.base, c.server.Began, 1)
		return err == nil && row[0] != "0", err
	}
	if c.server.Gateway {
		err := c.exec(ctx, rawsql.Session) // which the server answers, by an error if it has ended the transaction
		if refused := new(mysql.MySQLError); errors.As(err, &refused) {
			return false, nil
		}
		return err == nil && c.status.inReply(), err
	}
	reply := c.exec(ctx, rawsql.Probe)
	return fault.TransactionOpen(reply, c.status.inReply())
}

// exec sends a statement of the guard's own.
func (c *conn) exec(ctx context.Context, query string) error {
	if execer, ok := c.base.(driver.ExecerContext); ok {
		_, err := execer.ExecContext(ctx, query, nil)
		return err
	}
	queryer, ok := c.base.(driver.QueryerContext)
	if !ok {
		return fmt.Errorf("lockstep: %T is neither a driver.ExecerContext nor a driver.QueryerContext", c.base)
	}
	rows, err := queryer.QueryContext(ctx, query, nil)
	if err != nil {
		return err
	}
	return rows.Close()
}
