package locktest

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// connector is the connector and the driver of a Kit's pools.
type connector struct{ kit *Kit }

func (c connector) Connect(context.Context) (driver.Conn, error) {
	s := c.kit.server
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.sessions++
	return &conn{kit: c.kit, session: s.sessions}, nil
}

func (c connector) Open(string) (driver.Conn, error) { return c.Connect(context.Background()) }
func (c connector) Driver() driver.Driver            { return c }
func (c connector) LeaseStore() store.Store          { return c.kit.leases }

// conn is a connection, with one of the program's database once that is needed.
type conn struct {
	kit     *Kit
	session uint64
	lost    bool
	tx      *tx       // nil outside a transaction of the program
	mock    *sql.Conn // nil until a statement needs it
}

var (
	_ driver.ConnBeginTx        = (*conn)(nil)
	_ driver.ConnPrepareContext = (*conn)(nil)
	_ driver.ExecerContext      = (*conn)(nil)
	_ driver.QueryerContext     = (*conn)(nil)
	_ driver.Pinger             = (*conn)(nil)
	_ driver.Validator          = (*conn)(nil)
	_ driver.NamedValueChecker  = (*conn)(nil)
)

func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

func (c *conn) IsValid() bool { return !c.lost }

// Close ends the transaction, as the end of a session does.
func (c *conn) Close() error {
	c.lost = true
	c.rollback()
	if c.mock == nil {
		return nil
	}
	return c.mock.Close()
}

// rollback rolls back what is open.
func (c *conn) rollback() {
	s := c.kit.server
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if c.tx != nil {
		s.end(c.tx, false)
	}
}

// BeginTx begins a transaction. The program's database learns of it by its first statement
// there.
func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	c.begin(options, "")
	return driverTx{c}, nil
}

// begin begins a transaction, by a statement of the program if that isn't empty.
func (c *conn) begin(options driver.TxOptions, statement string) {
	s := c.kit.server
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if c.tx != nil {
		s.end(c.tx, true)
	}
	c.tx = s.begin(c.session, options)
	c.tx.asText = statement != ""
	begin := c.kit.leases.Begin
	if c.tx.at(sql.LevelReadCommitted, sql.LevelReadUncommitted) {
		begin = c.kit.leases.BeginReadCommitted
	}
	c.tx.leases = begin()
	if contains(statement, "WITH CONSISTENT SNAPSHOT") {
		c.tx.read()
	}
}

func (c *conn) usable(ctx context.Context) error {
	if c.lost {
		return driver.ErrBadConn
	}
	return ctx.Err()
}

// driverTx is the end of a transaction of database/sql.
type driverTx struct{ *conn }

func (d driverTx) Commit() error {
	if d.lost {
		return mysql.ErrInvalidConn
	}
	return d.finish("COMMIT", d.onBegun(driver.Tx.Commit))
}

func (d driverTx) Rollback() error { return d.finish("ROLLBACK", d.onBegun(driver.Tx.Rollback)) }

// onBegun returns what ends the transaction of the program's database, if there is one.
func (c *conn) onBegun(end func(driver.Tx) error) func() error {
	return func() error {
		if c.tx == nil || c.tx.begun == nil {
			return nil
		}
		return end(c.tx.begun)
	}
}

// finish ends the transaction, and before that the one of the program's database by send.
func (c *conn) finish(word string, send func() error) error {
	t, s := c.tx, c.kit.server
	if t == nil {
		return send()
	}
	s.Mu.Lock()
	fault, over := c.kit.faults.at(word), t.Over != nil
	s.Mu.Unlock()
	commits := word == "COMMIT" && !over
	var failed error
	switch {
	case commits && fault != 0 && fault != UnknownOutcome:
		failed = c.suffer(fault)
	case commits && t.guards:
		failed = t.leases.Commit()
	}
	if failed != nil || over && !t.asText { // the server has rolled it back before
		send = c.onBegun(driver.Tx.Rollback)
	}
	err := send()
	err = cmp.Or(failed, err)
	s.Mu.Lock()
	defer s.Mu.Unlock()
	commits = commits && err == nil
	if fault == UnknownOutcome {
		err = mysql.ErrInvalidConn
		c.lost = true
	}
	if t.number > 0 {
		c.kit.log.add(t, Event{What: word, Err: err})
	}
	s.end(t, commits)
	c.tx = nil
	return err
}

// suffer returns what a server answers at a fault, which has ended the transaction unless it is
// a Timeout.
func (c *conn) suffer(f Fault) error {
	if f != Timeout {
		c.rollback()
	}
	c.lost = c.lost || f == LostConnection
	return faultsOf[f].answer
}

// ExecContext executes a statement: lockstep's own, or one of the program.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if t, asks := ctx.Value(askKey{}).(**tx); asks {
		*t = c.tx
		return driver.ResultNoRows, nil
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
			return q.QueryContext(ctx, query, args)
		}
		return nil, driver.ErrSkip // and is prepared
	})
}

// run executes a statement: lockstep's own, or one of the program, which send sends to its database.
func run[R any](ctx context.Context, c *conn, query string, args []driver.NamedValue,
	send func(base driver.Conn, args []driver.NamedValue) (R, error),
) (r R, err error) {
	if own, is, err := c.own(ctx, query, args); is {
		return any(&own).(R), err
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
	if changes, ok := any(r).(driver.Result); ok && err == nil {
		c.changes(changes)
	}
	return r, err
}

// changes counts the rows that the transaction has changed.
func (c *conn) changes(r driver.Result) {
	n, err := r.RowsAffected()
	if err != nil || c.tx == nil {
		return
	}
	c.kit.server.Mu.Lock()
	defer c.kit.server.Mu.Unlock()
	c.tx.Changed += n
}

// own executes a statement of lockstep's own, in the transaction or in one for it alone, and reports
// whether it is one.
func (c *conn) own(ctx context.Context, query string, named []driver.NamedValue) (r reply, is bool, err error) {
	args := make([]any, len(named))
	for i, v := range named {
		args[i] = v.Value
	}
	if s, rendered := rawsql.RenderedOf(ctx, query); rendered {
		query, args = s.SQL()
	}
	h, v, err := c.kit.parse(query)
	if err == nil && h != nil {
		err = c.usable(ctx)
	}
	if err != nil || h == nil {
		return reply{}, err != nil, err
	}
	s := c.kit.server
	s.Mu.Lock()
	defer s.Mu.Unlock()
	q := &statement{kit: c.kit, tx: c.tx, open: c.tx != nil && c.tx.Over == nil, args: args, variables: v}
	if !q.open {
		q.tx = s.begin(c.session, driver.TxOptions{Isolation: driver.IsolationLevel(sql.LevelReadCommitted)})
	}
	r, err = h(ctx, q)
	if !q.open {
		s.end(q.tx, err == nil)
	}
	lost := errors.Is(err, mysql.ErrInvalidConn) || ctx.Err() != nil && errors.Is(err, ctx.Err())
	c.lost = c.lost || lost // as the driver closes it
	if lost || q.tx.Over != nil {
		s.end(q.tx, false)
	}
	return r, true, err
}
