package store

import (
	"context"
	"database/sql"
)

// Of returns the store that a pool brings itself: one whose driver has a method
// LeaseStore, as that of package memstore. It returns nil for the pool of a database.
func Of(db *sql.DB) Store {
	if d, ok := db.Driver().(interface{ LeaseStore() Store }); ok {
		return d.LeaseStore()
	}
	return nil
}

// ErrPoolClosed is the error of database/sql for a pool that was closed, which package
// sql doesn't export.
var ErrPoolClosed = func() error {
	pool := sql.OpenDB(nil)
	_ = pool.Close() // it has nothing open
	return pool.PingContext(context.Background())
}()
