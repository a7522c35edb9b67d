// Package storetest is the library's own: it opens the internal package memstore, the store
// of leases in memory, to the module of the tests, which compares it with databases.
// Programs have package locktest for their tests.
package storetest

import (
	"github.com/dca00107/lockstep/txlock/internal/memstore"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// The types of memstore, and those of package store that its methods take.
type (
	Server   = memstore.Server
	Store    = memstore.Store
	Tx       = memstore.Tx
	Contents = memstore.Contents
	Row      = store.Row
	Ask      = store.Ask
)

// The slots of the rows of a key, and what a key is used for, as package store has them.
const (
	LeaseSlot  = store.LeaseSlot
	MaxPermits = store.MaxPermits
	Shared     = store.Shared
)

// New returns a server without leases.
func New() *Server { return memstore.New() }
