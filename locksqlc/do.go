package locksqlc

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/joined"
	"github.com/dca00107/lockstep/txlock"
)

// How Do looks after its connection: the socket often, which costs no round trip,
// and the server by a ping, which also keeps an idle session alive.
const (
	socketCheck = 50 * time.Millisecond
	serverCheck = time.Second
)

// Do holds the lock of a key while fn runs, in a transaction of its own on a
// connection of its own that fn doesn't see: for work that is no transaction, in
// any number of databases and systems. When the connection is lost, and the lock
// with it, the context of fn ends with ErrLost as its cause (context.Cause): within
// 50 ms where the server has closed it, within two seconds where it is silent.
//
// A program that stops between a look at the context and a write may write after
// the lock was lost; what must not be overtaken belongs into a transaction that
// holds the lock itself: Run. Do returns the error of fn, ErrLost where the lock
// was lost before fn returned, and what Lock returns. The lock is given back when
// fn has returned, or has panicked, also when the context has ended before. On a
// cluster of several primaries, where locks exclude when they are committed, it returns
// schema.ErrMultiPrimary: use a lease.
//
// Every call keeps a connection of the pool, while it waits too. Where fn needs
// one of the same pool, as many calls at once as MaxOpenConns allows would leave
// it none: give Do a pool of its own, or bound the calls.
func Do(ctx context.Context, db *sql.DB, key txlock.Key, fn func(ctx context.Context) error) (err error) {
	if db == nil {
		return errors.New("locksqlc: Do needs a *sql.DB, got nil")
	}
	if fn == nil {
		return errors.New("locksqlc: Do needs a function, got nil")
	}
	if err := key.Validate(); err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("locksqlc: get a connection: %w", err)
	}
	defer func() { err = joined.Errors(err, unlessGone(conn.Close())) }()
	if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
		return fmt.Errorf("locksqlc: begin: %w", err)
	}
	held := false
	defer func() {
		failed := giveBack(ctx, conn)
		switch {
		case failed == nil, errors.Is(err, txlock.ErrLost):
		case held:
			err = errors.Join(fmt.Errorf("%w: it could not be given back: %w", txlock.ErrLost, failed), err)
		default:
			err = joined.Errors(err, unlessGone(failed))
		}
	}()
	scope, err := JoinConn(ctx, conn, txlock.NothingRead())
	if err != nil {
		return err
	}
	if err := inner.OnePrimary(ctx, scope); err != nil {
		return fmt.Errorf("locksqlc: Do(%q): use a lease: %w", key, err)
	}
	if _, err := scope.Lock(ctx, key); err != nil {
		return err
	}
	held = true
	working, stop := context.WithCancelCause(ctx)
	watched := make(chan error, 1)
	go func() { watched <- watch(working, conn, stop) }()
	defer func() {
		stop(nil)
		if lost := <-watched; lost != nil {
			err = joined.Errors(lost, err)
		}
	}()
	return fn(working)
}

// giveBack ends the transaction. It commits the raised token, so that whoever
// locks next with an older snapshot is told. Where that fails the connection is
// thrown away, and the lock with it, if it wasn't lost before.
func giveBack(ctx context.Context, conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*serverCheck)
	defer cancel()
	_, err := conn.ExecContext(ctx, "COMMIT")
	if err == nil || errors.Is(err, txlock.ErrTxDoomed) {
		return nil // doomed: the caller has the reason from Lock or from the watch
	}
	discard := conn.Raw(func(any) error { return driver.ErrBadConn })
	return errors.Join(unanswered(ctx, err), unlessGone(discard))
}

// unanswered is the error of a statement under a limit of Do's own, whose end is
// not to be taken for that of the caller's context.
func unanswered(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("no answer from the server in time: %v", err) //nolint:errorlint // see above
	}
	return err
}

// watch looks after the connection until the context ends, and ends it with
// ErrLost where the connection is gone. It returns that error.
func watch(ctx context.Context, conn *sql.Conn, stop context.CancelCauseFunc) error {
	tick := time.NewTicker(socketCheck)
	defer tick.Stop()
	pinged := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := checkSocket(conn)
		if err == nil && time.Since(pinged) >= serverCheck {
			err, pinged = ping(conn), time.Now()
		}
		if err != nil {
			lost := fmt.Errorf("%w: the connection that held it is gone: %w", txlock.ErrLost, err)
			stop(lost)
			return lost
		}
	}
}

// checkSocket asks the driver whether the connection was closed from outside,
// which is what it does before a connection leaves the pool.
func checkSocket(conn *sql.Conn) error {
	return conn.Raw(func(driverConn any) error {
		resetter, ok := driverConn.(driver.SessionResetter)
		if !ok {
			return nil // then the ping alone tells
		}
		return resetter.ResetSession(context.Background())
	})
}

// ping asks the server, which must answer within a second.
func ping(conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), serverCheck)
	defer cancel()
	return unanswered(ctx, conn.PingContext(ctx))
}

// unlessGone drops what ending a connection says that is gone already.
func unlessGone(err error) error {
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		return nil
	}
	return err
}
