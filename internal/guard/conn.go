package guard

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// conn is a connection that tracks the state of its transaction. It has the optional
// interfaces of go-sql-driver's connection and forwards each. If the base lacks one, conn
// does what database/sql does without it. database/sql calls it from one goroutine at a
// time.
type conn struct {
	base   driver.Conn
	pool   *connector
	server session.Server
	status status
	since  time.Time // when it was opened
	tx     *TxState  // nil outside a transaction
	open   int       // how many rows are not closed yet

	begin deferredBegin          // of the transaction, if that is one of database/sql
	stmts map[string]*cachedStmt // by their texts, with question marks

	facts        session.Facts // about the session, when it was asked last
	old          bool          // a statement of the program may have changed them since
	unfitAtFirst bool          // what they said when the connection was opened

	probeSavepoint bool // rawsql.ProbeSavepoint was sent, rawsql.ReleaseProbeSavepoint not yet
	unusable       bool // by others: it is lost, or its session has changed
	borrowed       bool // by a Call that Borrows, until one Restores

	demoted bool // its server can't be written to, at least for now

	judged map[string]statement
}

var (
	_ driver.ConnBeginTx        = (*conn)(nil)
	_ driver.ConnPrepareContext = (*conn)(nil)
	_ driver.ExecerContext      = (*conn)(nil)
	_ driver.QueryerContext     = (*conn)(nil)
	_ driver.Execer             = (*conn)(nil) //nolint:staticcheck // go-sql-driver has it, and users reach it by Conn.Raw
	_ driver.Queryer            = (*conn)(nil) //nolint:staticcheck // likewise
	_ driver.Pinger             = (*conn)(nil)
	_ driver.SessionResetter    = (*conn)(nil)
	_ driver.Validator          = (*conn)(nil)
	_ driver.NamedValueChecker  = (*conn)(nil)
)

// Begin does what BeginTx does, for database/sql before Go 1.8.
func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// driverTx is the end of a transaction of database/sql.
type driverTx struct{ conn *conn }

// Commit commits, unless a lock statement has done so. A transaction that the server has
// ended, or that has lost locks, is rolled back, and Commit returns the reason.
func (t *driverTx) Commit() error {
	if t.conn.committed() {
		return nil
	}
	if why := t.conn.mayCommit(); why != nil {
		return errors.Join(why, t.Rollback())
	}
	sent, _ := t.conn.alive()
	txState := t.conn.tx
	t.conn.end(false) // before the server frees the locks: nobody may believe that they are still held
	err := t.conn.begin.end(t.conn, "COMMIT")
	switch {
	case txState == nil:
	case !sent && err != nil:
		err = fault.Lost(err)
	case !sent:
	case err == nil:
		txState.notifyCommitted()
	default:
		err = txState.outcome(err)
	}
	return err
}

// Rollback rolls back.
func (t *driverTx) Rollback() error {
	if t.conn.committed() {
		return nil
	}
	t.conn.end(false)
	return t.conn.begin.end(t.conn, "ROLLBACK")
}

// finished judges the reply to COMMIT or ROLLBACK. After an error that may leave a
// transaction open, as in XA, and after a reply that one is open, by completion_type, nobody
// uses the connection again.
func (c *conn) finished(err error) error {
	if err != nil && fault.Ended(err, c.server) == nil || err == nil && c.status.inReply() {
		c.unusable = true
	}
	return err
}

// ExecContext executes a statement without rows.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if answers, err := c.answers(ctx); answers {
		return driver.ResultNoRows, err
	}
	execer, ok := c.base.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	if s, ok := c.withBegin(ctx, query, args, true); ok {
		return c.result(ctx)(c.sendWithBegin(ctx, s))
	}
	if text, ok := c.commits(ctx, query, args); ok {
		return c.result(ctx)(c.commitBy(ctx, text, endOf(text)))
	}
	s := c.judge(ctx, query, args).of(query, args)
	if err := c.lockFirst(ctx); err != nil {
		return nil, err
	}
	send := func() (driver.Result, error) {
		result, err := execer.ExecContext(ctx, query, args)
		if err == nil && query == rawsql.Probe && c.server.Gateway && c.status.inReply() {
			err = &mysql.MySQLError{Number: 1568, Message: "a transaction is open"} // ER_CANT_CHANGE_TX_CHARACTERISTICS, the answer of servers
		}
		c.learn(query, args, err)
		return result, err
	}
	if last := c.last(ctx); last != nil {
		return c.write(ctx, last, write{s, s.writes(query), query, args, c.shares(query, args)}, send)
	}
	if err := c.before(ctx, s); err != nil {
		return nil, err
	}
	if call := c.call(ctx); call != nil && call.Reply != nil && len(args) == 0 {
		r, err := read(ctx, c.base, query)
		return c.result(ctx)(r, c.after(ctx, s, err))
	}
	result, err := send()
	if err := c.after(ctx, s, err); err != nil {
		return nil, err
	}
	return result, nil
}

// answers answers the question of Ask. It knows the question by its context, since a
// wrapper may have changed its text. The error is why no lock would hold on the session, as
// far as that is known.
func (c *conn) answers(ctx context.Context) (bool, error) {
	q := valueOf[question](ctx)
	if q == nil {
		return false, nil
	}
	q.guarded, q.tx = true, c.tx
	if c.tx == nil || c.old {
		return true, nil
	}
	if t := c.tx; q.chooses && c.begin.pending && t.server.SnapshotAtBegin && t.isolation == sql.LevelDefault && t.session == sql.LevelRepeatableRead {
		t.isolation, t.chosen = sql.LevelReadCommitted, true
		c.begin.options.Isolation = driver.IsolationLevel(t.isolation)
	}
	return true, c.facts.Unfit
}

// call returns the mark of a lock statement, or nil for a statement of the program. The
// lock statements of another guarded pool around this one count as the program's.
func (c *conn) call(ctx context.Context) *Call {
	if call := valueOf[Call](ctx); call != nil && call.Tx.pool == c.pool {
		return call
	}
	return nil
}

// judge judges a statement of the program. Lock statements need no judgement. That on a text
// with arguments is remembered, since it is sent again and again.
func (c *conn) judge(ctx context.Context, query string, args []driver.NamedValue) statement {
	if c.call(ctx) != nil {
		return statement{kind: kindQuiet}
	}
	if len(args) == 0 || len(query) > longestJudged {
		return judge(query)
	}
	s, known := c.judged[query]
	if !known {
		if s = judge(query); len(c.judged) >= mostJudged || c.judged == nil {
			c.judged = make(map[string]statement)
		}
		c.judged[query] = s
	}
	return s
}

// What a connection remembers of its judgements.
const (
	mostJudged    = 32
	longestJudged = 512 // bytes
)

// QueryContext executes a statement with rows.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	queryer, ok := c.base.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	if err := c.marked(ctx); err != nil {
		return nil, err
	}
	if s, ok := c.withBegin(ctx, query, args, false); ok {
		return c.sendWithBegin(ctx, s)
	}
	if text, ok := c.commits(ctx, query, args); ok {
		return c.commitBy(ctx, text, endOf(text))
	}
	if c.last(ctx) != nil {
		return nil, ErrNoWrite
	}
	s := c.judge(ctx, query, args).of(query, args)
	send := func() (driver.Rows, error) {
		if err := c.before(ctx, s); err != nil {
			return nil, err
		}
		base, err := queryer.QueryContext(ctx, query, args)
		c.learn(query, args, err)
		return c.rows(ctx, s, base, err)
	}
	if first := c.first(ctx); first != nil {
		return c.readWith(ctx, first, s, query, args, send)
	}
	return send()
}

// PrepareContext prepares a statement and judges it once. A refusal comes when the
// statement is executed: GORM turns the error of a prepare into a *sql.Row that panics.
// In a doomed transaction the statement is prepared on the server all the same.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if answers, err := c.answers(ctx); answers {
		return unsent{err}, nil
	}
	s := &stmt{conn: c, statement: c.judge(ctx, query, nil), text: query, tx: c.tx, first: c.first(ctx), last: c.last(ctx)}
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Prepare does what PrepareContext does, for database/sql before Go 1.8.
func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// Exec is called by users of Conn.Raw to see the results of several statements in one
// text (mysql.Result).
func (c *conn) Exec(query string, args []driver.Value) (driver.Result, error) {
	return c.ExecContext(context.Background(), query, named(args))
}

// Query is called by users of Conn.Raw for rows.
func (c *conn) Query(query string, args []driver.Value) (driver.Rows, error) {
	return c.QueryContext(context.Background(), query, named(args))
}

func named(args []driver.Value) []driver.NamedValue {
	values := make([]driver.NamedValue, len(args))
	for i, v := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return values
}

// Close closes the connection.
func (c *conn) Close() error {
	err := c.base.Close()
	sessions.Delete(opened{c.server.Name, c.server.Session})
	c.end(false)
	return err
}

// Ping sends a ping.
func (c *conn) Ping(ctx context.Context) error {
	if pinger, ok := c.base.(driver.Pinger); ok {
		return pinger.Ping(ctx)
	}
	return nil
}

// ResetSession is called before the pool hands the connection out again. A connection
// with a doomed transaction that was begun as text, and never ended, is closed instead:
// MariaDB 10.6 and 11.4 would execute what follows in a transaction that nobody commits. So
// is that to a server which was read only: the next one may reach the new primary, which is
// what the parameter rejectReadOnly of the driver is for. And so is one whose session the
// program has made unfit. A transaction that its last statement has committed is no reason.
func (c *conn) ResetSession(ctx context.Context) error {
	if c.committed(); c.unusable || c.demoted || c.tx != nil && c.tx.refuse() != nil || c.becameUnfit(ctx) {
		return driver.ErrBadConn
	}
	if resetter, ok := c.base.(driver.SessionResetter); ok {
		return resetter.ResetSession(ctx)
	}
	return nil
}

// IsValid reports whether the connection can be used again. It is called when the connection
// returns to its pool.
func (c *conn) IsValid() bool {
	validator, ok := c.base.(driver.Validator)
	return !c.unusable && !c.borrowed && (!ok || validator.IsValid())
}

// usable reports whether the connection can send anything.
func (c *conn) usable() bool {
	alive, _ := c.alive()
	return alive && !c.unusable
}

// alive reports whether the base can still send anything, and whether it can tell. For a
// connection of locktest IsValid is the return to the pool.
func (c *conn) alive() (alive, told bool) {
	switch base := c.base.(type) {
	case interface{ Alive() bool }:
		return base.Alive(), true
	case driver.Validator:
		return base.IsValid(), true
	}
	return true, false
}

// OpenRows returns how many rows are not closed yet.
func (c *conn) OpenRows() int { return c.open }

// CheckNamedValue converts an argument.
func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.base.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// Origin returns the connector that made the connection, so that another one like it can
// be opened, and the name of its server; see Server.Name. Callers reach it by
// sql.Conn.Raw.
func (c *conn) Origin() (connector driver.Connector, server string) {
	return c.pool, c.server.Name
}
