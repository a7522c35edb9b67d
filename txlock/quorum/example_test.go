package quorum_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// bill stands for the work of a program.
func bill(context.Context, *sql.Tx, uint64) error { return nil }

func Example() {
	ctx := context.Background()
	var pools []*sql.DB // of five databases that fail independently

	var nodes []*lease.Manager
	for _, db := range pools {
		node, err := lease.NewManager(db)
		if err != nil {
			log.Fatal(err)
		}
		nodes = append(nodes, node)
	}
	leases, err := quorum.New(nodes) // once per program
	if err != nil {
		log.Fatal(err)
	}
	if err := leases.Install(ctx); err != nil { // new databases count at once
		log.Fatal(err)
	}
	err = leases.Do(ctx, txlock.Named("billing"), func(ctx context.Context, l *quorum.Lease) error {
		return locksqlc.Run(ctx, pools[0], nil, func(tx *sql.Tx) error { // ctx ends when the lease is lost
			if err := bill(ctx, tx, l.Token()); err != nil {
				return err
			}
			node, err := l.Node(0) // the lease in this database
			if err != nil {
				return err
			}
			return node.Guard(ctx, tx) // last: COMMIT only while it is ours here
		})
	})
	if errors.Is(err, txlock.ErrNoQuorum) {
		log.Print("too many databases are down: ", err)
	}
}

var (
	ctx     context.Context
	leases  *quorum.Manager // from New
	billing = txlock.Named("billing")
)

// send stands for work outside of the databases, which compares tokens.
func send(context.Context, uint64) error { return nil }

// Install is called at every start, after schema.Install in each database.
func ExampleManager_Install() {
	if err := leases.Install(ctx); err != nil {
		log.Print(err) // a database is down: new ones count later
	}
}

// The lease is renewed while the function runs, and released when it returns.
func ExampleManager_Do() {
	err := leases.Do(ctx, billing, func(ctx context.Context, l *quorum.Lease) error {
		return send(ctx, l.Token())
	})
	if err != nil {
		log.Print(err)
	}
}

// A lease that outlives the function that takes it is released by its holder.
func ExampleManager_Acquire() {
	l, err := leases.Acquire(ctx, billing)
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(send(ctx, l.Token()), l.Release(ctx)); err != nil {
		log.Print(err)
	}
}

// Whoever comes second does something else.
func ExampleManager_TryAcquire() {
	l, err := leases.TryAcquire(ctx, billing)
	switch {
	case errors.Is(err, txlock.ErrBusy):
		return // another process is at it
	case errors.Is(err, txlock.ErrNoQuorum):
		log.Print("too many databases are down: ", err)
		return
	case err != nil:
		log.Fatal(err)
	}
	if err := errors.Join(send(ctx, l.Token()), l.Release(ctx)); err != nil {
		log.Print(err)
	}
}

// Close releases what is held. The managers of the databases are closed after it.
func ExampleManager_Close() {
	patient, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := leases.Close(patient); err != nil {
		log.Print(err)
	}
}

// Work ends when the lease is lost.
func ExampleLease_Context() {
	var l *quorum.Lease // from Acquire
	working, cancel := l.Context(ctx)
	defer cancel()
	if err := send(working, l.Token()); err != nil {
		log.Print(err, ": ", context.Cause(working))
	}
}

// Before a step that takes long the lease gets its whole time.
func ExampleLease_Renew() {
	var l *quorum.Lease // from Acquire
	if err := l.Renew(ctx); err != nil {
		log.Print(err) // ErrNoQuorum: it is held for as long as before
	}
}

// A release is sent also where its context has ended.
func ExampleLease_Release() {
	var l *quorum.Lease // from Acquire
	if err := l.Release(ctx); err != nil {
		log.Print(err)
	}
}
