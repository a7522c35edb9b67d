package memstore

import (
	"context"
	"time"

	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
)

func (x session) Take(ctx context.Context, ask store.Ask) (a store.Answer, err error) {
	if ask.Permits == 0 {
		return x.takeRow(ctx, ask)
	}
	free, err := x.freePermits(ctx, ask)
	for _, ask.Slot = range free {
		if a, err = x.takeRow(ctx, ask); err != nil || a.Reply == store.Done {
			break
		}
	}
	return a, err
}

// takeRow takes the row that is asked for, if it is free.
func (x session) takeRow(ctx context.Context, ask store.Ask) (store.Answer, error) {
	a, err := do(ctx, x, "Take", ask.Row, func(t *Tx) (store.Answer, error) {
		now, notAfter := t.db.now(), x.store.clock.MicrosAt(ask.NotAfter)
		if ask.InTurn {
			if _, ok := t.take(store.Row{Key: ask.Key, Slot: store.QueueSlot}); !ok {
				return store.Answer{}, nil
			}
		}
		switch {
		case ask.Permits > 0:
			return t.takePermit(ask, now, notAfter), nil
		case ask.Slot > store.LeaseSlot:
			return t.takePlace(ask, now, notAfter), nil
		}
		return t.takeLease(ask, now, notAfter), nil
	})
	a.Slot = ask.Slot
	return a, err
}

// takeLease acquires the lease.
func (t *Tx) takeLease(ask store.Ask, now, notAfter int64) store.Answer {
	r, ok := t.take(ask.Row)
	if !ok {
		return store.Answer{}
	}
	r, reply := r.Take(ask, now, notAfter)
	if reply == store.Done {
		r.Session = t.Session
	}
	a := t.answer(ask, r, reply)
	a.Shared = reply == store.Done && r.Use == store.Shared
	return a
}

// answer writes a row, and returns the answer.
func (t *Tx) answer(ask store.Ask, r rules.Row, reply store.Reply) store.Answer {
	t.Written[ask.Row] = r
	if reply != store.Done {
		return store.Answer{Reply: reply}
	}
	return store.Answer{Reply: reply, Token: r.Token}
}

// takePlace acquires a reader's place, whose row it makes.
func (t *Tx) takePlace(ask store.Ask, now, notAfter int64) store.Answer {
	entry, ok := t.take(entryRow(ask.Key))
	if !ok || !t.lock(ask.Row) {
		return store.Answer{}
	}
	r, there := t.Current(ask.Row)
	r, reply := r.TakePlace(entry, ask, now, notAfter)
	if !there && reply != store.Done {
		return store.Answer{Reply: reply}
	}
	return t.answer(ask, r, reply)
}

// freePermits is FreePermits.
func (x session) freePermits(ctx context.Context, ask store.Ask) (free []int64, err error) {
	return do(ctx, x, "FreePermits", ask.Row, func(t *Tx) (free []int64, _ error) {
		rows := t.plain()
		if int(rows[entryRow(ask.Key)].Use)+ask.Permits != 0 {
			return nil, nil
		}
		for _, at := range places(rows, ask.Key) {
			if r := rows[at]; at.Slot <= int64(ask.Permits) && !r.Held(t.db.now()) {
				free = append(free, at.Slot)
			}
		}
		return free, nil
	})
}

// takePermit acquires a permit.
func (t *Tx) takePermit(ask store.Ask, now, notAfter int64) store.Answer {
	entry, _ := t.Current(entryRow(ask.Key))
	if !t.Free(entryRow(ask.Key)) {
		return store.Answer{}
	}
	r, ok := t.take(ask.Row)
	if !ok {
		return store.Answer{}
	}
	r, reply := r.TakePermit(entry, ask, now, notAfter)
	return t.answer(ask, r, reply)
}

func (x session) Release(ctx context.Context, at store.Row, hold string) (store.Reply, error) {
	return x.change(ctx, "Release", at, func(r rules.Row, now int64) (rules.Row, store.Reply) { return r.Release(hold, now) })
}

func (x session) Keep(ctx context.Context, at store.Row, hold string, atLeast time.Duration) (store.Reply, error) {
	return x.change(ctx, "Keep", at, func(r rules.Row, now int64) (rules.Row, store.Reply) { return r.Keep(hold, atLeast, now) })
}
