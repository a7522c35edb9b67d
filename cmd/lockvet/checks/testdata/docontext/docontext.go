// Package docontext keeps contexts.
package docontext

import (
	"context"
	"database/sql"
	"sync"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

type worker struct{ ctx context.Context }

func work(context.Context) {}

func wrong(ctx context.Context, w *worker, m *lease.Manager, db *sql.DB, key txlock.Key, contexts chan context.Context) error {
	var kept context.Context
	err := m.Do(ctx, key, func(ctx context.Context, _ *lease.Lease) error {
		kept = ctx      // want `the context of Do is kept in kept`
		w.ctx = ctx     // want `the context of Do is kept in w.ctx`
		go work(ctx)    // want `a goroutine that Do doesn.t wait for uses its context`
		contexts <- ctx // want `the context of Do is sent away`
		return nil
	})
	if err != nil {
		return err
	}
	work(kept)
	return locksqlc.Do(ctx, db, key, func(ctx context.Context) error {
		go func() { work(ctx) }() // want `a goroutine that Do doesn.t wait for uses its context`
		return nil
	})
}

func right(outside context.Context, m *lease.Manager, key txlock.Key) error {
	err := m.Do(outside, key, func(ctx context.Context, _ *lease.Lease) error {
		var group sync.WaitGroup
		group.Add(1)
		go func() {
			defer group.Done()
			work(ctx)
		}()
		group.Wait()
		inner := ctx
		w := worker{}
		w.ctx = ctx
		work(inner)
		go work(outside)
		return nil
	})
	if err != nil {
		return err
	}
	return m.Do(outside, key, func(ctx context.Context, _ *lease.Lease) error {
		done := make(chan struct{})
		go func() { work(ctx); close(done) }()
		<-done
		return nil
	})
}

func detached(outside context.Context, m *lease.Manager, key txlock.Key) error {
	return m.Do(outside, key, func(ctx context.Context, _ *lease.Lease) error {
		go work(context.WithoutCancel(ctx))
		go func() { work(context.WithoutCancel(ctx)) }()
		go func() { // want `a goroutine that Do doesn.t wait for uses its context`
			work(context.WithoutCancel(ctx))
			work(ctx)
		}()
		return nil
	})
}
