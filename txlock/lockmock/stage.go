package lockmock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"reflect"
	"sync"

	"github.com/dca00107/lockstep/txlock"
)

// stage is a driver on which the library itself rehearses a call. What it sends there
// is noted, and then expected by the mock: so expectations can't drift from what the
// library sends.
type stage struct {
	// answer is what a statement is answered.
	answer func(query string, args []driver.Value) reply

	mu    sync.Mutex
	notes []note
}

// note is a statement that was sent, and its answer.
type note struct {
	verb  verb
	query string
	args  []driver.Value
	reply reply
}

type verb int

const (
	prepare verb = iota
	query
	exec
)

// reply is an error, rows or the identifier of an INSERT.
type reply struct {
	err     error
	columns []string
	rows    [][]driver.Value
	id      int64
	// affected is how many rows a statement of several has changed; others change one.
	affected int64
}

// row is the reply of one row.
func row(values ...driver.Value) reply {
	r := reply{rows: [][]driver.Value{values}}
	for i := range values {
		r.columns = append(r.columns, fmt.Sprintf("c%d", i))
	}
	return r
}

// rowLike is the reply of one row that sqlc reads into a struct: its fields are the
// columns.
func rowLike(fields any) reply {
	v := reflect.ValueOf(fields)
	values := make([]driver.Value, v.NumField())
	for i := range values {
		switch field := v.Field(i).Interface().(type) {
		case uint64:
			values[i] = int64(field)
		default:
			values[i] = field
		}
	}
	return row(values...)
}

// take returns the notes and begins anew.
func (s *stage) take() []note {
	s.mu.Lock()
	defer s.mu.Unlock()
	notes := s.notes
	s.notes = nil
	return notes
}

func (s *stage) send(v verb, query string, named []driver.NamedValue) reply {
	args := make([]driver.Value, len(named))
	for i, arg := range named {
		args[i] = arg.Value
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var r reply
	if v != prepare {
		r = s.answer(query, args)
	}
	s.notes = append(s.notes, note{v, query, args, r})
	return r
}

// transaction opens a connection to the stage that counts as a transaction. It needs
// no closing: nothing is open behind it.
func (s *stage) transaction() (txlock.Tx, error) {
	db := sql.OpenDB(s)
	conn, err := db.Conn(context.Background())
	if err != nil {
		return nil, err
	}
	return stageTx{conn}, db.Close() // which ends its goroutine, and leaves the connection
}

type stageTx struct{ *sql.Conn }

func (stageTx) Commit() error   { return nil }
func (stageTx) Rollback() error { return nil }

func (s *stage) Connect(context.Context) (driver.Conn, error) { return stageConn{s}, nil }
func (s *stage) Driver() driver.Driver                        { return s }
func (s *stage) Open(string) (driver.Conn, error)             { return stageConn{s}, nil }

type stageConn struct{ stage *stage }

func (c stageConn) Close() error              { return nil }
func (c stageConn) Begin() (driver.Tx, error) { return stageEnd{}, nil }
func (c stageConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return stageEnd{}, nil
}

type stageEnd struct{}

func (stageEnd) Commit() error   { return nil }
func (stageEnd) Rollback() error { return nil }

func (c stageConn) Prepare(query string) (driver.Stmt, error) {
	r := c.stage.send(prepare, query, nil)
	return stageStmt{c, query}, r.err
}

func (c stageConn) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	r := c.stage.send(exec, query, args)
	return stageResult(r), r.err
}

func (c stageConn) QueryContext(_ context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	r := c.stage.send(query, text, args)
	return &stageRows{r}, r.err
}

type stageResult reply

func (r stageResult) LastInsertId() (int64, error) { return r.id, nil }
func (r stageResult) RowsAffected() (int64, error) { return max(1, r.affected), nil }

type stageRows struct{ reply }

func (r *stageRows) Columns() []string { return r.columns }
func (r *stageRows) Close() error      { return nil }
func (r *stageRows) Next(into []driver.Value) error {
	if len(r.rows) == 0 {
		return io.EOF
	}
	copy(into, r.rows[0])
	r.rows = r.rows[1:]
	return nil
}

// stageStmt is a prepared statement. database/sql calls the methods with a context.
type stageStmt struct {
	stageConn
	query string
}

func (s stageStmt) NumInput() int { return -1 }
func (s stageStmt) Exec([]driver.Value) (driver.Result, error) {
	return nil, driver.ErrSkip
}
func (s stageStmt) Query([]driver.Value) (driver.Rows, error) { return nil, driver.ErrSkip }
func (s stageStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.stageConn.ExecContext(ctx, s.query, args)
}
func (s stageStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.stageConn.QueryContext(ctx, s.query, args)
}
