// Package storetest is the library's own: it opens the internal package memstore, the store
// of leases in memory, to the module of the tests, which compares it with databases.
// Programs have module locktest for their tests.
package storetest

import (
	"github.com/dca00107/lockstep/txlock/internal/memstore"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

type (
	// Server is that of memstore.
	Server = memstore.Server
	// Store is that of memstore.
	Store = memstore.Store
	// Tx is that of memstore.
	Tx = memstore.Tx
	// Contents is that of memstore.
	Contents = memstore.Contents
	// Row is that of package store.
	Row = store.Row
	// Ask is that of package store.
	Ask = store.Ask
)

// The slots of the rows of a key, and what a key is used for, as package store has them.
const (
	LeaseSlot  = store.LeaseSlot
	MaxPermits = store.MaxPermits
	Shared     = store.Shared
)

// New returns a server without leases.
func New() *Server { return memstore.New() }
