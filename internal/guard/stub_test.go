package guard

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// stub is a base that answers from a table and notes what it is sent. Its connections have the optional interfaces, or have none.
type stub struct {
	empty     bool             // all statements but the guard's first have no columns
	lean      bool             // the connections lack every optional interface
	uptime    int              // what the server says
	moved     string           // the name of the server of all connections but the first, if it is another
	elsewhere string           // the name that the session of the first connection has, if it has moved
	cutShort  int              // how many answers about the session were cut short by KILL QUERY
	galera    string           // wsrep_on, "" for a server that has no such variable
	answers   map[string]error // to a statement, and to "connect", "close", "row", "rows close"

	raised driver.Value // the reply to a statement that commits, nil for none

	view string // the view of a Group Replication, "" for a server that is in none

	before func(text string) // called with what is about to be executed

	mu     sync.Mutex
	sent   []string
	opened int
}

func (s *stub) Connect(context.Context) (driver.Conn, error) {
	if err := s.answer("connect"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.opened++
	id := s.opened
	s.mu.Unlock()
	if s.lean {
		return &leanConn{stub: s, id: id}, nil
	}
	return &stubConn{leanConn{stub: s, id: id}}, nil
}

func (s *stub) Driver() driver.Driver { return &mysql.MySQLDriver{} }

func (s *stub) Close() error { return s.answer("close") }

// answer notes what was sent and returns the error for it.
func (s *stub) answer(text string) error {
	if s.before != nil {
		s.before(text)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, text)
	return s.answers[text]
}

// will sets the answer to a statement from now on.
func (s *stub) will(text string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[text] = err
}

func (s *stub) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.sent, text)
}

func (s *stub) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

// leanConn has what every connection must have, and QueryContext, which the guard needs.
type leanConn struct {
	*stub
	id   int
	dead bool
}

func (c *leanConn) Close() error { return c.answer(fmt.Sprintf("close %d", c.id)) }

func (c *leanConn) Begin() (driver.Tx, error) { return stubTx{c.stub}, c.answer("begin") }

func (c *leanConn) Prepare(query string) (driver.Stmt, error) {
	if err := c.answer("prepare " + query); err != nil {
		return nil, err
	}
	return leanStmt{c, query}, nil
}

func (c *leanConn) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.answer(query); err != nil {
		return nil, err
	}
	if len(args) > 0 {
		return nil, driver.ErrSkip
	}
	rows := &leanRows{stub: c.stub, row: make([]driver.Value, 4)}
	if c.empty {
		rows.row, rows.read = nil, true
	}
	switch {
	case query == rawsql.Uptime:
		rows.row = []driver.Value{[]byte("Uptime"), fmt.Appendf(nil, "%d", c.uptime)}
	case query == rawsql.Galera:
		rows.row, rows.read = []driver.Value{[]byte("wsrep_on"), []byte(c.galera)}, c.galera == ""
	case query == rawsql.GroupView:
		rows.row, rows.read = []driver.Value{[]byte(c.view)}, c.view == ""
	case query == rawsql.Facts:
		rows.row, rows.read = c.facts(), false
	case strings.Contains(query, "THEN COMMIT"):
		rows.row, rows.read = []driver.Value{c.raised}, c.raised == nil
	}
	return rows, nil
}

// facts answers the question about the session.
func (c *leanConn) facts() []driver.Value {
	c.mu.Lock()
	defer c.mu.Unlock()
	row := session.Reply("10.11.8-MariaDB", "host/3306/shop")
	row[1] = int64(c.id)
	if c.moved != "" && c.id > 1 {
		row[3] = []byte(c.moved)
	}
	if c.elsewhere != "" && c.id == 1 {
		row[3] = c.elsewhere
	}
	if c.cutShort > 0 {
		c.cutShort--
		row[5] = strings.Replace(row[5].(string), "sees_own_id=1", "sees_own_id=0", 1)
	}
	return row
}

// stubConn is a connection with every interface of go-sql-driver's.
type stubConn struct{ leanConn }

func (c *stubConn) BeginTx(_ context.Context, o driver.TxOptions) (driver.Tx, error) {
	return stubTx{c.stub}, c.answer(fmt.Sprintf("begin %d %t", o.Isolation, o.ReadOnly))
}

func (c *stubConn) PrepareContext(_ context.Context, query string) (driver.Stmt, error) {
	return c.Prepare(query)
}

func (c *stubConn) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if len(args) > 0 {
		return nil, driver.ErrSkip
	}
	err := c.answer(query)
	if errors.Is(err, errDead) {
		c.dead = true
	}
	return driver.RowsAffected(1), err
}

func (c *stubConn) Ping(context.Context) error               { return c.answer("ping") }
func (c *stubConn) ResetSession(context.Context) error       { return c.answer("reset") }
func (c *stubConn) IsValid() bool                            { return !c.dead }
func (c *stubConn) CheckNamedValue(*driver.NamedValue) error { return c.answer("check") }

// errDead kills the connection.
var errDead = errors.New("the connection is dead")

type stubTx struct{ *stub }

func (t stubTx) Commit() error   { return t.answer("commit") }
func (t stubTx) Rollback() error { return t.answer("rollback") }

// leanStmt is a statement for database/sql before Go 1.8.
type leanStmt struct {
	*leanConn
	query string
}

func (s leanStmt) Close() error  { return s.answer("close " + s.query) }
func (s leanStmt) NumInput() int { return 1 }

func (s leanStmt) Exec(args []driver.Value) (driver.Result, error) {
	return driver.RowsAffected(len(args)), s.answer(fmt.Sprint("execute ", s.query, args))
}

func (s leanStmt) Query(args []driver.Value) (driver.Rows, error) {
	return &leanRows{stub: s.stub, row: make([]driver.Value, 4)}, s.answer(fmt.Sprint("execute ", s.query, args))
}

// leanRows are one row.
type leanRows struct {
	*stub
	row  []driver.Value
	read bool
}

func (r *leanRows) Columns() []string { return make([]string, len(r.row)) }
func (r *leanRows) Close() error      { return r.answer("rows close") }

func (r *leanRows) Next(dest []driver.Value) error {
	if err := r.answer("row"); err != nil {
		return err
	}
	if r.read {
		return io.EOF
	}
	r.read = true
	copy(dest, r.row)
	return nil
}
