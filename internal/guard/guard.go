package guard

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// Options are those of a pool.
type Options struct {
	// Value is what package txlock keeps with the pool; see TxState.Value.
	Value any
	// PrepareAtOnce: a lock statement that begins a transaction is prepared at its first use.
	// It is for tests.
	PrepareAtOnce bool
}

// Wrap returns a connector whose connections are base's, guarded.
func Wrap(base driver.Connector, options Options) driver.Connector {
	return &connector{base: base, options: options}
}

// A cancelled statement waits for the KILL of its session at most for killPatience after
// the end of its context. Then it returns, and the KILL goes on in the background until
// killTimeout: the slower the server is, the more it is needed.
const (
	killPatience = time.Second
	killTimeout  = 30 * time.Second
)

type connector struct {
	base    driver.Connector
	options Options
	galera  atomic.Pointer[bool]   // nil: nobody has asked yet
	view    atomic.Pointer[string] // of a Group Replication, likewise

	noProcedures atomic.Bool
	prepares     atomic.Bool // its driver writes no arguments into texts
	interpolates atomic.Bool // its driver has written some
}

var (
	_ driver.Connector = (*connector)(nil)
	_ io.Closer        = (*connector)(nil)
)

// Connect opens a connection and reads the facts about its server once.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	base, err := c.base.Connect(ctx)
	if err != nil {
		return nil, err
	}
	var facts session.Facts
	if err = ErrRejects; !rejectsReadOnly(base) {
		facts, err = introduce(ctx, base, true)
	}
	if err != nil {
		if closeErr := base.Close(); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
		if errors.Is(err, mysql.ErrInvalidConn) { // the program has sent nothing: database/sql opens another
			err = fmt.Errorf("%w: %w", driver.ErrBadConn, err)
		}
		return nil, err
	}
	server := session.NewServer(facts)
	if !server.Gateway {
		sessions.Store(opened{server.Name, server.Session}, struct{}{})
	}
	return &conn{base: base, pool: c, server: server, facts: facts, unfitAtFirst: facts.Unfit != nil, status: statusOf(base), since: time.Now()}, nil
}

// sessions holds the sessions of this process's guarded connections.
var sessions sync.Map

type opened struct {
	server string
	id     uint64
}

// Guards reports whether a session is that of a guarded connection of this process.
func Guards(s session.Server) bool {
	_, guarded := sessions.Load(opened{s.Name, s.Session})
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

// introduce reads the facts about the session of a connection and its server.
// A session that seems unfit is asked twice: KILL QUERY may have cut the answer short. On a new one
// the first statement of its engine comes before what else is asked.
func introduce(ctx context.Context, base driver.Conn, fresh bool) (facts session.Facts, err error) {
	for range 2 {
		row, err := readRow(ctx, base, rawsql.Facts, session.Columns)
		if err != nil {
			return session.Facts{}, session.NotUnderstood(err)
		}
		facts, err = session.Read([session.Columns]string(row))
		if first := rawsql.EngineOf(facts.Version).Prepare; err == nil && fresh && first != "" {
			err = (&conn{base: base}).exec(ctx, first)
		}
		if err == nil && facts.Question() != "" {
			if row, err = readRow(ctx, base, facts.Question(), 1); err == nil {
				facts = facts.Answered(row[0], true)
			}
		}
		if err != nil || facts.Unfit == nil {
			return facts, err
		}
	}
	return facts, nil
}

// readRow reads one row of a query of the guard's own.
func readRow(ctx context.Context, base driver.Conn, query string, columns int) (_ []string, err error) {
	queryer, ok := base.(driver.QueryerContext)
	if !ok {
		return nil, fmt.Errorf("%T does not implement driver.QueryerContext; use go-sql-driver/mysql", base)
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
	if n := len(rows.Columns()); n != columns && n > 0 {
		return nil, fault.UnknownReply(query, fmt.Sprintf("%d columns", n))
	}
	if err := rows.Next(values); errors.Is(err, io.EOF) {
		return nil, sql.ErrNoRows
	} else if err != nil {
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

// kill ends the session of a connection that this process has lost: otherwise the server
// keeps its locks until the abandoned statement ends, 50 s by default. It kills nothing
// if the server was restarted or replaced since the connection was opened: the session is
// gone then, and its number may belong to somebody else. A gateway knows the session by another
// number, and ends it itself.
func (c *connector) kill(lost *conn) error {
	if lost.server.Gateway {
		return nil
	}
	killed, of, since := make(chan error, 1), lost.server, lost.since
	go func() { killed <- c.killSession(of, since) }()
	var err error
	select {
	case err = <-killed:
	case <-time.After(killPatience):
		err = fmt.Errorf("the server has not answered within %v; lockstep retries", killPatience)
	}
	if err != nil {
		return fmt.Errorf("lockstep: end the abandoned session %d, which keeps its locks until its statement ends: %w", of.Session, err)
	}
	return nil
}

func (c *connector) killSession(lost session.Server, since time.Time) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	base, err := c.base.Connect(ctx)
	if err != nil {
		return err
	}
	killer := &conn{base: base}
	defer func() { err = errors.Join(err, base.Close()) }()
	facts, err := introduce(ctx, base, false)
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
	if facts.Name != lost.Name || time.Duration(uptime+1)*time.Second < time.Since(since) {
		return nil
	}
	if err := killer.exec(ctx, rawsql.Kill(lost.Session)); err != nil && !fault.NoSession(err) {
		return err
	}
	return nil
}
