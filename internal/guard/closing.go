package guard

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// commits reports whether a lock statement is to commit the transaction, and returns its
// text for that. Nothing but that text commits by itself: where a wrapper has changed the
// statement so that it isn't known, it is an ordinary one, and COMMIT follows it.
func (c *conn) commits(ctx context.Context, query string, args []driver.NamedValue) (string, bool) {
	call := c.call(ctx)
	if call == nil || !call.Commits || len(args) > 0 || c.tx == nil || !c.tx.owned {
		return "", false
	}
	s, ok := rawsql.RenderedOf(ctx, query)
	switch {
	case !ok:
		return "COMMIT", judge(query).kind == kindCommit
	case c.status.nested: // to the guard below it would be the program's
		return "", false
	}
	if s, ok = c.server.Commit(s); !ok {
		return "", false
	}
	return s.Text()
}

// endOf is what a lock statement has done that isn't answered: a bare COMMIT is that of Do, which
// keeps nothing but the token.
func endOf(text string) ending {
	if text == "COMMIT" {
		return endUnknown
	}
	return endCommits
}

// commitBy sends a lock statement that commits the transaction, unless its reply is 0.
// Afterwards the Commit of the *sql.Tx sends nothing. The row of the reply comes before the
// COMMIT: an error of the server without one, or with 0, is that of a transaction which
// wasn't committed. End is what a statement without an answer has done.
func (c *conn) commitBy(ctx context.Context, text string, end ending) (*reply, error) {
	s := statement{kind: kindQuiet, name: "COMMIT", end: end}
	if err := c.check(ctx, s); err != nil {
		return nil, err
	}
	if text != "COMMIT" { // else the locks are taken
		if err := c.fit(ctx); err != nil {
			return nil, err
		}
		if err := c.sendBegin(ctx); err != nil {
			return nil, err
		}
	} else if c.begin.pending && !c.begin.failed { // of Do: it keeps nothing but the token
		c.tx.finish(true)
		return &reply{}, nil
	}
	if why := cmp.Or(c.mayCommit(), ctx.Err()); why != nil {
		return nil, why
	}
	c.tx.finish(true) // before the server frees the locks
	sent := c.committing()
	r, err := read(ctx, c.base, text)
	err = sent.outcome(err)
	raised, unreadable := int64(0), error(nil)
	if r != nil && len(r.rows) > 0 {
		raised, unreadable = r.number(0)
	}
	refused := text != "COMMIT" && raised == 0 && unreadable == nil
	if err != nil {
		c.tx.finish(false)
		if server := new(mysql.MySQLError); refused && errors.As(err, &server) {
			s.end = endRolledBack
		}
		return nil, c.failed(ctx, s, err)
	}
	open, told := c.status.inTransaction()
	switch {
	case refused && len(r.rows) > 0:
		c.tx.finish(false)
		return r, c.settle(ctx, statement{kind: kindQuiet}, false)
	case refused, unreadable != nil, raised == 1, raised < 0, text == "COMMIT" && len(r.columns) > 0, told && open:
		c.tx.finish(false)
		c.tx.abort(fault.Outcome(fault.UnknownReply("a statement that commits", fmt.Sprintf("%d in %d rows", raised, len(r.rows)))), true)
		return nil, c.tx.refuse()
	}
	return r, c.closed()
}

// closed notes that a statement has committed the transaction. One of database/sql ends with its
// Commit or Rollback, and one that was begun as text at once, since nothing may follow.
func (c *conn) closed() error {
	c.status.open = false
	if !c.tx.owned {
		c.tx.end()
		c.tx.notifyCommitted()
	}
	return c.finished(nil)
}

// committed reports whether a lock statement has committed the transaction, and closes the
// transaction state then.
func (c *conn) committed() bool {
	if c.tx == nil || !c.tx.Finished() {
		return false
	}
	c.begin = deferredBegin{}
	c.end(true)
	return true
}

// finish notes that a lock statement commits the transaction, or that it hasn't.
func (t *TxState) finish(finished bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finished = finished
}

// Finished reports whether a lock statement has committed the transaction; see Call.Commits.
func (t *TxState) Finished() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.finished
}
