package lockgorm

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/inside"
	"github.com/dca00107/lockstep/txlock"
)

// inner is what package txlock does for this one.
var inner = inside.LockOf[*txlock.Scope, txlock.Key, txlock.Grant, txlock.PoolOption]()

// Open opens GORM over a guarded pool, for a data source name of go-sql-driver/mysql. If
// a name isn't enough, give the *sql.DB of locksqlc.Connector to GORM:
// mysql.New(mysql.Config{Conn: db}). Open returns an error for a name that can't be
// parsed, and the error of gorm.Open. After an error no pool is open.
func Open(dsn string, options ...gorm.Option) (*gorm.DB, error) {
	db, err := gorm.Open(Dialector(dsn), options...)
	if err == nil {
		return db, nil
	}
	if db != nil {
		// If an option or a plugin fails last, GORM leaves the pool open.
		if pool, none := db.DB(); none == nil {
			err = errors.Join(err, pool.Close())
		}
	}
	return nil, err
}

// Dialector returns GORM's dialector for MySQL over a guarded pool, for gorm.Open and for
// the sources and replicas of gorm.io/plugin/dbresolver. If the data source name can't be
// parsed, gorm.Open returns the error. After gorm.Open, db.Dialector is GORM's own
// *mysql.Dialector.
func Dialector(dsn string, options ...txlock.PoolOption) gorm.Dialector {
	return &dialector{Dialector: mysql.Open(dsn).(*mysql.Dialector), options: options}
}

type dialector struct {
	*mysql.Dialector
	options []txlock.PoolOption
}

// Initialize opens the pool, and leaves the rest to GORM's dialector.
func (d *dialector) Initialize(db *gorm.DB) error {
	cfg, err := driver.ParseDSN(d.DSN)
	if err != nil {
		return fmt.Errorf("lockgorm: parse the data source name: %w", err)
	}
	base, err := driver.NewConnector(cfg)
	if err != nil {
		return fmt.Errorf("lockgorm: make a connector: %w", err)
	}
	// A copy, since a dialector may be opened more than once.
	config := *d.Config
	own := &mysql.Dialector{Config: &config}
	pool := sql.OpenDB(inner.Guarded(base, d.options...))
	config.Conn = pool
	if err := own.Initialize(db); err != nil {
		return errors.Join(err, pool.Close())
	}
	config.Conn = nil // as mysql.Open leaves it
	db.Dialector = own
	return nil
}

// Join returns the scope of the transaction that tx runs in, which takes its locks, under
// the context of tx. It returns ErrNoTransaction if tx is no transaction, or one that is
// over, ErrTxDoomed if the server has ended it, and the errors of the driver. The
// transaction goes on, and no error is added to tx.
func Join(tx *gorm.DB, options ...txlock.JoinOption) (*txlock.Scope, error) {
	pool, err := transactionOf(tx)
	if err != nil {
		return nil, err
	}
	return txlock.Join(tx.Statement.Context, pool, options...)
}

// transactionOf returns the transaction that a *gorm.DB runs in.
func transactionOf(tx *gorm.DB) (txlock.Tx, error) {
	if tx == nil || tx.Statement == nil {
		return nil, fmt.Errorf("%w: the *gorm.DB is nil", txlock.ErrNoTransaction)
	}
	var pool any = unwatched(tx.Statement.ConnPool)
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok && prepared != nil {
		pool = prepared.Tx // a lock's statement is not worth preparing
	}
	transaction, ok := pool.(txlock.Tx)
	if v := reflect.ValueOf(pool); !ok || v.Kind() == reflect.Pointer && v.IsNil() {
		if tx.Error != nil {
			return nil, fmt.Errorf("%w: %w", txlock.ErrNoTransaction, tx.Error)
		}
		return nil, fmt.Errorf("%w: this *gorm.DB is a pool: use the handle that Transaction or Begin gave", txlock.ErrNoTransaction)
	}
	return transaction, nil
}

// Lock calls Scope.Lock in the transaction of tx. In a DryRun session it sends nothing
// and returns the zero Grant.
func Lock(tx *gorm.DB, key txlock.Key) (grant txlock.Grant, err error) {
	scope, err := scopeFor(tx, key)
	if scope == nil {
		return grant, err
	}
	return scope.Lock(tx.Statement.Context, key)
}

// TryLock calls Scope.TryLock in the transaction of tx. In a DryRun session it sends
// nothing and returns the zero Grant.
func TryLock(tx *gorm.DB, key txlock.Key) (grant txlock.Grant, err error) {
	scope, err := scopeFor(tx, key)
	if scope == nil {
		return grant, err
	}
	return scope.TryLock(tx.Statement.Context, key)
}

// RLock calls Scope.RLock in the transaction of tx. In a DryRun session it sends nothing
// and returns the zero Grant.
func RLock(tx *gorm.DB, key txlock.Key) (grant txlock.Grant, err error) {
	scope, err := scopeFor(tx, key)
	if scope == nil {
		return grant, err
	}
	return scope.RLock(tx.Statement.Context, key)
}

// TryRLock calls Scope.TryRLock in the transaction of tx. In a DryRun session it sends
// nothing and returns the zero Grant.
func TryRLock(tx *gorm.DB, key txlock.Key) (grant txlock.Grant, err error) {
	scope, err := scopeFor(tx, key)
	if scope == nil {
		return grant, err
	}
	return scope.TryRLock(tx.Statement.Context, key)
}

// LockAll calls Scope.LockAll in the transaction of tx. In a DryRun session it sends
// nothing and returns no grants.
func LockAll(tx *gorm.DB, keys ...txlock.Key) ([]txlock.Grant, error) {
	scope, err := scopeFor(tx, keys...)
	if scope == nil {
		return nil, err
	}
	return lockAll(scope, tx, keys)
}

// RLockAll calls Scope.RLockAll in the transaction of tx. In a DryRun session it sends
// nothing and returns no grants.
func RLockAll(tx *gorm.DB, keys ...txlock.Key) ([]txlock.Grant, error) {
	shared := make([]txlock.Key, len(keys))
	for i, key := range keys {
		shared[i] = txlock.Shared(key)
	}
	return LockAll(tx, shared...)
}

// LockAny calls Scope.LockAny in the transaction of tx. In a DryRun session it sends
// nothing and returns the zero Grant.
func LockAny(tx *gorm.DB, keys ...txlock.Key) (grant txlock.Grant, err error) {
	scope, err := scopeFor(tx, keys...)
	if scope == nil {
		return grant, err
	}
	return scope.LockAny(tx.Statement.Context, keys...)
}

// AssertLocked calls txlock.AssertLocked in the transaction of tx, under the context of
// tx. In a DryRun session it returns nil.
func AssertLocked(tx *gorm.DB, key txlock.Key) error {
	return asserted(tx, key, txlock.AssertLocked)
}

// AssertRLocked does what AssertLocked does, for code that only reads: the lock may be
// shared.
func AssertRLocked(tx *gorm.DB, key txlock.Key) error {
	return asserted(tx, key, txlock.AssertRLocked)
}

func asserted(tx *gorm.DB, key txlock.Key, assert func(ctx context.Context, tx txlock.Tx, key txlock.Key) error) error {
	pool, err := transactionOf(tx)
	if err != nil || sendsNothing(tx) {
		return err
	}
	return assert(tx.Statement.Context, pool, key)
}
