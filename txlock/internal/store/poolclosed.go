package store

import (
	"context"
	"database/sql"
)

// ErrPoolClosed is what database/sql says of a pool that was closed, and stays so. It has
// no name there.
var ErrPoolClosed = func() error {
	pool := sql.OpenDB(nil)
	_ = pool.Close() // it has nothing open
	return pool.PingContext(context.Background())
}()
