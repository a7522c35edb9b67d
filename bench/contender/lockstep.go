package contender

import (
	"context"
	"database/sql"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// Family has the keys of lockstep: the names are those of KeyName.
var Family = txlock.NewFamily[int64]("bench")

// OpenGuarded opens a guarded pool, and makes the rows of the keys.
func OpenGuarded(ctx context.Context, at Place) (*sql.DB, error) {
	db, err := locksqlc.Open(at.DSN)
	if err != nil {
		return nil, err
	}
	if db, err = warm(ctx, db, at.Conns); err != nil {
		return nil, err
	}
	ids := make([]int64, at.Keys)
	for i := range ids {
		ids[i] = int64(i) + 1
	}
	if len(ids) > 0 {
		err = txlock.Ensure(ctx, db, Family.Keys(ids...)...)
	}
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}

func run() Maker {
	return Maker{
		Name: "lockstep Run", About: "locksqlc.Run with the keys, on a guarded pool",
		Many: true, Table: "lockstep_locks", Column: "name",
		Transactor: guarded(func(ctx context.Context, db *sql.DB, keys []int64, work func(tx Tx) error) error {
			return locksqlc.Run(ctx, db, Family.Keys(keys...), func(tx *sql.Tx) error { return work(sqlTx{tx}) })
		}),
	}
}

// lockWith acquires the lock by reading the business row, as FOR UPDATE does.
func lockWith() Maker {
	return Maker{
		Name: "lockstep LockWith", About: "locksqlc.Run without keys on a guarded pool, and Scope.LockWith for the SELECT of the business row",
		OnlyHot: true,
		Transactor: guarded(func(ctx context.Context, db *sql.DB, keys []int64, work func(tx Tx) error) error {
			return locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error {
				locks, err := locksqlc.Join(ctx, tx)
				if err != nil {
					return err
				}
				var n int64
				reads := locks.LockWith(ctx, Family.Key(keys[0]))
				if err := tx.QueryRowContext(reads, "SELECT n FROM "+Stock+" WHERE id = ?", keys[0]).Scan(&n); err != nil {
					return err
				}
				return work(sqlTx{tx})
			})
		}),
	}
}

// joinLock takes its keys one after the other, in the order in which they are given.
func joinLock() Maker {
	return Maker{
		Name: "lockstep Join+Lock", About: "BeginTx, locksqlc.Join, Lock for each key in the order given, on a guarded pool",
		Many: true, Table: "lockstep_locks", Column: "name",
		Transactor: guarded(func(ctx context.Context, db *sql.DB, keys []int64, work func(tx Tx) error) error {
			for {
				err := transactOnce(ctx, db, nil, func(tx *sql.Tx) error {
					locks, err := locksqlc.Join(ctx, tx)
					if err != nil {
						return err
					}
					for _, key := range keys {
						if _, err := locks.Lock(ctx, Family.Key(key)); err != nil {
							return err
						}
					}
					return work(sqlTx{tx})
				})
				if !txlock.Retryable(err) || ctx.Err() != nil {
					return err
				}
			}
		}),
	}
}

func optimistic() Maker {
	return Maker{
		Name: "lockstep Optimistic", About: "locksqlc.Optimistic on a guarded pool; it never waits",
		Unlocked: true,
		Transactor: guarded(func(ctx context.Context, db *sql.DB, keys []int64, work func(tx Tx) error) error {
			return locksqlc.Optimistic(ctx, db, Family.Key(keys[0]), func(tx *sql.Tx) error { return work(sqlTx{tx}) })
		}),
	}
}

// guarded opens a pool for a way of running a transaction on it.
func guarded(transact func(ctx context.Context, db *sql.DB, keys []int64, work func(tx Tx) error) error) func(context.Context, Place) (Transactor, error) {
	return func(ctx context.Context, at Place) (Transactor, error) {
		db, err := OpenGuarded(ctx, at)
		if err != nil {
			return nil, err
		}
		return &onPool{DB: db, transact: transact}, nil
	}
}

// plain is guarded with an ordinary pool.
func plain(transact func(ctx context.Context, db *sql.DB, keys []int64, work func(tx Tx) error) error) func(context.Context, Place) (Transactor, error) {
	return func(ctx context.Context, at Place) (Transactor, error) {
		db, err := OpenPlain(ctx, at)
		if err != nil {
			return nil, err
		}
		return &onPool{DB: db, transact: transact}, nil
	}
}

type onPool struct {
	*sql.DB
	transact func(ctx context.Context, db *sql.DB, keys []int64, work func(tx Tx) error) error
}

func (p *onPool) Transact(ctx context.Context, keys []int64, work func(tx Tx) error) error {
	return p.transact(ctx, p.DB, keys, work)
}
