package memstore

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

func (x session) Look(ctx context.Context, at store.Row) (store.Glance, error) {
	return do(ctx, x, "Look", at, func(t *Tx) (store.Glance, error) {
		return t.plain()[at].Glance(t.db.now()), nil
	})
}

func (x session) Stored(ctx context.Context, at store.Row) (store.Stored, error) {
	return do(ctx, x, "Stored", at, func(t *Tx) (store.Stored, error) {
		r, ok := t.plain()[at]
		return store.Stored{Exists: ok, Token: r.Token, Holders: r.Holders}, nil
	})
}

func (x session) Permits(ctx context.Context, key string, first, last int) (store.Permits, error) {
	return do(ctx, x, "Permits", entryRow(key), func(t *Tx) (p store.Permits, _ error) {
		now, rows, ends := t.db.now(), t.plain(), int64(math.MaxInt64)
		for _, at := range places(rows, key) {
			if at.Slot < int64(first) || at.Slot > int64(last) {
				continue
			}
			p.Rows++
			if r := rows[at]; r.Held(now) {
				p.Held++
				ends = min(ends, r.Expires)
				p.Left = micros(ends - now)
			}
		}
		return p, nil
	})
}

func (x session) Readers(ctx context.Context, key string) (store.Readers, error) {
	return do(ctx, x, "Readers", entryRow(key), func(t *Tx) (n store.Readers, _ error) {
		now, rows, ends := t.db.now(), t.plain(), int64(0)
		for _, at := range places(rows, key) {
			r := rows[at]
			if r.Expires+r.TTL < now {
				n.Idle++
			}
			if r.Holders == "" {
				continue
			}
			n.Held++
			if r.Expires <= now {
				n.Expired++
			}
			ends = max(ends, r.Expires)
			n.Left = micros(ends - now)
		}
		return n, nil
	})
}

func (x session) ReaderAmong(ctx context.Context, key string, owners []string, begins string) (string, error) {
	return do(ctx, x, "ReaderAmong", entryRow(key), func(t *Tx) (string, error) {
		rows := t.plain()
		for _, at := range places(rows, key) {
			if r := rows[at]; r.Held(t.db.now()) && slices.Contains(owners, r.Owner) && strings.HasPrefix(r.Holders, begins) {
				return rows[at].Owner, nil
			}
		}
		return "", nil
	})
}

func (x session) Places(ctx context.Context, key string) ([]store.Place, error) {
	return do(ctx, x, "Places", entryRow(key), func(t *Tx) (all []store.Place, _ error) {
		rows, now := t.plain(), t.db.now()
		for _, at := range places(rows, key) {
			r := rows[at]
			all = append(all, store.Place{Slot: at.Slot, Owner: r.Owner, Held: r.Holders != "", Expired: r.Expires <= now, Done: r.Done()})
		}
		return all, nil
	})
}

func (x session) DoneInSnapshot(ctx context.Context, key string, slots []int64) (map[int64]int64, error) {
	return do(ctx, x, "DoneInSnapshot", entryRow(key), func(t *Tx) (map[int64]int64, error) {
		rows, done := t.plain(), make(map[int64]int64, len(slots))
		for _, slot := range slots {
			if r, ok := rows[store.Row{Key: key, Slot: slot}]; ok {
				done[slot] = r.Done()
			}
		}
		return done, nil
	})
}

func (x session) UnchangedSinceSnapshot(ctx context.Context, key string) error {
	return exec(ctx, x, "UnchangedSinceSnapshot", entryRow(key), func(t *Tx) error {
		seen := t.plain()
		current, ok := t.take(entryRow(key))
		if !ok {
			return store.ErrLocked
		}
		before := seen[entryRow(key)]
		if before.Use != store.Exclusive && before.Use != current.Use || before.Token != current.Token || before.Holders != current.Holders || before.Guards != current.Guards || before.Expires != current.Expires {
			return fmt.Errorf("%w: the lease was held, or rows of its readers were removed, since", txlock.ErrStaleSnapshot)
		}
		return nil
	})
}
