package locktest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/sqltext"
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

// onMock calls f with the connection of the program's database.
func (c *conn) onMock(ctx context.Context, what string, f func(base driver.Conn) error) error {
	if c.kit.program == nil {
		return fmt.Errorf("locktest: there is no database for %q: give Open that of a mock", clipped(what))
	}
	if c.mock == nil {
		mock, err := c.kit.program.Conn(ctx)
		if err != nil {
			return err
		}
		c.mock = mock
	}
	var failed error
	err := c.mock.Raw(func(base any) error {
		failed = f(base.(driver.Conn))
		return nil
	})
	return errors.Join(failed, err)
}

// Ping pings the program's database.
func (c *conn) Ping(ctx context.Context) error {
	if c.kit.program == nil {
		return nil
	}
	return c.onMock(ctx, "ping", func(base driver.Conn) error {
		if p, ok := base.(driver.Pinger); ok {
			return p.Ping(ctx)
		}
		return nil
	})
}

// CheckNamedValue leaves the argument to convert: a statement of lockstep's own needs no
// connection of the program's database.
func (c *conn) CheckNamedValue(*driver.NamedValue) error { return nil }

// convert converts arguments as a database does.
func convert(base driver.Conn, args []driver.NamedValue) ([]driver.NamedValue, error) {
	args = slices.Clone(args)
	checker, ok := base.(driver.NamedValueChecker)
	for i := range args {
		err := driver.ErrSkip
		if ok {
			err = checker.CheckNamedValue(&args[i])
		}
		if errors.Is(err, driver.ErrSkip) {
			args[i].Value, err = driver.DefaultParameterConverter.ConvertValue(args[i].Value)
		}
		if err != nil {
			return nil, err
		}
	}
	return args, nil
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
	return d.finish("COMMIT", func() error { return d.tx.onBegun(driver.Tx.Commit) })
}

func (d driverTx) Rollback() error {
	return d.finish("ROLLBACK", func() error { return d.tx.onBegun(driver.Tx.Rollback) })
}

// onBegun ends the transaction of the program's database, if there is one.
func (t *tx) onBegun(end func(driver.Tx) error) error {
	if t == nil || t.begun == nil {
		return nil
	}
	return end(t.begun)
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
		send = func() error { return t.onBegun(driver.Tx.Rollback) }
	}
	err := send()
	if failed != nil {
		err = errors.Join(failed, err)
	}
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
	c.kit.faults.over(t)
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
	return run(ctx, c, query, args, asResult, func(base driver.Conn, args []driver.NamedValue) (driver.Result, error) {
		if e, ok := base.(driver.ExecerContext); ok {
			return e.ExecContext(ctx, query, args)
		}
		return nil, driver.ErrSkip // and is prepared
	})
}

// QueryContext executes a statement with rows.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return run(ctx, c, query, args, asRows, func(base driver.Conn, args []driver.NamedValue) (driver.Rows, error) {
		if q, ok := base.(driver.QueryerContext); ok {
			return q.QueryContext(ctx, query, args)
		}
		return nil, driver.ErrSkip // and is prepared
	})
}

// run executes a statement: lockstep's own, whose reply becomes the result, or one of the program, which
// send sends to its database.
func run[R any](ctx context.Context, c *conn, query string, args []driver.NamedValue, result func(reply) R,
	send func(base driver.Conn, args []driver.NamedValue) (R, error),
) (r R, err error) {
	if own, is, err := c.own(ctx, query, args); is {
		return result(own), err
	}
	err = c.sent(ctx, query, func(base driver.Conn) (err error) {
		if args, err = convert(base, args); err == nil {
			r, err = send(base, args)
		}
		return err
	})
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

// sent hands a statement of the program to its database, and notes it.
func (c *conn) sent(ctx context.Context, query string, send func(base driver.Conn) error) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	s, text := c.kit.server, shown(query)
	var words [4]string
	copy(words[:], sqltext.Words(text, len(words)))
	if words[0] == "COMMIT" || words[0] == "ROLLBACK" && !slices.Contains(words[:], "TO") {
		err := c.finish(words[0], func() error { return c.onMock(ctx, text, send) })
		if err == nil && contains(text, "AND CHAIN") {
			c.begin(driver.TxOptions{}, text)
		}
		return err
	}
	s.Mu.Lock()
	fault := c.kit.faults.at(text)
	if c.tx != nil && c.tx.Over == nil && (words[0] == "SELECT" || words[0] == "WITH") && !locks(text) {
		c.tx.read()
	}
	s.Mu.Unlock()
	var err error
	switch {
	case fault != 0:
		err = c.suffer(fault)
	case words[0] == "BEGIN", words[0] == "START":
		if err = c.onMock(ctx, text, send); err == nil {
			c.begin(driver.TxOptions{ReadOnly: contains(text, "READ ONLY")}, text)
		}
		return err
	default:
		err = c.hand(ctx, text, send)
	}
	if errors.Is(err, driver.ErrSkip) {
		return err
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if err == nil && c.tx != nil {
		err = s.effect(c.tx, words, text)
	}
	c.kit.log.add(c.tx, Event{What: text, Err: err, program: true})
	return err
}

// hand sends a statement, in a transaction if one is open.
func (c *conn) hand(ctx context.Context, text string, send func(base driver.Conn) error) error {
	return c.onMock(ctx, text, func(base driver.Conn) (err error) {
		if t := c.tx; t != nil && t.begun == nil && !t.asText {
			var begun driver.Tx
			if beginner, ok := base.(driver.ConnBeginTx); ok {
				begun, err = beginner.BeginTx(ctx, t.options)
			} else {
				begun, err = base.Begin() //nolint:staticcheck // what database/sql does without the interface
			}
			if err != nil {
				return err
			}
			t.begun = begun
		}
		return send(base)
	})
}

// locks reports whether a SELECT is a locking read, which takes no snapshot.
func locks(text string) bool {
	return contains(text, "FOR UPDATE") || contains(text, "FOR SHARE") || contains(text, "LOCK IN SHARE MODE")
}

// effect is what a statement of the program does to the transaction, under server.Mu.
func (s *server) effect(t *tx, words [4]string, text string) error {
	name := sqltext.SavepointName(text)
	set := slices.IndexFunc(t.savepoints, func(p savepoint) bool { return p.name == name })
	switch words[0] {
	case "SAVEPOINT":
		if set >= 0 {
			t.savepoints = slices.Delete(t.savepoints, set, set+1)
		}
		t.savepoints = append(t.savepoints, savepoint{name, maps.Clone(t.Written), maps.Clone(t.holds), len(t.Locked) == 0 && t.Snapshot == nil && t.Changed == 0})
	case "RELEASE", "ROLLBACK":
		if set < 0 {
			return errNoSavepoint(name)
		}
		if p := t.savepoints[set]; words[0] == "ROLLBACK" {
			t.Written, t.holds = maps.Clone(p.written), maps.Clone(p.holds)
			if p.first {
				t.Release()
			}
			set++ // it stays
		}
		t.savepoints = t.savepoints[:set]
	case "CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "GRANT", "REVOKE", "LOCK", "ANALYZE", "OPTIMIZE", "CHECK", "REPAIR", "FLUSH":
		if !slices.Contains(words[1:], "TEMPORARY") {
			s.end(t, true)
		}
	}
	return nil
}

// result is a reply without rows.
type result reply

func asResult(r reply) driver.Result { return result(r) }

func (r result) LastInsertId() (int64, error) { return r.id, nil }
func (r result) RowsAffected() (int64, error) { return r.changed, nil }

// rows are the rows of a reply that are not read yet.
type rows [][]driver.Value

func asRows(r reply) driver.Rows { all := rows(r.rows); return &all }

// Columns returns a name for each column, which nothing needs.
func (r *rows) Columns() []string {
	if len(*r) == 0 {
		return nil
	}
	return make([]string, len((*r)[0]))
}

func (r *rows) Close() error { return nil }
func (r *rows) Next(into []driver.Value) error {
	if len(*r) == 0 {
		return io.EOF
	}
	copy(into, (*r)[0])
	*r = (*r)[1:]
	return nil
}
