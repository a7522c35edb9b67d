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

func (x session) Places(ctx context.Context, key string) ([]store.Place, error) {
	return do(ctx, x, "Places", gate(key), func(t *Tx) (all []store.Place, _ error) {
		rows, now := t.plain(), t.db.now()
		for _, at := range places(rows, key) {
			r := rows[at]
			all = append(all, store.Place{Slot: at.Slot, Owner: r.owner, Held: r.holds != "", Expired: r.expires <= now, Done: r.done()})
		}
		return all, nil
	})
}

func (x session) DoneInSnapshot(ctx context.Context, key string, slots []int64) (map[int64]int64, error) {
	return do(ctx, x, "DoneInSnapshot", gate(key), func(t *Tx) (map[int64]int64, error) {
		rows, done := t.plain(), make(map[int64]int64, len(slots))
		for _, slot := range slots {
			if r, ok := rows[store.Row{Key: key, Slot: slot}]; ok {
				done[slot] = r.done()
			}
		}
		return done, nil
	})
}

// done is what rises with each reader, and with each transaction that one has guarded.
func (r *row) done() int64 { return int64(r.token + r.guards) }

func (x session) UnchangedSinceSnapshot(ctx context.Context, key string) error {
	return exec(ctx, x, "UnchangedSinceSnapshot", gate(key), func(t *Tx) error {
		seen := t.plain()
		current, ok := t.take(gate(key))
		if !ok {
			return store.ErrLocked
		}
		before := seen[gate(key)]
		if before.use != store.Exclusive && before.use != current.use || before.token != current.token || before.holds != current.holds || before.guards != current.guards || before.expires != current.expires {
			return fmt.Errorf("%w: the lease was held, or rows of its readers were removed, since", txlock.ErrStaleSnapshot)
		}
		return nil
	})
}
