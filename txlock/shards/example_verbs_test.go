package shards_test

import (
	"context"
	"database/sql"
	"errors"
	"log"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/shards"
)

// Each process records the set at its start, or compares it with what is recorded.
func ExampleShards_Install() {
	ctx, s := context.Background(), (*shards.Shards)(nil)

	err := s.Install(ctx)
	if errors.Is(err, shards.ErrSet) {
		log.Fatal("this process has another set than the others: ", err)
	}
	if err != nil {
		log.Print(err) // where one is down, the program may go on
	}
}

// Keys that are locked together must be in one shard.
func ExampleShards_For() {
	ctx, s := context.Background(), (*shards.Shards)(nil)

	keys := []txlock.Key{orders.Key(42), orders.Key(43)}
	db, err := s.For(ctx, keys...)
	if errors.Is(err, shards.ErrSplit) {
		log.Print("not in one transaction: ", err)
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	err = locksqlc.Run(ctx, db, keys, func(*sql.Tx) error { return nil }) // the work
	if err != nil {
		log.Print(err)
	}
}

// A lease may have been waited for while its key moved.
func ExampleShards_Confirm() {
	work := func(ctx context.Context, s *shards.Shards, leases *lease.Manager, key txlock.Key) error {
		l, err := leases.Acquire(ctx, key)
		if err != nil {
			return err
		}
		if err := s.Confirm(ctx, key); err != nil {
			return errors.Join(err, l.Release(ctx))
		}
		return l.Release(ctx) // after the work
	}
	_ = work
}

// A transaction that may stand still between For and its lock is guarded after the lock.
func ExampleShards_Guard() {
	work := func(ctx context.Context, s *shards.Shards, scope *txlock.Scope, key txlock.Key) error {
		if _, err := scope.Lock(ctx, key); err != nil {
			return err
		}
		return s.Guard(ctx, scope, key) // if it fails, roll back
	}
	_ = work
}

// A change is taken back by Finish, with the sets exchanged.
func ExampleFinish() {
	ctx := context.Background()
	var old, set *shards.Shards // from New

	if err := shards.Begin(ctx, old, set); err != nil {
		log.Print(err)
		if err := shards.Finish(ctx, set, old); err != nil {
			log.Fatal(err) // may be repeated
		}
	}
}
