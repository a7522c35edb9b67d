// Package guard wraps a driver.Connector of go-sql-driver/mysql so that every
// connection keeps book of its transaction: whether one is open, what ran in it,
// and whether the server has ended it behind the program's back.
//
// A server that answers 1213 (deadlock) has rolled the whole transaction back,
// but database/sql doesn't know: the next statement of the *sql.Tx commits by
// itself and survives Rollback. The driver is the only place that sees every
// statement and every error, those included that come while rows are read, so it
// is here that such a transaction is stopped. It knows nothing of locks: package
// txlock asks it, see Ask, and says by Rules what an error means.
package guard

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// Rules say what the server's replies mean for a transaction.
type Rules struct {
	// Ended returns why the transaction is over after this error of a
	// statement, or nil where it goes on.
	Ended func(err error, s Server) error
	// Lost returns the error of a transaction whose connection is gone.
	Lost func(cause error) error
	// Committed returns the error of a transaction that the named statement
	// has committed.
	Committed func(statement string) error
	// MayHaveCommitted returns the error of a transaction that was over after the named
	// statement, which may have committed it, and the server may have rolled it back.
	MayHaveCommitted func(statement string) error
	// RolledBack returns the error of a transaction that was over after the named
	// statement, which can't commit and was answered with success.
	RolledBack func(statement string) error
	// Unfenced returns the error of a transaction that has lost the lock of that
	// name to a savepoint; see Tx.Fence.
	Unfenced func(name string) error
	// Open tells from the reply to rawsql.Probe whether a transaction is open;
	// the error is one that says neither.
	Open func(reply error) (bool, error)
	// NoSavepoint tells whether this reply to RELEASE SAVEPOINT says that there is none.
	NoSavepoint func(reply error) bool
	// Kept is whatever the pool keeps for the scopes of its transactions.
	Kept any
	// Gone tells whether this reply to KILL says that there is no such session.
	Gone func(reply error) bool
}

// Wrap returns a connector whose connections are base's, guarded by the rules.
func Wrap(base driver.Connector, rules Rules) driver.Connector {
	return &connector{base: base, rules: rules}
}

// killPatience bounds how much later than its context a cancelled statement returns,
// which waits for the KILL of the session that it has left on the server. The KILL goes
// on behind it for killTimeout: the slower the server is, the more it is needed.
const (
	killPatience = time.Second
	killTimeout  = 30 * time.Second
)

type connector struct {
	base   driver.Connector
	rules  Rules
	galera atomic.Pointer[bool] // nil: nobody has asked yet
}

var (
	_ driver.Connector = (*connector)(nil)
	_ io.Closer        = (*connector)(nil)
)

// Connect opens a connection and asks the server once who it is.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	base, err := c.base.Connect(ctx)
	if err != nil {
		return nil, err
	}
	server, err := introduce(ctx, base)
	if err != nil {
		if closeErr := base.Close(); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
		return nil, err
	}
	sessions.Store(session{server.Name, server.Session}, struct{}{})
	return &conn{base: base, pool: c, server: server, status: statusOf(base), since: time.Now()}, nil
}

// sessions are those of the guarded connections of this process.
var sessions sync.Map

type session struct {
	server string
	id     uint64
}

// Guards tells whether a session is that of a guarded connection of this process.
func Guards(s Server) bool {
	_, guarded := sessions.Load(session{s.Name, s.Session})
	return guarded
}

// Driver returns the driver of the base, so that db.Driver() is what it was.
func (c *connector) Driver() driver.Driver { return c.base.Driver() }

// Close is called by sql.DB.Close.
func (c *connector) Close() error {
	if closer, ok := c.base.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// introduce reads the facts about the server behind a connection.
func introduce(ctx context.Context, base driver.Conn) (Server, error) {
	row, err := readRow(ctx, base, rawsql.Facts, 4)
	if err != nil {
		return Server{}, err
	}
	id, err := strconv.ParseUint(row[1], 10, 64)
	if err != nil {
		return Server{}, err
	}
	return NewServer(row[0], id, row[2] == "1", row[3]), nil
}

// readRow reads one row of a query of the guard's own.
func readRow(ctx context.Context, base driver.Conn, query string, columns int) (_ []string, err error) {
	queryer, ok := base.(driver.QueryerContext)
	if !ok {
		return nil, fmt.Errorf("%T is no driver.QueryerContext, go-sql-driver/mysql is needed", base)
	}
	rows, err := queryer.QueryContext(ctx, query, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := rows.Close(); err == nil {
			err = closeErr
		}
	}()
	values := make([]driver.Value, columns)
	if err := rows.Next(values); err != nil {
		return nil, err
	}
	row := make([]string, columns)
	for i, v := range values {
		row[i] = text(v)
	}
	return row, nil
}

// text returns a value of the text protocol as the server wrote it.
func text(v driver.Value) string {
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(v)
}

// kill ends the session of a connection that this process has lost: the server
// would keep its locks until the abandoned statement ends by itself, 50 s by
// default. A server that was started anew, or another one in its place, has ended
// it already, and may have given its number to somebody else.
func (c *connector) kill(lost *conn) error {
	killed, of, since := make(chan error, 1), lost.server, lost.since
	go func() { killed <- c.killSession(of, since) }()
	var err error
	select {
	case err = <-killed:
	case <-time.After(killPatience):
		err = fmt.Errorf("the server has not answered within %v, and is asked on", killPatience)
	}
	if err != nil {
		return fmt.Errorf("lockstep: end the abandoned session %d, which keeps its locks until its statement ends: %w", of.Session, err)
	}
	return nil
}

func (c *connector) killSession(lost Server, since time.Time) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	base, err := c.base.Connect(ctx)
	if err != nil {
		return err
	}
	killer := &conn{base: base}
	defer func() { err = errors.Join(err, base.Close()) }()
	server, err := introduce(ctx, base)
	if err != nil {
		return err
	}
	row, err := readRow(ctx, base, rawsql.Uptime, 2)
	if err != nil {
		return err
	}
	uptime, err := strconv.ParseInt(row[1], 10, 64)
	if err != nil {
		return err
	}
	if server.Name != lost.Name || time.Duration(uptime+1)*time.Second < time.Since(since) {
		return nil
	}
	if err := killer.exec(ctx, rawsql.Kill(lost.Session)); err != nil && !c.rules.Gone(err) {
		return err
	}
	return nil
}
