package memstore

import (
	"context"
	"strings"
	"time"

	"github.com/dca00107/lockstep/txlock/internal/store"
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

// maxHolds is the length of the column of holds.
const maxHolds = 8192

// takeLease is AcquireLease.
func (t *Tx) takeLease(ask store.Ask, now, notAfter int64) store.Answer {
	if ask.InTurn {
		if _, ok := t.take(store.Row{Key: ask.Key, Slot: store.TurnstileSlot}); !ok {
			return store.Answer{}
		}
	}
	r, ok := t.take(ask.Row)
	if !ok {
		return store.Answer{}
	}
	reply := store.Done
	switch {
	case now > notAfter:
		reply = store.Late
	case r.use < store.Exclusive:
		reply = store.Other
	case !r.held(now), r.owner == ask.Owner && !strings.Contains(r.holds, ask.Hold[:store.HoldBegins]):
		r.grant(ask, now)
	case r.owner != ask.Owner:
		reply = store.Refused
	case len(r.holds)+len(ask.Hold) > maxHolds:
		reply = store.Full
	default:
		ttl := ask.TTL.Microseconds()
		r.holds, r.expires, r.ttl = r.holds+ask.Hold, max(r.expires, now+ttl), max(r.ttl, ttl)
	}
	if reply != store.Done {
		r.expires = min(r.expires, now+r.ttl) // a clock that was set back has left more
		t.written[ask.Row] = r
		return store.Answer{Reply: reply}
	}
	r.session = t.id
	t.written[ask.Row] = r
	return store.Answer{Reply: store.Done, Token: r.token, Shared: r.use == store.Shared}
}

// takePlace is ShareLease, which takes a reader's place.
func (t *Tx) takePlace(ask store.Ask, now, notAfter int64) store.Answer {
	g, ok := t.take(gate(ask.Key))
	if !ok || g.use != store.Shared || g.held(now) && g.owner != ask.Owner || now > notAfter || !t.lock(ask.Row) {
		return store.Answer{}
	}
	r, _ := t.current(ask.Row)
	if r.held(now) {
		return store.Answer{Reply: store.Refused}
	}
	r.grant(ask, now)
	t.written[ask.Row] = r
	return store.Answer{Reply: store.Done, Token: r.token}
}

// freePermits is FreePermits.
func (x session) freePermits(ctx context.Context, ask store.Ask) (free []int64, err error) {
	return do(ctx, x, "FreePermits", ask.Row, func(t *Tx) (free []int64, _ error) {
		rows := t.plain()
		if int(rows[gate(ask.Key)].use)+ask.Permits != 0 {
			return nil, nil
		}
		for _, at := range places(rows, ask.Key) {
			if r := rows[at]; at.Slot <= int64(ask.Permits) && !r.held(t.db.now()) {
				free = append(free, at.Slot)
			}
		}
		return free, nil
	})
}

// takePermit is AcquirePermit.
func (t *Tx) takePermit(ask store.Ask, now, notAfter int64) store.Answer {
	g, _ := t.current(gate(ask.Key))
	locked := t.db.locks[gate(ask.Key)]
	if locked != nil && locked.holder != t || int(g.use)+ask.Permits != 0 || now > notAfter {
		return store.Answer{}
	}
	r, ok := t.take(ask.Row)
	if !ok || r.held(now) {
		return store.Answer{}
	}
	r.grant(ask, now)
	t.written[ask.Row] = r
	return store.Answer{Reply: store.Done, Token: r.token}
}

func (x session) Release(ctx context.Context, at store.Row, hold string) (store.Reply, error) {
	return x.change(ctx, "Release", at, func(r *row, now int64) store.Reply { return r.release(hold, now) })
}

func (x session) Keep(ctx context.Context, at store.Row, hold string, atLeast time.Duration) (store.Reply, error) {
	return x.change(ctx, "Keep", at, func(r *row, now int64) store.Reply {
		until := min(int64(r.token), now) + atLeast.Microseconds()
		if r.holds != hold || r.expires <= now || until <= now {
			return r.release(hold, now)
		}
		r.owner, r.holds = store.Released+r.owner[:min(len(r.owner), 245)], ","+hold[1:]
		r.ttl, r.expires, r.asked = atLeast.Microseconds(), until, 0
		return store.Kept
	})
}

// release removes a hold.
func (r *row) release(hold string, now int64) store.Reply {
	if !strings.Contains(r.holds, hold) {
		return store.Refused
	}
	reply := store.Done
	if r.expires <= now {
		reply = store.Expired
	}
	if r.holds = strings.ReplaceAll(r.holds, hold, ""); r.holds == "" {
		r.expires = min(r.expires, now)
	}
	return reply
}
