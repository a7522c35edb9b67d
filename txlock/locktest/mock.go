package locktest

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/dca00107/lockstep/internal/sqltext"
)

// This file hands the statements of the program to its database.

// sent hands a statement of the program to its database, and notes it.
func (c *conn) sent(ctx context.Context, query string, send func(base driver.Conn) error) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	s, text := c.kit.server, shown(query)
	var words [4]string
	copy(words[:], sqltext.Words(text, len(words)))
	if words[0] == "COMMIT" || words[0] == "ROLLBACK" && !slices.Contains(words[:], "TO") {
		return c.endByText(ctx, words[0], text, send)
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
	if c.tx != nil && (err == nil || commits(words)) {
		err = cmp.Or(err, s.effect(c.tx, words, text))
	}
	c.kit.log.add(c.tx, Event{What: text, Err: err, program: true})
	return err
}

// endByText ends the transaction by a statement of the program, or by that of CommitWith.
func (c *conn) endByText(ctx context.Context, word, text string, send func(base driver.Conn) error) error {
	chain := contains(text, "AND CHAIN")
	end := func() error { return c.onMock(ctx, text, send) }
	if word == "COMMIT" && c.tx != nil && c.tx.begun != nil && !chain {
		end = c.onBegun(driver.Tx.Commit)
	}
	err := c.finish(word, end)
	if err == nil && chain {
		c.begin(driver.TxOptions{}, text)
	}
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
	same := func(p savepoint) bool { return p.name == name }
	switch words[0] {
	case "SAVEPOINT":
		t.savepoints = slices.DeleteFunc(t.savepoints, same)
		t.savepoints = append(t.savepoints, savepoint{name, maps.Clone(t.Written), maps.Clone(t.holds), len(t.Locked) == 0 && !t.reads && t.Changed == 0})
	case "RELEASE", "ROLLBACK":
		set := slices.IndexFunc(t.savepoints, same)
		if set < 0 {
			return errNoSavepoint(name)
		}
		if p := t.savepoints[set]; words[0] == "ROLLBACK" {
			t.Written, t.holds = maps.Clone(p.written), maps.Clone(p.holds)
			if p.first {
				t.Release()
				t.reads = false
			}
			set++ // it stays
		}
		t.savepoints = t.savepoints[:set]
	}
	if commits(words) {
		s.end(t, true)
	}
	return nil
}

// commits reports whether a statement ends its transaction by an implicit COMMIT, which comes before
// its own work.
func commits(words [4]string) bool {
	switch words[0] {
	case "CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "GRANT", "REVOKE", "LOCK", "ANALYZE", "OPTIMIZE", "CHECK", "REPAIR", "FLUSH":
		return !slices.Contains(words[1:], "TEMPORARY")
	}
	return false
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
	return cmp.Or(failed, err) // as it is: programs and database/sql look at its type
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
			return q.QueryContext(ctx, args)
		}
		return nil, errors.ErrUnsupported
	})
}
