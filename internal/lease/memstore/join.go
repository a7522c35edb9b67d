package memstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// Join joins a Tx of the same Server, or a *sql.Tx of the Store's own Pool. In any other
// transaction, one of a mock for example, statements act at once: a Guard checks and
// counts there, but keeps nobody out until the end. The options are of no use, since a Tx
// knows what was read.
func (s *Store) Join(ctx context.Context, tx txlock.Tx, _ ...txlock.JoinOption) (store.Joined, error) {
	if err := fault.NilTx(tx); err != nil {
		return nil, err
	}
	t, ok := tx.(*Tx)
	if pooled, is := tx.(*sql.Tx); is {
		var err error
		if t, err = s.behind(ctx, pooled); err != nil {
			return nil, fmt.Errorf("join: %w", err)
		}
		ok = t != nil
	}
	if !ok || t.db != s.server {
		return joined{s, nil}, nil
	}
	t.db.Mu.Lock()
	defer t.db.Mu.Unlock()
	if t.Over != nil {
		return nil, fmt.Errorf("join: %w", doomed(t.Over))
	}
	return joined{s, t}, nil
}

// joined is the caller's transaction, or none of ours.
type joined session

// Include is that of store.Joined. One call is made at a time.
func (j joined) Include(ctx context.Context, verb string, key txlock.Key, send func(ctx context.Context, in *store.In) error) error {
	if err := key.Validate(); err != nil {
		return err
	}
	in, t := &store.In{Session: session(j), Reading: ctx}, j.tx
	if t != nil {
		select {
		case t.sending <- struct{}{}:
			defer func() { <-t.sending }()
		case <-ctx.Done():
			return ctx.Err()
		}
		t.db.Mu.Lock()
		in.Snapshot, in.Fenced, in.ID = t.unguarded || t.Snapshot != nil, t.fenced[key.String()], t.Session
		over := t.Over
		t.db.Mu.Unlock()
		if over != nil {
			return fmt.Errorf("%s %q: %w", verb, key, doomed(over))
		}
	}
	if err := send(ctx, in); err != nil {
		return fmt.Errorf("%s %q: %w", verb, key, doomed(err))
	}
	if t != nil && in.Fence {
		t.fenced[key.String()] = true
	}
	return nil
}
