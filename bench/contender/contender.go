// Package contender has the ways of locking that are measured. Each is one file; All
// lists them.
package contender

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
)

// TTL is that of all locks with a time to live.
const TTL = 30 * time.Second

// Stock is the table of the business: one row for each key.
const Stock = "bench_stock"

// Place is where a contender works: a database, and a Redis, over one link.
type Place struct {
	Engine string
	DSN    string
	Redis  string // the address, empty where there is none
	Conns  int    // how many connections are kept open
	Keys   int64  // keys 1 to Keys are used

	// RenewEvery is the interval at which who renews by itself does that; the default is
	// its own.
	RenewEvery time.Duration
}

// Maker makes a contender. Those of its functions that the contender can't do are nil.
type Maker struct {
	Name  string
	About string   // what it sends, for the page
	DDL   []string // its own tables
	Redis bool     // it needs one
	Base  string   // what its transaction is compared with, where that is not NoLock

	// Many says that Transact takes several keys in one transaction.
	Many bool
	// Unlocked says that Transact excludes nobody, or nobody waits for anybody.
	Unlocked bool
	// Renews says that a lease has a time to live, which Renew or the contender itself
	// extends.
	Renews bool
	// OnlyHot says that it differs from another one only where many want the same key.
	OnlyHot bool
	// Impatient says that Acquire fails instead of waiting.
	Impatient bool

	// Table has one row for each key, named in Column, if there is such a table.
	Table, Column string

	Transactor func(ctx context.Context, at Place) (Transactor, error)
	Leaser     func(ctx context.Context, at Place) (Leaser, error)
}

// Transactor runs business transactions under locks.
type Transactor interface {
	// Transact takes the locks of the keys, calls work in a transaction, and commits. It
	// begins again where the server says so.
	Transact(ctx context.Context, keys []int64, work func(tx Tx) error) error
	Close() error
}

// Leaser takes locks that belong to no transaction.
type Leaser interface {
	Acquire(ctx context.Context, key int64) (Lease, error)
	Close() error
}

// Lease is a lock that is held.
type Lease interface {
	// Renew makes it last for another TTL. It returns errors.ErrUnsupported where it lasts
	// as long as its connection, and where somebody else renews it.
	Renew(ctx context.Context) error
	Release(ctx context.Context) error
}

// Renewer is a Leaser that renews in the background.
type Renewer interface {
	// Renewals is how many leases have been renewed.
	Renewals() int64
}

// Tx is a transaction, as the work sees it.
type Tx interface {
	Exec(ctx context.Context, query string, args ...any) error
	Int(ctx context.Context, query string, args ...any) (int64, error)
}

// All are the contenders, in the order of the tables.
func All() []Maker {
	return []Maker{
		noLock(), noLockGORM(), bareUpsert(), bareUpserts(), bareUpdates(),
		run(), lockWith(), joinLock(), gormTransaction(), optimistic(), lockstepLease(), lockstepFair(),
		forUpdate(), getLock(), shedLock(), springJDBC(), gocronGORM(),
		redisLock(), redisLockQuick(), redSync(),
	}
}

// ByName finds a contender.
func ByName(name string) (Maker, error) {
	for _, m := range All() {
		if m.Name == name {
			return m, nil
		}
	}
	return Maker{}, fmt.Errorf("there is no contender %q", name)
}

// OpenTransactor opens a contender for transactions. A lease is taken around them.
func (m Maker) OpenTransactor(ctx context.Context, at Place) (Transactor, error) {
	if m.Transactor != nil {
		return m.Transactor(ctx, at)
	}
	leases, err := m.Leaser(ctx, at)
	if err != nil {
		return nil, err
	}
	db, err := OpenPlain(ctx, at)
	if err != nil {
		return nil, errors.Join(err, leases.Close())
	}
	return &around{leases: leases, db: db}, nil
}

// KeyName is a key as text, for who has no numbers.
func KeyName(key int64) string { return fmt.Sprintf("bench:%d", key) }

// OpenPlain opens an ordinary pool, whose connections are all open.
func OpenPlain(ctx context.Context, at Place) (*sql.DB, error) {
	db, err := sql.Open("mysql", at.DSN)
	if err != nil {
		return nil, err
	}
	return warm(ctx, db, at.Conns)
}

// warm opens as many connections as will be used, and keeps them.
func warm(ctx context.Context, db *sql.DB, conns int) (*sql.DB, error) {
	db.SetMaxIdleConns(conns + 1)
	open := make([]*sql.Conn, 0, conns)
	var errs []error
	for range conns {
		conn, err := db.Conn(ctx)
		if err != nil {
			errs = append(errs, err)
			break
		}
		open = append(open, conn)
	}
	for _, conn := range open {
		errs = append(errs, conn.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// sqlTx is a transaction of database/sql.
type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) Exec(ctx context.Context, query string, args ...any) error {
	_, err := t.tx.ExecContext(ctx, query, args...)
	return err
}

func (t sqlTx) Int(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = t.tx.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

// beginner is a pool or a connection.
type beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Transact runs a transaction, again where the server has rolled it back.
func Transact(ctx context.Context, db beginner, options *sql.TxOptions, work func(tx *sql.Tx) error) error {
	for {
		err := transactOnce(ctx, db, options, work)
		if !again(err) || ctx.Err() != nil {
			return err
		}
	}
}

func transactOnce(ctx context.Context, db beginner, options *sql.TxOptions, work func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	if err := work(tx); err != nil {
		_ = tx.Rollback() // the first error tells why
		return err
	}
	return tx.Commit()
}

// again tells whether the server has rolled a transaction back for another one: 1213 a
// deadlock, 1020 a row that has changed since the snapshot.
func again(err error) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && (refused.Number == 1213 || refused.Number == 1020)
}

// around takes a lease around an ordinary transaction.
type around struct {
	leases Leaser
	db     *sql.DB
}

func (a *around) Transact(ctx context.Context, keys []int64, work func(tx Tx) error) error {
	if len(keys) != 1 {
		return errors.ErrUnsupported
	}
	lease, err := a.leases.Acquire(ctx, keys[0])
	if err != nil {
		return err
	}
	err = Transact(ctx, a.db, nil, func(tx *sql.Tx) error { return work(sqlTx{tx}) })
	freeing(ctx)
	return errors.Join(err, lease.Release(ctx))
}

func (a *around) Close() error { return errors.Join(a.leases.Close(), a.db.Close()) }

type freeingKey struct{}

// WithFreeing has Transact call f before it releases a lock that outlives the
// transaction. A lock of the transaction is released by the COMMIT that follows the work.
func WithFreeing(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, freeingKey{}, f)
}

func freeing(ctx context.Context) {
	if f, ok := ctx.Value(freeingKey{}).(func()); ok {
		f()
	}
}

// unique makes names that nobody else has, within a run.
var unique atomic.Int64
