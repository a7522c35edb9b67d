package contender

import (
	"context"
	"database/sql"
	"errors"

	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/lockgorm"
)

// NoLockGORM is the name of what lockgorm is compared with.
const NoLockGORM = "GORM no lock"

// noLockGORM is what lockgorm is compared with.
func noLockGORM() Maker {
	return Maker{
		Name: NoLockGORM, About: "gorm's db.Transaction without a lock",
		Unlocked: true,
		Transactor: func(ctx context.Context, at Place) (Transactor, error) {
			db, err := OpenPlain(ctx, at)
			if err != nil {
				return nil, err
			}
			return openGORM(db, func(db *gorm.DB, _ []int64, work func(tx *gorm.DB) error) error {
				return db.Transaction(work)
			})
		},
	}
}

func gormTransaction() Maker {
	return Maker{
		Name: "lockstep lockgorm", About: "lockgorm.Transaction with the keys, compared with GORM without a lock",
		Base: NoLockGORM, Many: true,
		Transactor: func(ctx context.Context, at Place) (Transactor, error) {
			db, err := OpenGuarded(ctx, at)
			if err != nil {
				return nil, err
			}
			return openGORM(db, func(db *gorm.DB, keys []int64, work func(tx *gorm.DB) error) error {
				return lockgorm.Transaction(db, Family.Keys(keys...), work)
			})
		},
	}
}

// openGORM opens a contender over a pool, which it closes where that fails.
func openGORM(pool *sql.DB, transact func(db *gorm.DB, keys []int64, work func(tx *gorm.DB) error) error) (Transactor, error) {
	db, err := OnGORM(pool)
	if err != nil {
		return nil, err
	}
	return &onGORM{DB: pool, orm: db, transact: transact}, nil
}

// OnGORM opens GORM over a pool, which it closes where that fails.
func OnGORM(pool *sql.DB, plugins ...gorm.Plugin) (*gorm.DB, error) {
	db, err := gorm.Open(gormmysql.New(gormmysql.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard})
	for _, plugin := range plugins {
		if err == nil {
			err = db.Use(plugin)
		}
	}
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return db, nil
}

type onGORM struct {
	*sql.DB
	orm      *gorm.DB
	transact func(db *gorm.DB, keys []int64, work func(tx *gorm.DB) error) error
}

func (g *onGORM) Transact(ctx context.Context, keys []int64, work func(tx Tx) error) error {
	return g.transact(g.orm.WithContext(ctx), keys, func(tx *gorm.DB) error { return work(gormTx{tx}) })
}

type gormTx struct{ tx *gorm.DB }

func (t gormTx) Exec(ctx context.Context, query string, args ...any) error {
	return t.tx.WithContext(ctx).Exec(query, args...).Error
}

func (t gormTx) Int(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = t.tx.WithContext(ctx).Raw(query, args...).Scan(&n).Error
	return n, err
}
