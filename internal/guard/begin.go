package guard

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// deferredBegin is the beginning of a transaction of database/sql. While it is pending, the
// server doesn't know of the transaction: its BEGIN waits for the first statement, and
// goes with it in one text where that is a lock statement.
type deferredBegin struct {
	options driver.TxOptions
	pending bool
	failed  bool      // a compound statement has failed, and may have left a transaction open
	base    driver.Tx // nil if BEGIN was sent with a statement
}

// BeginTx begins a transaction of database/sql. Its BEGIN is pending afterwards, unless it
// does more than to begin: it ends the transaction that was begun as text before, or it
// can only fail.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if c.unusable {
		return nil, driver.ErrBadConn
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := c.learnLevel(ctx); err != nil {
		return nil, err
	}
	o := deferredBegin{options: opts, pending: true}
	if !c.mayDefer(opts) {
		if err := c.sendAlone(ctx, &o); err != nil {
			return nil, err
		}
	}
	c.end(false) // a transaction that was begun as text on this connection is over
	c.tx = c.newTxState()
	c.tx.isolation, c.tx.owned = sql.IsolationLevel(opts.Isolation), true
	c.begin = o
	if c.status.told, c.status.open = false, false; !o.pending {
		c.status.trust()
	}
	return &driverTx{conn: c}, nil
}

// mayDefer reports whether the BEGIN can be left to the first statement. After SET TRANSACTION, or what
// may have sent it, it can't: a text with BEGIN that fails would use that up, on TiDB any statement, and
// a transaction without statements would leave it to the next.
func (c *conn) mayDefer(opts driver.TxOptions) bool {
	if c.status.nested || c.tx != nil || c.open > 0 || !c.usable() || c.status.inReply() || c.status.chosen {
		return false
	}
	if _, ok := c.base.(driver.ConnBeginTx); !ok && opts != (driver.TxOptions{}) {
		return false
	}
	_, known := isolationOf(opts)
	return known
}

// isolationOf returns the isolation level as SQL has it, "" for that of the session. It
// returns false for one that no server has.
func isolationOf(opts driver.TxOptions) (level string, known bool) {
	switch l := sql.IsolationLevel(opts.Isolation); l {
	case sql.LevelDefault:
		return "", true
	case sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable:
		return strings.ToUpper(l.String()), true
	}
	return "", false
}

// sendAlone sends a BEGIN by itself. The driver sends its isolation level before: if the BEGIN
// fails, or if the level stays, the next transaction of the session would have that.
func (c *conn) sendAlone(ctx context.Context, o *deferredBegin) (err error) {
	beginner, ok := c.base.(driver.ConnBeginTx)
	switch {
	case ok:
		o.base, err = beginner.BeginTx(ctx, o.options)
	case o.options != (driver.TxOptions{}):
		err = fmt.Errorf("lockstep: %T does not implement driver.ConnBeginTx, which options need", c.base)
	default:
		o.base, err = c.base.Begin() //nolint:staticcheck // what database/sql does without the interface
	}
	level, _ := isolationOf(o.options)
	c.unusable = c.unusable || level != "" && (err != nil || c.server.Gateway)
	if err == nil {
		o.pending, o.failed = false, false
	}
	return err
}

// sendBegin sends the BEGIN if it is pending, before a statement that it can't share a text
// with. Without it the statement would commit by itself.
func (c *conn) sendBegin(ctx context.Context) error {
	if !c.begin.pending {
		return nil
	}
	err := c.rollBackFailed(ctx)
	if err == nil {
		err = c.sendAlone(ctx, &c.begin)
	}
	if err != nil {
		err = c.judgeError(ctx, statement{kind: kindQuiet}, err)
		return fmt.Errorf("begin the transaction: %w", cmp.Or(c.tx.refuse(), err))
	}
	c.status.trust()
	return nil
}

// rollBackFailed rolls back what a compound statement that has failed may have left open. On MariaDB
// that has changed nothing, and the BEGIN that follows ends it, unless an isolation level
// is to be set before.
func (c *conn) rollBackFailed(ctx context.Context) error {
	if !c.begin.failed || c.server.Compound && c.begin.options.Isolation == 0 {
		return nil
	}
	err := c.exec(context.WithoutCancel(ctx), "ROLLBACK")
	c.begin.failed = err != nil
	return err
}

// end ends the transaction on the server, if that knows of it.
func (o *deferredBegin) end(c *conn, word string) error {
	was := *o
	*o = deferredBegin{}
	if was.pending && !was.failed {
		return nil
	}
	sent := c.committing()
	switch {
	case was.base == nil:
		return c.finished(sent.outcome(c.exec(context.Background(), word)))
	case word == "COMMIT":
		return c.finished(sent.outcome(was.base.Commit()))
	}
	return c.finished(was.base.Rollback())
}

// withBegin returns a lock statement together with the BEGIN that is pending. It returns false
// if they can't share a text, or if the reply wouldn't tell that the transaction is open. A lock
// would hold on the session: Join has asked, and nothing was sent since. A text that a wrapper has
// changed is sent as it is.
func (c *conn) withBegin(ctx context.Context, query string, args []driver.NamedValue, exec bool) (rawsql.Statement, bool) {
	if !c.begin.pending || len(args) > 0 || !c.status.flags.IsValid() {
		return rawsql.Statement{}, false
	}
	call := c.call(ctx)
	s, rendered := rawsql.RenderedOf(ctx, query)
	if call == nil || call.Restores || !rendered {
		return s, false
	}
	if repeats, err := c.repeats(ctx); err != nil || repeats {
		return s, false // an error comes with the BEGIN, too
	}
	return c.server.Open(c.beginOf(call.Make), s, exec)
}

// beginOf returns the BEGIN that is pending, for the transaction that it begins. It makes the row of that
// name before, where that commits by itself and the session reads the text of it.
func (c *conn) beginOf(name string) rawsql.Begin {
	level, _ := isolationOf(c.begin.options)
	begin := rawsql.Begin{Isolation: level, ReadOnly: c.begin.options.ReadOnly, Again: c.begin.failed}
	if !begin.ReadOnly && c.status.autocommit() && !c.facts.Oracle {
		begin.Make = name
	}
	return begin
}

// notBegun judges the error of a text that begins the transaction. After one that isn't the
// end of the transaction the BEGIN is pending again.
func (c *conn) notBegun(ctx context.Context, err error) error {
	c.demoted = c.demoted || fault.ReadOnly(err)
	err = c.judgeError(ctx, statement{kind: kindQuiet}, err)
	c.begin.failed = true // an error doesn't tell whether a transaction is open
	c.begin.pending = c.tx.refuse() == nil
	return err
}

// sendWithBegin sends BEGIN and a lock statement together. The rows of the reply are read to their
// end, since an error of the statement may come with them.
func (c *conn) sendWithBegin(ctx context.Context, both rawsql.Statement) (*reply, error) {
	s := statement{kind: kindQuiet}
	if err := c.check(ctx, s); err != nil {
		return nil, err
	}
	k, err := c.cached(ctx, both, nil, false)
	var r *reply
	if err == nil {
		r, err = readRows(c.send(ctx, k, both, nil))
	}
	if err != nil {
		return nil, c.notBegun(ctx, err)
	}
	if err := c.begunWith(ctx); err != nil {
		return nil, err
	}
	c.ran(ctx, s)
	return r, nil
}

// begunWith notes that a text has begun the transaction. If the reply doesn't tell, the server is
// asked.
func (c *conn) begunWith(ctx context.Context) error {
	c.begin.pending, c.begin.failed = false, false
	if c.status.trust(); c.status.told {
		return nil
	}
	s := statement{kind: kindQuiet}
	open, err := c.probe(ctx)
	if err != nil {
		err = c.judgeError(ctx, s, err)
		c.tx.abort(err, false)
		return err
	}
	if !open {
		return c.over(s, nil)
	}
	return nil
}
