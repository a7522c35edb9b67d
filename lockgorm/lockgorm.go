package lockgorm

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/txlock"
)

// inner is what package txlock does for this one.
var inner = txlock.Internal(bridge.Pass{})

// Open opens GORM over a guarded pool, for a data source name of go-sql-driver/mysql. If a name
// isn't enough, pass a *sql.DB of locksqlc.Connector to GORM: mysql.New(mysql.Config{Conn: db}).
// Open returns an error for a name that can't be parsed, and the error of gorm.Open. After an
// error no pool is open.
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

// Join returns the scope of the transaction that tx runs in, which acquires its locks within the
// limit of WaitAtMost of tx. It returns ErrNoTransaction if tx is not a transaction, or one that
// has ended, ErrTxDoomed if the server has ended it, and the errors of the driver. The transaction
// stays open, and no error is added to tx.
func Join(tx *gorm.DB, options ...txlock.JoinOption) (*txlock.Scope, error) {
	scope, err := join(tx, options...)
	if err != nil {
		return nil, err
	}
	return limited(tx, scope), nil
}

func join(tx *gorm.DB, options ...txlock.JoinOption) (*txlock.Scope, error) {
	pool, err := transactionOf(tx)
	if err != nil {
		return nil, err
	}
	return txlock.Join(tx.Statement.Context, pool, options...)
}

// SQLTx returns the database/sql transaction that tx runs in, for functions that take one:
// Lease.Guard, Manager.AcquireTx and the generated queries of sqlc. It returns ErrNoTransaction if
// tx is not a transaction, and sends nothing.
func SQLTx(tx *gorm.DB) (txlock.Tx, error) { return transactionOf(tx) }

// transactionOf returns the transaction that a *gorm.DB runs in.
func transactionOf(tx *gorm.DB) (txlock.Tx, error) {
	if tx == nil || tx.Statement == nil {
		return nil, fmt.Errorf("%w: the *gorm.DB is nil", txlock.ErrNoTransaction)
	}
	pool := senderOf(tx.Statement)
	transaction, ok := pool.(txlock.Tx)
	if v := reflect.ValueOf(pool); !ok || v.Kind() == reflect.Pointer && v.IsNil() {
		if tx.Error != nil {
			return nil, fmt.Errorf("%w: %w", txlock.ErrNoTransaction, tx.Error)
		}
		return nil, fmt.Errorf("%w: this *gorm.DB is a pool: use the handle that Transaction or Begin gave", txlock.ErrNoTransaction)
	}
	return transaction, nil
}

// Lock locks a key in the transaction of tx, as Scope.Lock does, or shared if txlock.Shared has
// marked the key. It is for code that runs in more places than a Scope: in a DryRun session and on
// a dialect of Unlocked it sends nothing and returns the zero Grant; and under Optimistic, which
// has read the version of the key, it compares that first.
func Lock(tx *gorm.DB, key txlock.Key) (grant txlock.Grant, err error) {
	scope, err := scopeFor(tx, key)
	if scope == nil {
		return grant, err
	}
	lock := scope.Lock
	key, shared := inner.Asked(key)
	if shared {
		lock = scope.RLock
	}
	return lock(tx.Statement.Context, key)
}

// AssertLocked calls txlock.AssertLocked in the transaction of tx, under the context of tx, or
// txlock.AssertRLocked if txlock.Shared has marked the key. In a DryRun session, and on a dialect
// of Unlocked, it returns nil.
func AssertLocked(tx *gorm.DB, key txlock.Key) error {
	pool, err := transactionOf(tx)
	if err != nil || sendsNothing(tx) {
		return err
	}
	assert := txlock.AssertLocked
	key, shared := inner.Asked(key)
	if shared {
		assert = txlock.AssertRLocked
	}
	return assert(tx.Statement.Context, pool, key)
}
