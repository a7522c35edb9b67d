// Package lockent runs a client of entgo.io/ent in a transaction with locks:
//
//	err := locksqlc.Run(ctx, db, Products.Keys(id), func(tx *sql.Tx) error {
//		client := ent.NewClient(ent.Driver(lockent.Driver(tx)))
//		...
//	})
//
// It works for the code that ent generates with any of its features. Don't close the client.
package lockent

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
)

// Driver returns a driver of ent that sends every statement in tx, which is one of
// go-sql-driver/mysql. The caller commits tx or rolls it back, as locksqlc.Run does.
//
// A transaction that ent or the program begins with the driver is a savepoint of tx:
// Commit releases it, and Rollback undoes what was done since. So each update, and each
// create with edges, costs two statements more than in a transaction of ent. BeginTx
// refuses options, since tx has begun. Driver panics if tx is nil.
func Driver(tx *sql.Tx) dialect.Driver {
	if tx == nil {
		panic("lockent: Driver needs a *sql.Tx, got nil")
	}
	return driver{entsql.Conn{ExecQuerier: tx}, new(int)}
}

// driver sends everything in one transaction.
type driver struct {
	entsql.Conn
	savepoints *int // how many there were, for their names
}

func (driver) Dialect() string { return dialect.MySQL }

// Close does nothing, since the transaction is the caller's.
func (driver) Close() error { return nil }

func (d driver) Tx(ctx context.Context) (dialect.Tx, error) {
	*d.savepoints++
	name := fmt.Sprintf("lockent_%d", *d.savepoints)
	if _, err := d.ExecContext(ctx, "SAVEPOINT "+name); err != nil {
		return nil, err
	}
	return &savepoint{driver: d, ctx: ctx, name: name}, nil
}

// BeginTx is what the client's BeginTx calls.
func (d driver) BeginTx(ctx context.Context, options *sql.TxOptions) (dialect.Tx, error) {
	if options != nil && *options != (sql.TxOptions{}) {
		return nil, errors.New("lockent: the transaction has begun, and takes no options; give them to locksqlc.Run or BeginTx")
	}
	return d.Tx(ctx)
}

// savepoint is a transaction in the transaction.
type savepoint struct {
	driver
	ctx   context.Context // that of Tx, which ent promises to use until the end
	name  string
	ended bool
}

// Commit rolls back if the context has ended, as that of a *sql.Tx does.
func (s *savepoint) Commit() error {
	if err := s.ctx.Err(); err != nil && !s.ended {
		return errors.Join(err, s.Rollback())
	}
	return s.end("RELEASE SAVEPOINT ")
}

func (s *savepoint) Rollback() error { return s.end("ROLLBACK TO SAVEPOINT ") }

// end sends the end also where the context has ended: tx may stay open.
func (s *savepoint) end(text string) error {
	if s.ended {
		return sql.ErrTxDone
	}
	s.ended = true
	_, err := s.driver.ExecContext(context.WithoutCancel(s.ctx), text+s.name)
	return err
}

func (s *savepoint) Exec(ctx context.Context, query string, args, v any) error {
	if s.ended {
		return sql.ErrTxDone
	}
	return s.driver.Exec(ctx, query, args, v)
}

func (s *savepoint) Query(ctx context.Context, query string, args, v any) error {
	if s.ended {
		return sql.ErrTxDone
	}
	return s.driver.Query(ctx, query, args, v)
}

func (s *savepoint) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if s.ended {
		return nil, sql.ErrTxDone
	}
	return s.driver.ExecContext(ctx, query, args...)
}

func (s *savepoint) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if s.ended {
		return nil, sql.ErrTxDone
	}
	return s.driver.QueryContext(ctx, query, args...)
}
