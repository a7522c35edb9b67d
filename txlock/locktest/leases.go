package locktest

import (
	"cmp"
	"context"
	"fmt"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// inner is what package txlock does for this one.
var inner = txlock.Internal(bridge.Pass{})

// leaseStore has the leases of a Kit. lease.NewManager finds it by the driver of the pool.
type leaseStore struct {
	*memstore.Store
	kit *Kit
}

// Join joins a transaction of the Kit's own pools.
func (s leaseStore) Join(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) (store.Joined, error) {
	scope, err := txlock.Join(ctx, tx, options...)
	return joined{s, scope}, err
}

// Take shows the holder of a lease that isn't free, as the statement on a server does.
func (s leaseStore) Take(ctx context.Context, ask store.Ask) (store.Answer, error) {
	a, err := s.Store.Take(ctx, ask)
	if err == nil && a.Reply == store.Refused {
		a.Seen = new(store.Glance)
		*a.Seen, err = s.Look(ctx, ask.Row)
	}
	return a, err
}

// End ends the session of a transaction, which frees its locks, too.
func (s leaseStore) End(ctx context.Context, key string, b store.Blocker) error {
	err := s.Store.End(ctx, key, b)
	s.kit.rows.Mu.Lock()
	defer s.kit.rows.Mu.Unlock()
	for t := range s.kit.open {
		s.kit.killed(t)
	}
	return err
}

type joined struct {
	leaseStore
	scope *txlock.Scope
}

// askKey is the key of what asks a connection for its transaction: a **tx for the answer. The statement
// does nothing on another database.
type askKey struct{}

// Include includes what memstore does for the transaction in it: what the rows of leases keep
// from others ends with the transaction.
func (j joined) Include(ctx context.Context, verb string, key txlock.Key, send func(ctx context.Context, in *store.In) error) error {
	return inner.Include(ctx, j.scope, verb, key, func(ctx context.Context, in *bridge.Included) error {
		var t *tx
		if _, err := in.Tx.ExecContext(context.WithValue(ctx, askKey{}, &t), "DO 0"); err != nil {
			return err
		}
		if t == nil {
			return fmt.Errorf("%w: the lease is of a locktest.Kit, and the transaction of another pool: begin it on Kit.DB", txlock.ErrInvalidOption)
		}
		if t.options.ReadOnly {
			return errReadOnly
		}
		own, err := j.Store.Join(ctx, t.leases)
		if err != nil {
			return err
		}
		var sent error
		err = own.Include(ctx, verb, key, func(ctx context.Context, m *store.In) error {
			m.Snapshot, m.Fenced = in.Snapshot, in.Fenced
			sent = send(ctx, m)
			in.Fence = m.Fence
			return sent
		})
		if err = cmp.Or(sent, err); err != nil { // the caller explains what was sent
			return err
		}
		j.kit.rows.Mu.Lock()
		defer j.kit.rows.Mu.Unlock()
		t.holds[leaseOf(key)] = false
		j.kit.note(t, Event{What: "guard " + key.String()})
		return nil
	})
}
