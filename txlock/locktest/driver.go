package locktest

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// connector is the connector and the driver of a Kit's pools.
type connector struct{ kit *Kit }

func (c connector) Connect(context.Context) (driver.Conn, error) {
	return &conn{kit: c.kit, session: c.kit.conns.Add(1), stmts: make(map[*stmt]bool)}, nil
}

func (c connector) Open(string) (driver.Conn, error) { return c.Connect(context.Background()) }
func (c connector) Driver() driver.Driver            { return c }
func (c connector) LeaseStore() store.Store          { return c.kit.leases }

// conn is a connection, with one of the program's database once that is needed.
type conn struct {
	kit     *Kit
	session uint64
	lost    bool
	tx      *tx            // nil outside a transaction of the program
	mock    *sql.Conn      // nil until a statement needs it
	stmts   map[*stmt]bool // that are prepared on it
	idle    bool           // no statement needed it since IsValid was called
	moved   bool           // to another database, by USE
	open    int            // how many rows of the program are open
}

// IsValid is called when the connection returns to its pool. That of the program's database returns, too.
func (c *conn) IsValid() bool {
	c.idle = true
	return c.release() == nil && !c.lost
}

// release gives the connection of the program's database back, unless something needs it.
func (c *conn) release() (err error) {
	if c.mock != nil && c.idle && c.tx == nil && len(c.stmts) == 0 {
		err, c.mock = c.mock.Close(), nil
	}
	return err
}

// Alive is what others than the pool call instead.
func (c *conn) Alive() bool               { return !c.lost }
func (c *conn) Begin() (driver.Tx, error) { return c.BeginTx(context.Background(), driver.TxOptions{}) }
func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// Close ends the transaction, as the end of a session does.
func (c *conn) Close() error {
	c.lost, c.idle = true, true
	return cmp.Or(c.end("ROLLBACK", false, nil), c.release())
}

// BeginTx begins a transaction. Its Commit and Rollback are methods of the connection.
func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	level := sql.IsolationLevel(options.Isolation)
	switch level {
	case sql.LevelDefault, sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable:
		return c, c.begin("BEGIN", "BEGIN", sql.TxOptions{Isolation: level, ReadOnly: options.ReadOnly})
	}
	return nil, fmt.Errorf("mysql: unsupported isolation level: %v", options.Isolation) // as go-sql-driver/mysql
}

// begin begins a transaction by a statement, and commits the one that is open. The program's database
// learns of it by its first statement there.
func (c *conn) begin(word, query string, options sql.TxOptions) error {
	if err := c.finish("COMMIT", "COMMIT"); err != nil {
		return err
	}
	c.kit.rows.Mu.Lock()
	defer c.kit.rows.Mu.Unlock()
	if err := c.suffer(word, query, Event{What: word}); err != nil {
		return err
	}
	c.tx = c.kit.begin(c.session, options)
	if wordsOf(query).have("WITH CONSISTENT SNAPSHOT") {
		c.tx.read()
	}
	return nil
}

func (c *conn) usable(ctx context.Context) error {
	switch {
	case c.open > 0: // the driver closes the connection when the rows are closed
		c.lost = true
		return mysql.ErrBusyBuffer
	case c.lost:
		return driver.ErrBadConn
	case c.killed():
		c.lost = true
		return mysql.ErrInvalidConn
	}
	return ctx.Err()
}

// killed reports whether a server has ended the session, and with it the transaction.
func (c *conn) killed() bool {
	c.kit.rows.Mu.Lock()
	defer c.kit.rows.Mu.Unlock()
	return c.tx != nil && c.kit.killed(c.tx)
}

func (c *conn) Commit() error   { return c.finish("COMMIT", "COMMIT") }
func (c *conn) Rollback() error { return c.finish("ROLLBACK", "ROLLBACK") }

// finish ends the transaction, if there is one, by a COMMIT or ROLLBACK that a fault may befall.
func (c *conn) finish(word, query string) error {
	k, t := c.kit, c.tx
	switch {
	case c.lost:
		return mysql.ErrInvalidConn
	case t == nil:
		return nil
	}
	k.rows.Mu.Lock()
	fault := k.faultAt(word, query)
	if k.killed(t) {
		fault = LostConnection
	}
	commits := word == "COMMIT" && t.Over == nil
	k.rows.Mu.Unlock()
	return c.end(word, commits && (fault == 0 || fault == UnknownOutcome), faultsOf[fault].answer)
}

// end ends the transaction, if there is one, and before that the one of the program's database. The answer
// is that of a fault, or nil.
func (c *conn) end(word string, commit bool, answer error) (err error) {
	k, t := c.kit, c.tx
	switch {
	case t == nil:
		return nil
	case t.begun == nil:
	case commit:
		err = t.begun.Commit()
	default:
		err = t.begun.Rollback()
	}
	k.rows.Mu.Lock()
	defer k.rows.Mu.Unlock()
	commit = commit && err == nil
	err = cmp.Or(answer, err)
	c.lost = c.lost || errors.Is(err, mysql.ErrInvalidConn)
	if t.number > 0 {
		k.note(t, Event{What: word, Err: err, commits: commit})
	}
	k.end(t, commit)
	c.tx = nil
	return err
}

// suffer returns what a server answers to a statement of the program at a fault, nil if there is none, and
// notes the event. Each but Timeout has ended the transaction. It is called under Kit.rows.Mu.
func (c *conn) suffer(word, query string, e Event) error {
	fault := c.kit.faultAt(word, query)
	if e.Err = faultsOf[fault].answer; e.Err != nil {
		e.commits = false
		c.kit.note(c.tx, e) // with what the transaction holds
	}
	if e.Err != nil && fault != Timeout && c.tx != nil {
		c.kit.end(c.tx, false)
	}
	c.lost = c.lost || errors.Is(e.Err, mysql.ErrInvalidConn)
	return e.Err
}

// ExecContext executes a statement: lockstep's own, or one of the program.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if t, asks := ctx.Value(askKey{}).(**tx); asks {
		*t = c.tx
		return driver.ResultNoRows, c.usable(ctx)
	}
	return run(ctx, c, query, args, func(base driver.Conn, args []driver.NamedValue) (driver.Result, error) {
		if e, ok := base.(driver.ExecerContext); ok {
			return e.ExecContext(ctx, query, args)
		}
		return nil, driver.ErrSkip // and is prepared
	})
}

// QueryContext executes a statement with rows.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return run(ctx, c, query, args, func(base driver.Conn, args []driver.NamedValue) (driver.Rows, error) {
		if q, ok := base.(driver.QueryerContext); ok {
			return c.rows(q.QueryContext(ctx, query, args))
		}
		return nil, driver.ErrSkip // and is prepared
	})
}

// run executes a statement: lockstep's own, or one of the program, which send sends to its database.
func run[R any](ctx context.Context, c *conn, query string, args []driver.NamedValue,
	send func(base driver.Conn, args []driver.NamedValue) (R, error),
) (r R, err error) {
	if err := c.usable(ctx); err != nil {
		return r, err
	}
	if own, err := c.own(ctx, query, args); own != nil || err != nil {
		return any(own).(R), err
	}
	err = c.sent(ctx, query, func(base driver.Conn) (err error) {
		if args, err = convert(base, args); err == nil {
			r, err = send(base, args)
		}
		return err
	})
	if err == nil && any(r) == nil { // it has ended the transaction as database/sql does
		r = any(new(reply)).(R)
	}
	if changes, ok := any(r).(driver.Result); ok && err == nil && c.tx != nil {
		if n, unknown := changes.RowsAffected(); unknown == nil {
			c.kit.rows.Mu.Lock()
			defer c.kit.rows.Mu.Unlock()
			c.tx.Changed += n
		}
	}
	return r, err
}

// own executes a statement of lockstep's own, in the transaction or in one for it alone. For any other it
// returns neither a reply nor an error.
func (c *conn) own(ctx context.Context, query string, named []driver.NamedValue) (*reply, error) {
	args := make([]any, len(named))
	for i, v := range named {
		args[i] = v.Value
	}
	if s, rendered := rawsql.RenderedOf(ctx, query); rendered {
		query, args = s.SQL()
	}
	h, v, err := c.kit.parse(query)
	if err != nil || h == nil {
		return nil, err
	}
	c.kit.rows.Mu.Lock()
	defer c.kit.rows.Mu.Unlock()
	q := &statement{kit: c.kit, tx: c.tx, open: c.tx != nil && c.tx.Over == nil, args: args, moved: c.moved, variables: v}
	if !q.open {
		q.tx = c.kit.begin(c.session, sql.TxOptions{Isolation: sql.LevelReadCommitted})
		q.tx.number = -1
	}
	r, err := h(ctx, q)
	if err == nil {
		q.hold()
	}
	c.lost = errors.Is(err, mysql.ErrInvalidConn) || ctx.Err() != nil && errors.Is(err, ctx.Err()) // as the driver closes it
	if c.lost || !q.open || q.tx.Over != nil {
		c.kit.end(q.tx, !q.open && err == nil)
	}
	return &r, err
}
