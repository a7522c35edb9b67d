// Package nodes is what package quorum asks of the managers and the leases of package
// lease, and nobody else does.
package nodes

import (
	"context"
	"time"
)

// Package lease sets both when it is initialized.
var (
	// Of returns a *lease.Manager as a node.
	Of func(manager any) Node
	// RaiseToken makes the token of an exclusive *lease.Lease at least the one given, in
	// the database and for all its handles. The next holder's is higher than that. Where
	// an open transaction has guarded the lease it waits for its end, by trying again; a
	// transaction that is guarded meanwhile may find the lease lost. After an error
	// without an answer nobody knows which token the database has: the lease is lost then.
	RaiseToken func(ctx context.Context, l any, token uint64) error
)

// Node is one lease.Manager of several.
type Node interface {
	// Identity is comparable, and the same for two nodes on the same pool.
	Identity() any
	// Terms returns what an Acquire with the options, a []lease.AcquireOption, asks for.
	// It sends nothing.
	Terms(options any) (Terms, error)
	// Epoch returns the epoch of the database.
	Epoch(ctx context.Context) (Epoch, error)
	// BeginEpoch begins an epoch of an age in a database that has none, and returns the
	// one that it has then.
	BeginEpoch(ctx context.Context, age time.Duration) (Epoch, error)
}

// Terms are what an Acquire asks for.
type Terms struct {
	TTL         time.Duration
	MaxLifetime time.Duration // 0: no limit
	WaitAtMost  time.Duration // 0: as long as the context lives
	Fair        bool
}

// Epoch tells which data a database has. One that comes back empty, restored by nobody,
// has another.
type Epoch struct {
	ID  string        // empty: none was begun
	Age time.Duration // since it was begun, by the server's clock
}
