package locktest

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/internal/driverrows"
	"github.com/dca00107/lockstep/internal/sqltext"
)

// This file hands the statements of the program to its database.

// sent hands a statement of the program to its database, and notes it. One that begins or ends a
// transaction isn't handed on: its database does that as for a transaction of database/sql.
func (c *conn) sent(ctx context.Context, query string, send func(base driver.Conn) error) error {
	k, t, w := c.kit, c.tx, wordsOf(query)
	word := w.boundary()
	switch {
	case word == "BEGIN", word != "" && t == nil && w.have("AND CHAIN"):
		return c.begin(word, query, sql.TxOptions{ReadOnly: w.have("READ ONLY")})
	case word != "" && t != nil:
		err := c.finish(word, query)
		if err == nil && w.have("AND CHAIN") {
			err = c.begin("BEGIN", "BEGIN", t.options)
		}
		return err
	}
	k.rows.Mu.Lock()
	if t != nil {
		t.use(w, query)
	}
	e := Event{What: shown(query), program: true, commits: t != nil && w.commit()}
	err := c.suffer(word, query, e)
	k.rows.Mu.Unlock()
	if err != nil {
		return err
	}
	if e.Err = c.hand(ctx, query, send); errors.Is(e.Err, driver.ErrSkip) {
		return e.Err
	}
	k.rows.Mu.Lock()
	defer k.rows.Mu.Unlock()
	if t != nil && (e.Err == nil || w.commit()) {
		e.Err = cmp.Or(e.Err, k.effect(t, w, query))
	}
	c.moved = c.moved || e.Err == nil && w.begin("USE")
	k.note(t, e)
	return e.Err
}

// words are those of a statement, in capitals and with a blank around each, without what stands in quotes
// and in comments, and without SET STATEMENT. A text of several statements has none.
type words string

func wordsOf(query string) words {
	if _, more := sqltext.Next(query); more != "" {
		return ""
	}
	w := " " + strings.Join(sqltext.Words(query, len(query)), " ") + " "
	if _, inner, found := strings.Cut(w, " FOR "); found && strings.HasPrefix(w, " SET STATEMENT ") {
		w = " " + inner
	}
	return words(w)
}

// begin reports whether the statement begins with one of these.
func (w words) begin(phrases ...string) bool {
	return slices.ContainsFunc(phrases, func(p string) bool { return strings.HasPrefix(string(w), " "+p+" ") })
}

func (w words) count(phrase string) int { return strings.Count(string(w), " "+phrase+" ") }
func (w words) have(phrase string) bool { return w.count(phrase) > 0 }

// boundary returns BEGIN, COMMIT or ROLLBACK for a statement that begins or ends a transaction.
func (w words) boundary() string {
	switch {
	case w == " BEGIN ", w.begin("BEGIN WORK", "START TRANSACTION"):
		return "BEGIN"
	case w.begin("COMMIT"):
		return "COMMIT"
	case w.begin("ROLLBACK") && !w.have("TO"):
		return "ROLLBACK"
	}
	return ""
}

// use notes that a statement uses a table, by which a server begins its transaction, and takes the
// snapshot if the statement does. A SELECT does so that reads a table without locking it, and each locking
// clause is of one FROM. What the text doesn't show counts as such a read: a CALL, without a table a function
// that may be the program's, a FROM of EXTRACT, and tables that aren't those of InnoDB.
func (t *tx) use(w words, query string) {
	from := w.count("FROM") - w.count("FROM DUAL")
	stored := slices.ContainsFunc(sqltext.Calls(query), func(name string) bool { return !strings.Contains(builtin, " "+name+" ") })
	switch {
	case w.begin("SAVEPOINT", "RELEASE", "ROLLBACK", "SHOW", "USE", "PREPARE", "DEALLOCATE"):
	case w.begin("SELECT", "WITH", "SET", "DO") && from == 0 && !stored:
	case w.begin("SET", "DO") && !stored, w.begin("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD"),
		w.begin("SELECT", "WITH") && from > 0 && from <= w.count("FOR UPDATE")+w.count("FOR SHARE")+w.count("LOCK IN SHARE MODE")-w.count("OF"):
		t.reads = true
	default:
		t.read()
	}
}

// builtin has words that stand before a parenthesis in statements without a table, and are no functions of
// the program's.
const builtin = " SELECT UNION ALL EXISTS AS IN AND OR NOT IF IFNULL COALESCE CONCAT CAST NOW CURRENT_TIMESTAMP UTC_TIMESTAMP SYSDATE UNIX_TIMESTAMP MIN MAX SUM COUNT" +
	" DATABASE SCHEMA USER CURRENT_USER VERSION CONNECTION_ID LAST_INSERT_ID ROW_COUNT FOUND_ROWS UUID RAND SLEEP GET_LOCK RELEASE_LOCK IS_FREE_LOCK "

// commit reports whether a statement ends its transaction by an implicit COMMIT, which comes before
// its own work.
func (w words) commit() bool {
	return !w.have("TEMPORARY TABLE") && w.begin("CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "GRANT", "REVOKE", "LOCK", "ANALYZE TABLE", "ANALYZE LOCAL", "ANALYZE NO_WRITE_TO_BINLOG", "OPTIMIZE", "CHECK", "REPAIR", "FLUSH")
}

// effect is what a statement of the program does to the transaction, under Kit.rows.Mu.
func (k *Kit) effect(t *tx, w words, query string) error {
	name := sqltext.SavepointName(query)
	same := func(p savepoint) bool { return p.name == name }
	switch {
	case w.begin("SAVEPOINT"):
		t.savepoints = append(slices.DeleteFunc(t.savepoints, same), savepoint{name, maps.Clone(t.Written), maps.Clone(t.holds), len(t.Locked) == 0 && !t.reads})
	case w.begin("RELEASE SAVEPOINT", "ROLLBACK"):
		set := slices.IndexFunc(t.savepoints, same)
		if set < 0 {
			return errNoSavepoint(name)
		}
		if p := t.savepoints[set]; w.begin("ROLLBACK") {
			t.Written, t.holds = maps.Clone(p.written), maps.Clone(p.holds)
			if p.first {
				t.Release()
				t.reads = false
			}
			set++ // it stays
		}
		t.savepoints = t.savepoints[:set]
	case w.commit():
		k.end(t, true)
	}
	return nil
}

// hand calls send with the connection of the program's database, in a transaction if one is open.
func (c *conn) hand(ctx context.Context, what string, send func(base driver.Conn) error) (err error) {
	if c.kit.program == nil {
		return fmt.Errorf("locktest: there is no database for %q: give Open that of a mock", clipped(what))
	}
	if c.idle = false; c.mock == nil {
		c.mock, err = c.kit.program.Conn(ctx)
	}
	if err != nil {
		return err
	}
	var failed error
	err = c.mock.Raw(func(raw any) error {
		base, t := raw.(driver.Conn), c.tx
		if beginner, ok := base.(driver.ConnBeginTx); ok && t != nil && t.begun == nil {
			t.begun, failed = beginner.BeginTx(ctx, driver.TxOptions{Isolation: driver.IsolationLevel(t.options.Isolation), ReadOnly: t.options.ReadOnly})
		} else if t != nil && t.begun == nil {
			t.begun, failed = base.Begin() //nolint:staticcheck // what database/sql does without the interface
		}
		if failed == nil {
			failed = send(base)
		}
		return nil
	})
	return cmp.Or(failed, err) // as it is: programs and database/sql look at its type
}

// Ping pings the program's database.
func (c *conn) Ping(ctx context.Context) error {
	switch {
	case c.mock != nil:
		return c.mock.PingContext(ctx)
	case c.kit.program != nil:
		return c.kit.program.PingContext(ctx)
	}
	return nil
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

// PrepareContext prepares a statement of the program on its database.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	s := &stmt{unsent{}, c, query}
	if h, _, err := c.kit.parse(query); h != nil || err != nil {
		return s, err
	}
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	return s, c.hand(ctx, query, func(base driver.Conn) (err error) {
		if p, ok := base.(driver.ConnPrepareContext); ok {
			s.Stmt, err = p.PrepareContext(ctx, query)
		} else {
			s.Stmt, err = base.Prepare(query)
		}
		if err == nil {
			c.stmts[s] = true
		}
		return err
	})
}

// unsent stands for a statement of lockstep's own, which the program's database doesn't get.
type unsent struct{}

func (unsent) Close() error                               { return nil }
func (unsent) NumInput() int                              { return -1 }
func (unsent) Exec([]driver.Value) (driver.Result, error) { return nil, errors.ErrUnsupported }
func (unsent) Query([]driver.Value) (driver.Rows, error)  { return nil, errors.ErrUnsupported }

// stmt is a prepared statement.
type stmt struct {
	driver.Stmt
	conn  *conn
	query string
}

func (s *stmt) Close() error {
	err := s.Stmt.Close()
	delete(s.conn.stmts, s)
	return cmp.Or(err, s.conn.release())
}

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return run(ctx, s.conn, s.query, args, func(_ driver.Conn, args []driver.NamedValue) (driver.Result, error) {
		if e, ok := s.Stmt.(driver.StmtExecContext); ok {
			return e.ExecContext(ctx, args)
		}
		return nil, errors.ErrUnsupported
	})
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return run(ctx, s.conn, s.query, args, func(_ driver.Conn, args []driver.NamedValue) (driver.Rows, error) {
		if q, ok := s.Stmt.(driver.StmtQueryContext); ok {
			return s.conn.rows(q.QueryContext(ctx, args))
		}
		return nil, errors.ErrUnsupported
	})
}

// rows are those of a statement of the program. While they are open, its connection can send nothing.
type rows struct {
	driverrows.Rows
	conn   *conn
	closed bool
}

// rows notes that rows of a statement are open.
func (c *conn) rows(base driver.Rows, err error) (driver.Rows, error) {
	if err != nil {
		return base, err
	}
	c.open++
	return &rows{Rows: driverrows.Rows{Rows: base}, conn: c}, nil
}

func (r *rows) Close() error {
	if !r.closed {
		r.closed = true
		r.conn.open--
	}
	return r.Rows.Close()
}
