package guard

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// First is a lock that the next statement of the program takes with it: before it, and in the
// same round trip where that statement reads and the server can do both; see txlock's
// Scope.LockWith.
type First struct {
	Tx   *TxState
	Lock rawsql.Statement
	Make string // as in Call
	// Plain is the lock statement for a MySQL that turns out to have no procedures.
	Plain rawsql.Statement
	// Sends is called before the lock statement is sent, once or again.
	Sends func()
	// Took is called with the reply to the lock statement, or its error, and returns the error
	// of the program's statement, which isn't executed then.
	Took func(reply Reply, err error) error

	taken   bool
	handled bool // as that of Last
}

// WithFirst marks the next statement of the program under the context. What follows under the
// same context is an ordinary statement.
func WithFirst(ctx context.Context, f *First) context.Context {
	return &inBand[*First]{Context: ctx, value: f}
}

// LocksFirst reports whether the next statement under the context takes a lock with it.
func LocksFirst(ctx context.Context) bool {
	first := valueOf[*First](ctx)
	return first != nil && !(*first).taken
}

// first returns the lock that the statement is to take with it, or nil.
func (c *conn) first(ctx context.Context) *First {
	if first := valueOf[*First](ctx); first != nil && (*first).Tx.pool == c.pool && !(*first).taken && c.call(ctx) == nil {
		return *first
	}
	return nil
}

// reading reports whether the statement, of which s is the judgement, is one that only reads.
func (s statement) reading() bool {
	word, _, _ := strings.Cut(s.name, " ")
	return s.kind == kindPlain && s.leaves && word == "SELECT"
}

// lockFirst takes the lock by itself, before a statement that can't share a text with it. It
// does nothing where there is none.
func (c *conn) lockFirst(ctx context.Context) error {
	if err := c.marked(ctx); err != nil {
		return err
	}
	first := c.first(ctx)
	if first == nil {
		return nil
	}
	return c.lockAlone(ctx, first)
}

func (c *conn) lockAlone(ctx context.Context, first *First) error {
	_, err := c.lockWith(ctx, first, "", nil)
	if errors.Is(err, driver.ErrSkip) {
		return first.Took(Reply{}, fmt.Errorf("lockstep: %T takes no text for the lock", c.base))
	}
	return err
}

// lockWith takes the lock, and begins the transaction with it where that is pending. With a
// read, its rows come behind the reply to the lock, and lockWith returns them as they are;
// driver.ErrSkip says that they can't share a text.
func (c *conn) lockWith(ctx context.Context, first *First, read string, args []driver.NamedValue) (driver.Rows, error) {
	quiet := statement{kind: kindQuiet}
	switch {
	case c.tx != first.Tx:
		return nil, ErrElse
	case c.open > 0:
		return nil, first.Took(Reply{}, fault.ErrOpenRows)
	case c.tx.MayHaveSnapshot():
		return nil, first.Took(Reply{}, ErrReads)
	}
	err, begins := c.check(ctx, quiet), false
	if err == nil {
		err = c.fit(ctx)
	}
	if err == nil {
		begins, err = c.beginsWith(ctx)
	}
	if err != nil {
		return nil, first.Took(Reply{}, err)
	}
	first.Sends()
	rows, err := c.sendFirst(ctx, first, begins, read, args)
	if errors.Is(err, driver.ErrSkip) || errors.Is(err, mysql.ErrPktTooLarge) {
		return nil, driver.ErrSkip
	}
	r, err := firstResult(rows, err)
	if c.noProcedure(err) {
		return nil, c.lockPlainly(ctx, first)
	}
	if err != nil {
		return nil, first.Took(Reply{}, c.notLocked(ctx, begins, err))
	}
	if begins {
		if !c.status.inReply() { // the rows behind can't be read in a transaction that isn't open
			read, err = "", rows.Close()
		}
		if err = cmp.Or(err, c.begunWith(ctx)); err != nil {
			return nil, first.Took(Reply{}, err)
		}
	}
	err = first.Took(Reply{Columns: len(r.columns), Rows: r.rows}, nil)
	if first.taken = err == nil; err == nil && read != "" {
		return rows, nil
	}
	if closeErr := rows.Close(); err == nil {
		err = c.after(ctx, quiet, closeErr)
	}
	return nil, err
}

// sendFirst sends the lock, BEGIN before it and the read behind it.
func (c *conn) sendFirst(ctx context.Context, first *First, begins bool, read string, args []driver.NamedValue) (driver.Rows, error) {
	begin := rawsql.Begin{Open: true}
	if begins {
		begin = c.beginOf(first.Make)
	}
	read, args = c.literal(read, args, true)
	both, ok := c.server.LockThen(begin, first.Lock, read, len(args))
	if !ok {
		return nil, driver.ErrSkip
	}
	k, err := c.cached(ctx, both, args, read != "")
	if err != nil {
		return nil, err
	}
	return c.send(ctx, k, both, args)
}

// notLocked judges the error of a lock, with which the transaction begins or not.
func (c *conn) notLocked(ctx context.Context, begins bool, err error) error {
	if begins {
		return c.notBegun(ctx, err)
	}
	return c.failed(ctx, statement{kind: kindQuiet}, err)
}

// lockPlainly takes the lock by a statement. One that has made the row is repeated.
func (c *conn) lockPlainly(ctx context.Context, first *First) error {
	if err := c.sendBegin(ctx); err != nil {
		return first.Took(Reply{}, err)
	}
	var id int64
	plain, _ := first.Plain.Text()
	for range 2 {
		result, err := c.base.(driver.ExecerContext).ExecContext(ctx, plain, nil)
		if err == nil {
			id, err = result.LastInsertId()
		}
		if err = c.after(ctx, statement{kind: kindQuiet}, err); err != nil {
			return first.Took(Reply{}, err)
		}
		if id != 1 {
			break
		}
	}
	err := first.Took(Reply{Columns: 1, Rows: [][]driver.Value{{id}}}, nil)
	first.taken = err == nil
	return err
}

// beginsWith reports whether the transaction can begin with a lock. Where that is pending and
// can't, it begins.
func (c *conn) beginsWith(ctx context.Context) (bool, error) {
	if !c.begin.pending {
		return false, nil
	}
	repeats, err := c.repeats(ctx)
	if err != nil {
		err = c.judgeError(ctx, statement{kind: kindQuiet}, err)
		return false, cmp.Or(c.tx.refuse(), err)
	}
	if !repeats && (c.server.Compound || !c.begin.failed) {
		return true, nil
	}
	return false, c.sendBegin(ctx)
}

// firstResult reads the first result to its end, and closes the rows where that fails.
func firstResult(rows driver.Rows, err error) (*reply, error) {
	if err != nil {
		return nil, err
	}
	r, err := readResult(rows)
	if err == nil && len(r.rows) == 0 {
		err = fault.UnknownReply("a lock statement", "no row")
	}
	if err != nil {
		err = errors.Join(err, rows.Close())
	}
	return r, err
}

// readWith takes a lock with a read of the program, in one round trip where they can share a
// text.
func (c *conn) readWith(ctx context.Context, first *First, s statement, query string, args []driver.NamedValue, send func() (driver.Rows, error)) (driver.Rows, error) {
	if s.reading() && c.shares(query, args) {
		rows, err := c.lockWith(ctx, first, query, args)
		if err == nil && rows != nil {
			var second driver.Rows
			second, err = c.secondResult(ctx, s, rows)
			if err == nil || c.tx.refuse() != nil || c.progressOf(ctx, err) != notBegun {
				return second, err
			}
			err = nil // the lock is taken
		}
		switch {
		case err == nil:
			return send()
		case !errors.Is(err, driver.ErrSkip):
			return nil, err
		}
	}
	if err := c.lockAlone(ctx, first); err != nil {
		return nil, err
	}
	return send()
}

// secondResult goes on to the rows of the program. The reply to the call follows them, which
// is read at their end, so that the program's result is the last.
func (c *conn) secondResult(ctx context.Context, s statement, base driver.Rows) (driver.Rows, error) {
	err := io.EOF
	if more, ok := base.(driver.RowsNextResultSet); ok {
		err = more.NextResultSet()
	}
	if err == nil {
		r, err := c.rows(ctx, s, base, nil)
		if r, ok := r.(*rows); ok {
			r.last = true
		}
		return r, err
	}
	closeErr := base.Close()
	if errors.Is(err, io.EOF) {
		err = errors.Join(fault.UnknownReply("a read under a lock", "no rows"), closeErr)
	}
	return nil, c.after(ctx, s, err)
}
