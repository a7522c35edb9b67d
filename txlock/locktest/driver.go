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
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// connector is the connector and the driver of a Kit's pools.
type connector struct{ kit *Kit }

func (c connector) Connect(context.Context) (driver.Conn, error) {
	s := c.kit.server
	s.mu.Lock()
	defer s.mu.Unlock()
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
	tx      *tx // nil outside a transaction of the program

	mock    *sql.Conn        // nil until a statement needs it
	options driver.TxOptions // of the transaction
	begun   driver.Tx        // of the program's database, nil until a statement needs it
	asText  bool             // the transaction was begun by a statement of the program
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
	mock := c.mock
	c.mock = nil
	return mock.Close()
}

// rollback rolls back what is open.
func (c *conn) rollback() {
	s := c.kit.server
	s.mu.Lock()
	defer s.mu.Unlock()
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
	c.begin(options)
	return driverTx{c}, nil
}

func (c *conn) begin(options driver.TxOptions) {
	i := sql.IsolationLevel(options.Isolation)
	l := level{
		uncommitted: i == sql.LevelReadUncommitted, committed: i == sql.LevelReadCommitted, serializable: i == sql.LevelSerializable,
		readOnly: options.ReadOnly,
	}
	s := c.kit.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.tx != nil {
		s.end(c.tx, true) // by BEGIN as a statement
	}
	c.tx, c.options, c.begun, c.asText = s.begin(c.session, l), options, nil, false
	if c.tx.leases = c.kit.leases.Begin(); l.committed || l.uncommitted {
		c.tx.leases = c.kit.leases.BeginReadCommitted()
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
	return d.finish("COMMIT", func() error { return d.onBegun(driver.Tx.Commit) })
}

func (d driverTx) Rollback() error {
	return d.finish("ROLLBACK", func() error { return d.onBegun(driver.Tx.Rollback) })
}

// onBegun ends the transaction of the program's database, if there is one.
func (c *conn) onBegun(end func(driver.Tx) error) error {
	if c.begun == nil {
		return nil
	}
	return end(c.begun)
}

// finish ends the transaction, and before that the one of the program's database by send.
func (c *conn) finish(word string, send func() error) error {
	t, s := c.tx, c.kit.server
	if t == nil {
		return send()
	}
	s.mu.Lock()
	fault, over := c.kit.faults.at(word), t.over
	s.mu.Unlock()
	commits := word == "COMMIT" && !over
	var err error
	switch {
	case commits && fault != nil && *fault != UnknownOutcome:
		commits, err = false, c.suffer(*fault)
		err = errors.Join(err, c.onBegun(driver.Tx.Rollback))
	case over && !c.asText:
		err = c.onBegun(driver.Tx.Rollback) // the server has done so before
	case commits && t.guards:
		if err = t.leases.Commit(); err == nil {
			err = send()
		} else {
			err = errors.Join(err, c.onBegun(driver.Tx.Rollback))
		}
	default:
		err = send()
	}
	commits = commits && err == nil
	s.mu.Lock()
	if fault != nil && *fault == UnknownOutcome {
		err = mysql.ErrInvalidConn
		c.lost = true
	}
	c.kit.log.add(t, Event{What: word, Err: err}, t.number > 0)
	s.end(t, commits)
	c.kit.faults.over(t)
	s.mu.Unlock()
	c.tx, c.begun = nil, nil
	return err
}

// suffer returns what a server answers at a fault, which has ended the transaction unless it is
// a Timeout.
func (c *conn) suffer(f Fault) error {
	if f != Timeout {
		c.rollback()
	}
	c.lost = c.lost || f == LostConnection
	return f.answer()
}

// ExecContext executes a statement: lockstep's own, or one of the program.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if t, asks := ctx.Value(askKey{}).(**tx); asks {
		*t = c.tx
		return driver.ResultNoRows, nil
	}
	if r, own, err := c.own(ctx, query, args); own {
		return result(r), err
	}
	var r driver.Result
	err := c.sent(ctx, query, func(base driver.Conn) (err error) {
		execer, ok := base.(driver.ExecerContext)
		if !ok {
			return driver.ErrSkip
		}
		if args, err = convert(base, args); err == nil {
			r, err = execer.ExecContext(ctx, query, args)
		}
		return err
	})
	c.changes(r, err)
	return r, err
}

// changes counts the rows that the transaction has changed.
func (c *conn) changes(r driver.Result, err error) {
	if err != nil || r == nil || c.tx == nil {
		return
	}
	if n, err := r.RowsAffected(); err == nil {
		c.kit.server.mu.Lock()
		defer c.kit.server.mu.Unlock()
		c.tx.changed += n
	}
}

// QueryContext executes a statement with rows.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if r, own, err := c.own(ctx, query, args); own {
		return &rows{reply: r}, err
	}
	var r driver.Rows
	err := c.sent(ctx, query, func(base driver.Conn) (err error) {
		queryer, ok := base.(driver.QueryerContext)
		if !ok {
			return driver.ErrSkip
		}
		if args, err = convert(base, args); err == nil {
			r, err = queryer.QueryContext(ctx, query, args)
		}
		return err
	})
	return r, err
}

// own executes a statement of lockstep's own, and reports whether it is one.
func (c *conn) own(ctx context.Context, query string, named []driver.NamedValue) (reply, bool, error) {
	text, args := query, values(named)
	if s, rendered := rawsql.RenderedOf(ctx, query); rendered {
		text, args = s.Query, args[:0]
		for _, v := range s.Args {
			args = append(args, v)
		}
		if len(s.Variables) > 0 {
			text = rawsql.For(s.Variables...) + text
		}
	}
	text, l, stale, err := under(text)
	h := find(text, len(args))
	switch {
	case err == nil && h == nil && !strings.Contains(strings.ToLower(text), "lockstep"):
		return reply{}, false, nil
	case err == nil && h == nil:
		err = c.kit.unknown(text)
	}
	if err == nil {
		err = c.usable(ctx)
	}
	if err != nil {
		return reply{}, true, err
	}
	r, err := c.execute(ctx, h, args, l, stale)
	return r, true, err
}

// execute executes a statement in the transaction, or in one of its own.
func (c *conn) execute(ctx context.Context, h handler, args []driver.Value, l limit, stale bool) (reply, error) {
	s := c.kit.server
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &statement{kit: c.kit, tx: c.tx, session: c.session, open: c.tx != nil && !c.tx.over, args: args, limit: l, stale: stale}
	if !q.open {
		q.tx = s.begin(c.session, level{committed: true})
	}
	r, err := h(ctx, q)
	if !q.open {
		s.end(q.tx, err == nil)
	}
	if errors.Is(err, mysql.ErrInvalidConn) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		c.lost = true // as the driver closes it
		s.end(q.tx, false)
	}
	return r, err
}

// sent hands a statement of the program to its database, and notes it.
func (c *conn) sent(ctx context.Context, query string, send func(base driver.Conn) error) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	s, text := c.kit.server, shown(query)
	words := strings.Fields(strings.ToUpper(text) + " ; ;")
	s.mu.Lock()
	fault := c.kit.faults.at(text)
	if c.tx != nil && !c.tx.over && (words[0] == "SELECT" || words[0] == "WITH") && !locks(text) {
		s.read(c.tx)
	}
	s.mu.Unlock()
	var err error
	switch {
	case fault != nil:
		err = c.suffer(*fault)
	case slices.Contains([]string{"BEGIN", "START"}, words[0]):
		if err = c.onMock(ctx, text, send); err == nil {
			c.begin(driver.TxOptions{})
			c.asText = true
		}
		return err
	case words[0] == "COMMIT", words[0] == "ROLLBACK" && words[1] != "TO":
		return c.finish(words[0], func() error { return c.onMock(ctx, text, send) })
	default:
		err = c.hand(ctx, text, send)
	}
	if errors.Is(err, driver.ErrSkip) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && c.tx != nil {
		err = s.effect(c.tx, words, text)
	}
	c.kit.log.add(c.tx, Event{What: text, Err: err, program: true}, true)
	return err
}

// hand sends a statement, in a transaction if one is open.
func (c *conn) hand(ctx context.Context, text string, send func(base driver.Conn) error) error {
	return c.onMock(ctx, text, func(base driver.Conn) (err error) {
		if c.tx != nil && c.begun == nil && !c.asText {
			if beginner, ok := base.(driver.ConnBeginTx); ok {
				c.begun, err = beginner.BeginTx(ctx, c.options)
			} else {
				c.begun, err = base.Begin() //nolint:staticcheck // what database/sql does without the interface
			}
			if err != nil {
				c.begun = nil
				return err
			}
		}
		return send(base)
	})
}

// locks reports whether a SELECT is a locking read, which takes no snapshot.
func locks(text string) bool {
	text = strings.ToUpper(text)
	return strings.Contains(text, "FOR UPDATE") || strings.Contains(text, "FOR SHARE") || strings.Contains(text, "LOCK IN SHARE MODE")
}

// effect is what a statement of the program does to the transaction, under server.mu.
func (s *server) effect(t *tx, words []string, text string) error {
	name := strings.Trim(words[1], "`;")
	find := func(name string) int {
		return slices.IndexFunc(t.savepoints, func(p savepoint) bool { return p.name == name })
	}
	switch words[0] {
	case "SAVEPOINT":
		if i := find(name); i >= 0 {
			t.savepoints = slices.Delete(t.savepoints, i, i+1)
		}
		t.savepoints = append(t.savepoints, savepoint{name, maps.Clone(t.written), maps.Clone(t.holds), len(t.rowLocks) == 0 && t.snapshot == nil && t.changed == 0})
	case "RELEASE":
		i := find(last(text))
		if i < 0 {
			return errNoSavepoint(last(text))
		}
		t.savepoints = t.savepoints[:i]
	case "ROLLBACK":
		i := find(last(text))
		if i < 0 {
			return errNoSavepoint(last(text))
		}
		t.savepoints = t.savepoints[:i+1]
		t.written, t.holds = maps.Clone(t.savepoints[i].written), maps.Clone(t.savepoints[i].holds)
		if t.savepoints[i].first {
			s.free(t)
		}
	case "CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "GRANT", "REVOKE":
		if words[1] != "TEMPORARY" {
			s.end(t, true)
		}
	}
	return nil
}

// last is the last word of a text, a name of a savepoint.
func last(text string) string {
	words := strings.Fields(strings.ToUpper(text))
	return strings.Trim(words[len(words)-1], "`;")
}

func values(args []driver.NamedValue) []driver.Value {
	all := make([]driver.Value, len(args))
	for i, v := range args {
		all[i] = v.Value
	}
	return all
}

// result is a reply without rows.
type result reply

func (r result) LastInsertId() (int64, error) { return r.id, nil }
func (r result) RowsAffected() (int64, error) { return r.changed, nil }

// rows is a reply with rows.
type rows struct {
	reply reply
	next  int
}

func (r *rows) Columns() []string { return make([]string, r.reply.columns) }
func (r *rows) Close() error      { return nil }
func (r *rows) Next(into []driver.Value) error {
	if r.next >= len(r.reply.rows) {
		return io.EOF
	}
	copy(into, r.reply.rows[r.next])
	r.next++
	return nil
}
