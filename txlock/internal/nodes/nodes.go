// Package nodes has what packages quorum, elect, job and those for tests need of package lease,
// and no program does.
package nodes

import (
	"context"
	"time"
)

// Package lease sets the variables when it is initialized.
var (
	// Of returns a *lease.Manager as a node.
	Of func(manager any) Node
	// OwnerOf returns the owner that an Acquire under the context has if it re-enters no
	// lease: the owner that lease.WithOwner names, with named set, or a new one. It returns
	// txlock.ErrInvalidOption for a name that is too short or too long.
	OwnerOf func(ctx context.Context) (owner string, named bool, err error)
	// Works notes that this goroutine calls a function under a *lease.Lease, for which the
	// Close of its manager waits until left is called, when the lease is released. The
	// function's context is made of one of Lease.Context, and ends when Close is called, with
	// lease.ErrClosed as its cause. It returns that error after Close.
	Works func(ctx context.Context, l any) (working context.Context, left func(), err error)
	// RaiseToken makes the token of an exclusive *lease.Lease at least the given one, in
	// the database and for all its handles. The next holder's token is higher than that.
	// If an open transaction has guarded the lease, RaiseToken tries again until it ends;
	// a transaction that calls Guard meanwhile may find the lease lost. If the server
	// doesn't answer, nobody knows which token the database has, and the lease is lost.
	RaiseToken func(ctx context.Context, l any, token uint64) error
)

// Node is a lease.Manager, one of several.
type Node interface {
	// Identity returns a comparable value that is the same for two nodes on the same pool.
	Identity() any
	// Terms returns what an Acquire with the options, a []lease.AcquireOption, asks for.
	// It sends nothing.
	Terms(options any) (Terms, error)
	// Epoch returns the epoch of the database.
	Epoch(ctx context.Context) (Epoch, error)
	// BeginEpoch begins an epoch with the given age if the database has none, and returns
	// the epoch that the database then has.
	BeginEpoch(ctx context.Context, age time.Duration) (Epoch, error)
}

// Terms are what an Acquire asks for.
type Terms struct {
	TTL         time.Duration
	MaxLifetime time.Duration // 0: no limit
	WaitAtMost  time.Duration // 0: as long as the context lives
	HoldAtLeast time.Duration
	Fair        bool
}

// Epoch identifies the data of a database. A database that comes back empty, without a
// restore, has another epoch.
type Epoch struct {
	ID  string        // empty: none was begun
	Age time.Duration // since it was begun, by the server's clock
}
