package guard

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// before is asked before anything is sent. It refuses a statement of a doomed
// transaction, and a statement of the locks where they would hold nothing.
func (c *conn) before(ctx context.Context, s statement) error {
	call := valueOf[Call](ctx)
	if call == nil {
		switch {
		case c.tx == nil, !c.tx.owned && (s.kind == kindBegin || s.kind == kindRollback):
			return nil // a program that begins its transactions as text may always begin anew
		case !c.tx.owned && s.kind == kindCommit:
			return c.mayCommitText(ctx)
		}
		return c.tx.refuse()
	}
	if call.Tx != c.tx {
		if err := call.Tx.Err(); err != nil {
			return err
		}
		return ErrEnded
	}
	if c.open > 0 {
		return ErrOpenRows
	}
	if call.Restores {
		return nil
	}
	if err := c.confirm(ctx); err != nil {
		return err
	}
	if call.Fresh && c.tx.MayHaveSnapshot() {
		return ErrReads
	}
	return nil
}

// confirm returns why the locks of the transaction are gone. Where a statement
// may have ended it, the server is asked first.
func (c *conn) confirm(ctx context.Context) error {
	if suspect := c.tx.suspected(); suspect != "" && c.tx.Err() == nil {
		open, err := c.pool.rules.Open(c.exec(ctx, rawsql.Probe))
		if err != nil {
			return c.failed(statement{kind: kindQuiet}, err)
		}
		if !open {
			c.tx.sever(c.pool.rules.Committed(suspect))
		}
		c.tx.cleared()
	}
	return c.tx.Err()
}

// after keeps book of a statement that was sent, and returns its error.
func (c *conn) after(ctx context.Context, s statement, err error) error {
	if errors.Is(err, driver.ErrSkip) {
		return err // not sent: database/sql prepares it next
	}
	call := valueOf[Call](ctx)
	if err != nil {
		return c.failed(s, err)
	}
	switch {
	case call != nil:
		if call.Reads {
			c.tx.ran(statement{kind: kindHarmless})
		}
	case s.kind == kindBegin, s.kind == kindCommit, s.kind == kindRollback:
		c.boundary(s)
	case c.tx != nil:
		c.ran(s)
	}
	return nil
}

// ran keeps book of a statement that neither begins nor ends the transaction by
// itself. What ends it among several statements may have begun another at once,
// which the server could not tell from the first.
func (c *conn) ran(s statement) {
	c.tx.ran(s)
	switch {
	case s.ends && c.tx.owned:
		c.tx.sever(c.pool.rules.Committed(s.name))
	case s.ends:
		c.end(false)
	}
}

// boundary keeps book of a BEGIN, COMMIT or ROLLBACK that the program has sent as
// text. In a transaction of database/sql it ends what the *sql.Tx held; on a
// *sql.Conn it is how transactions are begun and ended.
func (c *conn) boundary(s statement) {
	if c.tx != nil && c.tx.owned {
		c.tx.sever(c.pool.rules.Committed(s.name))
		return
	}
	if c.tx != nil && s.kind == kindBegin {
		c.tx.sever(c.pool.rules.Committed(s.name))
	}
	c.end(s.kind == kindCommit)
	if s.kind == kindBegin || s.chain {
		c.tx = &Tx{server: c.server, kept: c.pool.rules.Kept, reads: s.reads}
	}
}

// end closes the book of the transaction.
func (c *conn) end(committed bool) {
	if t := c.tx; t != nil {
		c.tx = nil
		t.end()
		if committed {
			t.committed()
		}
	}
}

// failed judges the error of a statement, or of the rows that it gave.
func (c *conn) failed(s statement, err error) error {
	t := c.tx
	if t == nil {
		return err
	}
	if s.kind == kindCommit && !t.owned {
		c.end(false) // it is over, whatever has become of it
		return err
	}
	if why := c.pool.rules.Ended(err, c.server); why != nil {
		if s.isDDL() {
			why = c.pool.rules.Committed(s.name) // it has done so first
			err = fmt.Errorf("%w: %w", why, err)
		}
		t.doom(why)
		return err
	}
	if fromServer := new(mysql.MySQLError); !errors.As(err, &fromServer) && !c.IsValid() {
		if first := t.doom(c.pool.rules.Lost(err)); first && t.used() {
			if killErr := c.pool.kill(c); killErr != nil {
				return errors.Join(err, killErr)
			}
		}
		return err
	}
	c.ran(s) // DDL that fails has committed all the same
	return err
}

// mayCommit returns why the transaction can't be committed: the server has
// rolled it back, or it held locks that were gone before its end.
func (c *conn) mayCommit(ctx context.Context) error {
	t := c.tx
	if t == nil {
		return nil
	}
	if !t.holds() {
		return t.refuse()
	}
	if err := c.confirm(ctx); err != nil {
		return err
	}
	if name, found := t.unfenced(); found {
		return c.pool.rules.Unfenced(name)
	}
	return nil
}

// mayCommitText is mayCommit for a transaction that was begun as text. What may
// not be committed is rolled back.
func (c *conn) mayCommitText(ctx context.Context) error {
	why := c.mayCommit(ctx)
	if why == nil {
		return nil
	}
	c.end(false)
	return errors.Join(why, c.exec(ctx, "ROLLBACK"))
}

// exec sends a statement of the guard's own.
func (c *conn) exec(ctx context.Context, query string) error {
	execer, ok := c.base.(driver.ExecerContext)
	if !ok {
		return fmt.Errorf("lockstep: %T is no driver.ExecerContext", c.base)
	}
	_, err := execer.ExecContext(ctx, query, nil)
	return err
}
