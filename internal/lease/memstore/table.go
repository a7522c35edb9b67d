package memstore

import (
	"context"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
)

// List is that of store.Store.
func (s *Store) List(ctx context.Context) ([]store.Info, error) {
	return do(ctx, s.session, "List", store.Row{}, func(t *Tx) ([]store.Info, error) {
		return t.infos(func(at store.Row, held bool) bool { return at.Slot >= store.LeaseSlot && held }), nil
	})
}

// Inspect is that of store.Store.
func (s *Store) Inspect(ctx context.Context, key string) ([]store.Info, error) {
	return do(ctx, s.session, "Inspect", entryRow(key), func(t *Tx) ([]store.Info, error) {
		all := t.infos(func(at store.Row, held bool) bool {
			return at.Slot == store.LeaseSlot || at.Slot > store.LeaseSlot && held
		})
		return slices.DeleteFunc(all, func(i store.Info) bool { return i.Key != key }), nil
	})
}

// infos returns the rows that are wanted, and all first waiters, in order.
func (t *Tx) infos(wanted func(at store.Row, held bool) bool) (all []store.Info) {
	now := t.db.now()
	for at, r := range t.plain() {
		if wanted(at, r.Held(now)) {
			info := store.Info{
				Row: at, Owner: r.Owner, Label: r.Label, Token: r.Token, TTL: micros(r.TTL), Left: r.Left(now), Holders: len(r.Holders) / store.HoldLength, Use: r.Use,
			}
			if r.Asked > 0 && info.Left > 0 {
				info.Asked, info.AskedAt = r.Reason, time.UnixMicro(r.Asked)
			}
			all = append(all, info)
		}
	}
	for first := range t.db.Open {
		for at, r := range first.Written {
			if at.Slot == store.QueueSlot && r.Guards > 0 {
				all = append(all, store.Info{Row: at, Owner: r.Owner, Label: r.Label, Since: time.UnixMicro(r.Expires), Session: r.Session})
			}
		}
	}
	slices.SortFunc(all, func(a, b store.Info) int { return a.Compare(b.Row) })
	return all
}

// Clean is that of store.Store, in one transaction.
func (s *Store) Clean(ctx context.Context, retention time.Duration) (int, error) {
	return do(ctx, s.session, "Clean", store.Row{}, func(t *Tx) (n int, _ error) {
		db, now := t.db, t.db.now()
		limit := now - now%1e6 - retention.Microseconds() // by a clock of whole seconds
		remove := func(may func(at store.Row, r rules.Row) bool) {
			for at, r := range db.Committed {
				if at.Slot >= store.QueueSlot && r.Expires < limit && r.Token < uint64(now) && t.Free(at) && may(at, r) && (at.Slot <= store.LeaseSlot || t.countSwept(at.Key)) {
					delete(db.Committed, at)
					n++
				}
			}
		}
		remove(func(_ store.Row, r rules.Row) bool { return r.Use == store.Exclusive })
		// What says how a key is used stays while the key has readers or permits.
		remove(func(at store.Row, _ rules.Row) bool { return len(places(db.Committed, at.Key)) == 0 })
		return n, nil
	})
}

// Sweep is that of store.Store.
func (s *Store) Sweep(ctx context.Context, key string) error {
	return exec(ctx, s.session, "Sweep", entryRow(key), func(t *Tx) error {
		var idle []store.Row
		for _, at := range places(t.db.Committed, key) {
			if r := t.db.Committed[at]; r.Expires+r.TTL < t.db.now() && t.Free(at) {
				idle = append(idle, at)
			}
		}
		if len(idle) > 0 && t.countSwept(key) {
			for _, at := range idle {
				delete(t.db.Committed, at)
			}
		}
		return nil
	})
}

// countSwept changes the row of a lease before rows of its readers are deleted, unless
// somebody has it locked.
func (t *Tx) countSwept(key string) bool {
	g, ok := t.db.Committed[entryRow(key)]
	if !ok || !t.Free(entryRow(key)) {
		return false
	}
	g.Guards++
	t.db.Committed[entryRow(key)] = g
	return true
}

// epochRow is where the epoch is: its owner is the epoch, and its expiry when it began.
var epochRow = store.Row{Key: "lockstep:epoch", Slot: -2}

// Epoch is that of store.Store.
func (s *Store) Epoch(ctx context.Context) (id string, age time.Duration, err error) {
	err = exec(ctx, s.session, "Epoch", epochRow, func(t *Tx) error {
		if r, begun := t.db.Committed[epochRow]; begun {
			id, age = r.Owner, micros(t.db.now()-r.Expires)
		}
		return nil
	})
	return id, age, err
}

// BeginEpoch is that of store.Store.
func (s *Store) BeginEpoch(ctx context.Context, id string, age time.Duration) error {
	return exec(ctx, s.session, "BeginEpoch", epochRow, func(t *Tx) error {
		if _, begun := t.db.Committed[epochRow]; !begun {
			t.db.Committed[epochRow] = rules.Row{Owner: id, Expires: t.db.now() - age.Microseconds()}
		}
		return nil
	})
}
