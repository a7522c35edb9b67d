package quorum_test

import (
	"context"
	"database/sql"
	"errors"
	"log"

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

// Code that is written to what both have takes a lease of one database or of several.
func Example_oneOrSeveral() {
	type leases[L handle] interface {
		Do(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l L) error, options ...lease.AcquireOption) error
	}
	nightly := func(ctx context.Context, one leases[*lease.Lease], several leases[*quorum.Lease]) error {
		key := txlock.Named("nightly")
		return errors.Join(
			one.Do(ctx, key, func(ctx context.Context, l *lease.Lease) error { return report(ctx, l) }),
			several.Do(ctx, key, func(ctx context.Context, l *quorum.Lease) error { return report(ctx, l) }),
		)
	}
	_ = nightly
}

// report works under a lease, whatever that is of.
func report(_ context.Context, l handle) error { return l.Err() }
