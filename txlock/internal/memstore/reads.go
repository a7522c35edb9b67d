package memstore

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

func (x session) Look(ctx context.Context, at store.Row) (store.Glance, error) {
	return do(ctx, x, "Look", at, func(t *Tx) (store.Glance, error) {
		r, ok := t.plain()[at]
		return store.Glance{Exists: ok, Owner: r.owner, Note: r.note, Token: r.token, Left: r.left(t.db.now()), TTL: micros(r.ttl), Use: r.use}, nil
	})
}

func (x session) Stored(ctx context.Context, at store.Row) (store.Stored, error) {
	return do(ctx, x, "Stored", at, func(t *Tx) (store.Stored, error) {
		r, ok := t.plain()[at]
		return store.Stored{Exists: ok, Token: r.token, Holds: r.holds}, nil
	})
}

func (x session) Permits(ctx context.Context, key string, first, last int) (store.Permits, error) {
	return do(ctx, x, "Permits", gate(key), func(t *Tx) (p store.Permits, _ error) {
		now, rows, ends := t.db.now(), t.plain(), int64(math.MaxInt64)
		for _, at := range places(rows, key) {
			if at.Slot < int64(first) || at.Slot > int64(last) {
				continue
			}
			p.Rows++
			if r := rows[at]; r.held(now) {
				p.Held++
				ends = min(ends, r.expires)
				p.Left = micros(ends - now)
			}
		}
		return p, nil
	})
}

func (x session) Readers(ctx context.Context, key string) (store.Readers, error) {
	return do(ctx, x, "Readers", gate(key), func(t *Tx) (n store.Readers, _ error) {
		now, rows, ends := t.db.now(), t.plain(), int64(0)
		for _, at := range places(rows, key) {
			r := rows[at]
			if r.expires+r.ttl < now {
				n.Idle++
			}
			if r.holds == "" {
				continue
			}
			n.Held++
			if r.expires <= now {
				n.Expired++
			}
			ends = max(ends, r.expires)
			n.Left = micros(ends - now)
		}
		return n, nil
	})
}

func (x session) ReaderAmong(ctx context.Context, key string, owners []string, begins string) (string, error) {
	return do(ctx, x, "ReaderAmong", gate(key), func(t *Tx) (string, error) {
		rows := t.plain()
		for _, at := range places(rows, key) {
			if r := rows[at]; r.held(t.db.now()) && slices.Contains(owners, r.owner) && strings.HasPrefix(r.holds, begins) {
				return rows[at].owner, nil
			}
		}
		return "", nil
	})
}

func (x session) LockReaders(ctx context.Context, key string) ([]store.Reader, error) {
	return do(ctx, x, "LockReaders", gate(key), func(t *Tx) (readers []store.Reader, _ error) {
		for _, at := range places(t.latest(), key) {
			_, before := t.locked[at]
			if err := t.await(ctx, at, lockWait); err != nil {
				return nil, err
			}
			if r, _ := t.current(at); r.holds != "" {
				readers = append(readers, store.Reader{Owner: r.owner, Hold: r.holds})
			} else if !t.repeatable && !before { // READ COMMITTED keeps no lock of a row that it doesn't return
				delete(t.locked, at)
				t.db.unlock(at)
			}
		}
		return readers, nil
	})
}

func (x session) UnchangedSinceSnapshot(ctx context.Context, key string) error {
	return exec(ctx, x, "UnchangedSinceSnapshot", gate(key), func(t *Tx) error {
		seen := t.plain()
		current, ok := t.take(gate(key))
		if !ok {
			return store.ErrLocked
		}
		before := seen[gate(key)]
		if before.token != current.token || before.holds != current.holds || before.guards != current.guards || before.expires != current.expires {
			return fmt.Errorf("%w: the lease was held by somebody since", txlock.ErrStaleSnapshot)
		}
		if current.use != store.Shared {
			return nil
		}
		for _, at := range places(t.latest(), key) {
			if err := t.await(ctx, at, lockWait); err != nil {
				return err
			}
			before := seen[at]
			if r, _ := t.current(at); r.token+r.guards != before.token+before.guards {
				return fmt.Errorf("%w: somebody has read under the lease since", txlock.ErrStaleSnapshot)
			}
		}
		return nil
	})
}
