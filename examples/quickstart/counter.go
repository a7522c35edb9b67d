package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/dca00107/lockstep/txlock"
)

// products are the keys of the products. All ways of buying lock by them, so that
// programs with GORM and programs with sqlc could sell side by side.
var products = txlock.NewFamily[int64]("product")

// errSoldOut is returned by a purchase that came too late.
var errSoldOut = errors.New("sold out")

// counter is where the buyers queue: one way to run a purchase.
type counter interface {
	// buy buys one item for a buyer.
	buy(ctx context.Context, product, buyer int64) error
	close() error
}

// way is a way to open the shop.
type way struct {
	name   string
	locked bool
	// open opens a counter with as many connections as there are buyers.
	open func(dsn string, buyers int) (counter, error)
}

var ways = []way{
	{"no lock", false, openNoLock},
	{"lockgorm.Transaction", true, openGORM},
	{"locksqlc.Run", true, openSQLC},
	{"lockgorm plugin", true, openPlugin},
}

// keepOpen lets a pool keep a connection for each buyer. By default database/sql
// closes all but two of them whenever they are idle for a moment.
func keepOpen(pool *sql.DB, buyers int) {
	pool.SetMaxOpenConns(buyers)
	pool.SetMaxIdleConns(buyers)
}
