package schema

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// ErrProxy is returned when a proxy between the program and the server doesn't send all statements
// of one connection unchanged to one session of one server: because it multiplexes, splits reads,
// shares or pools sessions, caches or strips comments. Locks, or some of their features, don't
// work through it.
var ErrProxy = session.ErrProxy

// proxy finds a proxy that does with statements what a lock doesn't survive. It asks for
// the session and for an identifier that no server gives twice, outside of a transaction and in
// one, in plain reads and in one that locks.
func (c *checking) proxy(ctx context.Context) (problem, err error) {
	var asked witness
	readAll := func() error {
		return asked.ask(ctx, c.conn, readFacts, &c.slept, &c.moved)
	}
	if err := readAll(); err != nil {
		return nil, fmt.Errorf("schema: read the server: %w", err)
	}
	if err := asked.inTransaction(ctx, c.conn); lost(ctx, err) {
		return nil, fmt.Errorf("schema: detect a proxy: %w", err)
	} else if err != nil {
		return fmt.Errorf("%w: a transaction that does nothing has failed: %w", ErrProxy, err), nil
	}
	if err := readAll(); err != nil {
		return nil, fmt.Errorf("schema: detect a proxy: %w", err)
	}
	engine := rawsql.EngineOf(c.version)
	found := asked.problem(engine)
	if engine.Compound {
		return found, nil
	}
	found = errors.Join(found, checkHints(ctx, c.conn))
	sharing, err := checkSharing(ctx, c.conn)
	return errors.Join(found, sharing), err
}

// plainRead asks for the session, and for an identifier that is never given again.
const plainRead = "SELECT CONNECTION_ID(), UUID()"

// witness has what was answered.
type witness struct {
	sessions []uint64
	ids      []string
}

// ask sends a query that begins as plainRead does.
func (w *witness) ask(ctx context.Context, db Queryer, query string, more ...any) error {
	var session uint64
	var id string
	if err := db.QueryRowContext(ctx, query).Scan(append([]any{&session, &id}, more...)...); err != nil {
		return err
	}
	w.sessions, w.ids = append(w.sessions, session), append(w.ids, id)
	return nil
}

// inTransaction asks in a transaction, which has a savepoint that must stay.
func (w *witness) inTransaction(ctx context.Context, conn *sql.Conn) error {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing was done in it
	if _, err := tx.ExecContext(ctx, "SAVEPOINT lockstep_check"); err != nil {
		return err
	}
	for _, query := range []string{plainRead, plainRead + " FOR UPDATE"} {
		if err := w.ask(ctx, tx, query); err != nil {
			return err
		}
	}
	_, err = tx.ExecContext(ctx, "RELEASE SAVEPOINT lockstep_check")
	return err
}

// problem says what is wrong with the answers. Those of a gateway come from the sessions that it has.
func (w *witness) problem(engine rawsql.Engine) error {
	seen := make(map[string]bool)
	for i, session := range w.sessions {
		switch {
		case seen[w.ids[i]]:
			return fmt.Errorf("%w: reads are answered from a cache: switch that off, or leave what reads under locks out of it", ErrProxy)
		case session != w.sessions[0] && !engine.Gateway:
			return fmt.Errorf("%w: the statements of one connection reach several sessions, of one server or of several: switch off multiplexing, read/write splitting and pooling for this user", ErrProxy)
		}
		seen[w.ids[i]] = true
	}
	return nil
}

// checkHints finds out whether a hint reaches MySQL.
func checkHints(ctx context.Context, conn *sql.Conn) error {
	var ignored bool
	err := conn.QueryRowContext(ctx, "SELECT /*+ SET_VAR(max_execution_time=86400000) */ @@max_execution_time <> 86400000").Scan(&ignored)
	if err == nil && ignored {
		return session.ErrComments
	}
	return nil
}

// checkSharing finds a MySQL Router that gives sessions to other clients between transactions, by
// an order that it takes for itself then, and that changes nothing. To a server it is no SQL.
func checkSharing(ctx context.Context, conn *sql.Conn) (problem, err error) {
	_, err = conn.ExecContext(ctx, "ROUTER SET trace = 0")
	switch {
	case lost(ctx, err):
		return nil, fmt.Errorf("schema: detect a proxy: %w", err)
	case err != nil:
		return nil, nil
	}
	return fmt.Errorf("%w: MySQL Router gives sessions to other clients between transactions, and a wait that is cancelled may end theirs: set connection_sharing=0", ErrProxy), nil
}

// lost reports whether this is an error of the connection or of the context.
func lost(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn))
}

// closed leaves out that a connection is gone, which others tell.
func closed(err error) error {
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		return nil
	}
	return err
}
