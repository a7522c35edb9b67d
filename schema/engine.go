package schema

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// checkEngine returns ErrEngine for a server that doesn't answer its replies to locks and
// leases as MySQL and MariaDB do.
func checkEngine(ctx context.Context, db *sql.DB) error {
	facts, err := askSession(ctx, db)
	if err == nil && errors.Is(facts.Unfit, ErrEngine) {
		err = facts.Unfit
	}
	return err
}

func askSession(ctx context.Context, db Queryer) (session.Facts, error) {
	facts, err := session.AskAll(ctx, db)
	if err != nil {
		err = fmt.Errorf("schema: read the session: %w", err)
	}
	return facts, err
}

// checkTransactions returns ErrEngine for a server whose transactions are not those that
// locks rely on: whether one is open must show in the reply to a question, outside of it and
// in it, and its snapshot must begin when those of its engine do. The latter takes two connections,
// and a server where this user may write. Of a gateway only guarded connections see whether one is
// open.
func checkTransactions(ctx context.Context, db *sql.DB, reader *sql.Conn, engine rawsql.Engine) error {
	level := sql.LevelRepeatableRead
	if engine.Gateway {
		level = sql.LevelDefault // another would stay
	}
	outside := openIn(ctx, reader, engine)
	tx, err := reader.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return fmt.Errorf("schema: probe transactions: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // nothing was done in it
	inside := openIn(ctx, tx, engine)
	if lost(ctx, outside) || lost(ctx, inside) {
		return fmt.Errorf("schema: probe transactions: %w", errors.Join(outside, inside))
	}
	var refused *mysql.MySQLError
	if outside != nil || !engine.Gateway && !errors.Is(inside, errOpen) && (!errors.As(inside, &refused) || refused.Number != 1568) { // ER_CANT_CHANGE_TX_CHARACTERISTICS
		return fmt.Errorf("%w: %s returns %w outside of a transaction, and %w in one", ErrEngine, map[bool]string{true: "SET TRANSACTION", false: engine.Began}[engine.Began == ""], answer(outside), answer(inside))
	}
	if db.Stats().MaxOpenConnections == 1 {
		return nil
	}
	return checkSnapshot(ctx, db, tx, engine)
}

// errOpen is the answer of openIn where Engine.Began reads that a transaction has begun.
var errOpen = errors.New("that one has begun")

// openIn asks whether a transaction is open. The error says that one is, or what went wrong.
func openIn(ctx context.Context, db interface {
	Queryer
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, engine rawsql.Engine) error {
	if engine.Began == "" {
		_, err := db.ExecContext(ctx, rawsql.Probe)
		return err
	}
	var began uint64
	err := db.QueryRowContext(ctx, engine.Began).Scan(&began)
	if err == nil && began > 0 {
		return errOpen
	}
	return err
}

// answer is the error of a statement, or that it had none.
func answer(err error) error {
	if err == nil {
		return errors.New("success")
	}
	return err
}

// snapshotPatience is for how long checkSnapshot waits for a second connection.
const snapshotPatience = 2 * time.Second

// checkSnapshot returns ErrEngine if a transaction that is open, but has read nothing, doesn't
// see what another one has committed since, or, where its snapshot should begin with BEGIN, does. What can't be found out is no problem: that there
// is no connection left, that it goes to another server, or that this user may not write now.
func checkSnapshot(ctx context.Context, db *sql.DB, tx *sql.Tx, engine rawsql.Engine) error {
	limited, cancel := context.WithTimeout(ctx, snapshotPatience)
	defer cancel()
	writer, err := db.Conn(limited)
	if err != nil {
		return ctx.Err()
	}
	defer func() {
		_ = writer.Raw(func(any) error { return driver.ErrBadConn }) // since its limit was changed
		_ = writer.Close()
	}()
	seen, err := snapshotSees(ctx, writer, tx)
	switch {
	case lost(ctx, err):
		return fmt.Errorf("schema: probe snapshots: %w", err)
	case err == nil && seen == engine.SnapshotAtBegin:
		return fmt.Errorf("%w: the snapshot of a transaction doesn't begin when those of %s do: a transaction that has read nothing sees what was committed after its BEGIN: %t", ErrEngine, engine.Name, seen)
	}
	return nil
}

// errApart is the error of snapshotSees for connections to two servers, of which one may be late.
var errApart = errors.New("the connections of the pool go to several servers")

// snapshotSees inserts a row by the writer, and reports whether the transaction sees it. The name
// of the row is no valid key.
func snapshotSees(ctx context.Context, writer *sql.Conn, tx *sql.Tx) (seen bool, err error) {
	const server = "SELECT CONCAT_WS('/', @@hostname, @@port)"
	name := []byte("\xFFlockstep:check:" + rand.Text())
	var here, there string
	if err := tx.QueryRowContext(ctx, server).Scan(&here); err != nil {
		return false, err
	}
	if err := writer.QueryRowContext(ctx, server).Scan(&there); err != nil {
		return false, err
	}
	if here != there {
		return false, errApart
	}
	if _, err := writer.ExecContext(ctx, "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
		return false, err
	}
	if _, err := writer.ExecContext(ctx, "INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us) VALUES (?, 0, '-', 0, 0)", name); err != nil {
		return false, err
	}
	defer func() {
		_, deleted := writer.ExecContext(context.WithoutCancel(ctx), "DELETE FROM lockstep_locks WHERE name = ?", name)
		err = errors.Join(err, deleted)
	}()
	err = tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM lockstep_locks WHERE name = ?", name).Scan(&seen)
	return seen, err
}
