package locksqlc

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// How often Do checks its connection: the socket often, which costs no round trip, and
// the server by a ping, which also keeps an idle session alive.
const (
	socketCheck = 50 * time.Millisecond
	serverCheck = time.Second
)

// Do holds the lock of a key while fn runs, in a transaction of its own on a connection that fn
// doesn't see. It is for work that isn't a transaction, in any number of databases and systems.
// The Do of a lease.Manager is for the same work: its lease keeps no connection, survives a lost
// one, and is free only after its TTL if the program crashes.
//
// When the connection is lost, and the lock with it, the context of fn ends with ErrLost as
// its cause (context.Cause): within 50 ms if the server has closed the connection, within
// two seconds if the server is silent.
//
// A program may check the context, be paused, and write after the lock was lost. Put writes that
// must never be late in a transaction that holds the lock itself: use Run. Do returns the error of
// fn, ErrLost if the lock was lost before fn returned, and the errors of Lock. It releases the
// lock when fn has returned or panicked, even if the context has ended before. On a multi-primary
// cluster, where locks exclude only at the commit, it returns schema.ErrMultiPrimary: use a lease.
//
// On a guarded pool it has two round trips, the lock and the release, if the server accepts BEGIN
// and a lock together. Every call keeps a connection of the pool, also while it waits. If fn needs
// a connection of the same pool, then MaxOpenConns calls at once leave it none: give Do a pool of
// its own, or limit the number of calls.
func Do(ctx context.Context, db *sql.DB, key txlock.Key, fn func(ctx context.Context) error) error {
	return do(ctx, "Do", db, key, fn, (*txlock.Scope).Lock)
}

// TryDo is Do without waiting for the lock: if another transaction holds it, TryDo returns
// txlock.ErrBusy at once, as TryLock does, and doesn't call fn.
func TryDo(ctx context.Context, db *sql.DB, key txlock.Key, fn func(ctx context.Context) error) error {
	return do(ctx, "TryDo", db, key, fn, (*txlock.Scope).TryLock)
}

// do holds the lock that it takes in the given way while fn runs.
func do(ctx context.Context, name string, db *sql.DB, key txlock.Key, fn func(ctx context.Context) error, lock func(*txlock.Scope, context.Context, txlock.Key) (txlock.Grant, error)) (err error) {
	if ctx == nil {
		return fmt.Errorf("locksqlc: %s needs a context, got nil", name)
	}
	if db == nil {
		return fmt.Errorf("locksqlc: %s needs a *sql.DB, got nil", name)
	}
	if fn == nil {
		return fmt.Errorf("locksqlc: %s needs a function, got nil", name)
	}
	if err := key.Validate(); err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("locksqlc: get a connection: %w", err)
	}
	defer func() { err = fault.Join(err, fault.UnlessGone(conn.Close())) }()
	tx, err := holdOn(ctx, conn)
	if err != nil {
		return fmt.Errorf("locksqlc: begin: %w", err)
	}
	held := false
	defer func() {
		failed := tx.release(ctx)
		switch {
		case failed == nil, errors.Is(err, txlock.ErrLost):
		case !held && errors.Is(failed, txlock.ErrTxDoomed): // err says why
		case held:
			err = errors.Join(fmt.Errorf("%w: it could not be released: %w", txlock.ErrLost, failed), err)
		default:
			err = fault.Join(err, fault.UnlessGone(failed))
		}
	}()
	scope, err := tx.join(ctx)
	if err != nil {
		return err
	}
	over := inner.Runs(scope)
	defer over()
	if err := inner.OnePrimary(ctx, scope); err != nil {
		if errors.Is(err, schema.ErrMultiPrimary) {
			err = fmt.Errorf("use a lease: %w", err)
		}
		return fmt.Errorf("locksqlc: %s(%q): %w", name, key, err)
	}
	if _, err := lock(scope, ctx, key); err != nil {
		return err
	}
	held = true
	working, stop := context.WithCancelCause(ctx)
	watched := make(chan error, 1)
	go func() {
		watched <- watch(working, conn, func(lost error) {
			over() // fn may take the lock elsewhere
			stop(lost)
		})
	}()
	defer func() {
		stop(nil)
		if lost := <-watched; lost != nil {
			err = fault.Join(lost, err)
		}
	}()
	return fn(working)
}

// unanswered replaces the error of a statement that has exceeded a limit of Do's own:
// nobody may take that for the end of the caller's context.
func unanswered(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("no answer from the server in time: %v", err) //nolint:errorlint // see above
	}
	return err
}

// watch checks the connection until the context ends. If the connection is gone, it ends
// the context with ErrLost, and returns that error.
func watch(ctx context.Context, conn *sql.Conn, stop func(lost error)) error {
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

// checkSocket asks the driver whether the server has closed the connection, as
// database/sql does before it reuses one.
func checkSocket(conn *sql.Conn) error {
	return raw(conn, func(driverConn any) error {
		resetter, ok := driverConn.(driver.SessionResetter)
		if !ok {
			return nil // then only the ping tells
		}
		return resetter.ResetSession(context.Background())
	})
}

// ping sends a ping, which the server must answer within a second.
func ping(conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), serverCheck)
	defer cancel()
	return raw(conn, func(driverConn any) error {
		pinger, ok := driverConn.(driver.Pinger)
		if !ok {
			return nil
		}
		return unanswered(ctx, pinger.Ping(ctx))
	})
}

// raw does what Conn.Raw does, but leaves a connection that is bad to its transaction: to
// close it, database/sql would wait for the end of that.
func raw(conn *sql.Conn, f func(driverConn any) error) (err error) {
	rawErr := conn.Raw(func(driverConn any) error {
		err = f(driverConn)
		return nil
	})
	return errors.Join(err, rawErr)
}
