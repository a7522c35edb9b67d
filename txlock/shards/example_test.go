package shards_test

import (
	"context"
	"database/sql"
	"log"
	"strings"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/shards"
)

func Example() {
	ctx := context.Background()
	var a, b, c *sql.DB // from locksqlc.Open

	s, err := shards.New(map[string]*sql.DB{"a": a, "b": b, "c": c})
	if err != nil {
		log.Fatal(err)
	}
	if err := s.Install(ctx); err != nil {
		log.Print(err) // where one is down, the program may go on
	}

	key := orders.Key(42)
	db, err := s.For(ctx, key)
	if err != nil {
		log.Fatal(err)
	}
	err = locksqlc.Run(ctx, db, []txlock.Key{key}, func(tx *sql.Tx) error {
		scope, err := locksqlc.Join(ctx, tx)
		if err != nil {
			return err
		}
		return s.Guard(ctx, scope, key) // only where a process may stand still: see Guard
	})
	if err != nil {
		log.Print(err)
	}
}

func ExampleOf() {
	ctx := context.Background()
	var s *shards.Shards // from New

	leases, err := shards.Of(s, func(_ string, db *sql.DB) (*lease.Manager, error) { return lease.NewManager(db) })
	if err != nil {
		log.Fatal(err)
	}
	key := txlock.Named("settlement")
	manager, err := leases.For(ctx, key)
	if err != nil {
		log.Fatal(err)
	}
	err = manager.Do(ctx, key, func(ctx context.Context, _ *lease.Lease) error {
		return s.Confirm(ctx, key) // then the work
	})
	if err != nil {
		log.Print(err)
	}
}

func ExampleRouteBy() {
	var a, b *sql.DB // from locksqlc.Open

	// "cart:7" and "invoice:7-2024" are of customer 7.
	customer := func(key txlock.Key) string {
		_, id, _ := strings.Cut(key.String(), ":")
		id, _, _ = strings.Cut(id, "-")
		return id
	}
	_, err := shards.New(map[string]*sql.DB{"a": a, "b": b}, shards.RouteBy("customer", customer))
	if err != nil {
		log.Print(err)
	}
}

func ExampleBegin() {
	ctx := context.Background()
	var old, set *shards.Shards // from New

	if err := shards.Begin(ctx, old, set); err != nil {
		log.Fatal(err) // may be repeated
	}
	// Move the data, and start the processes anew, with the new set.
	if err := shards.Finish(ctx, old, set); err != nil {
		log.Fatal(err)
	}
}
