package main

import (
	"context"
	"errors"
	"slices"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// ofAll begins the keys that are acquired together.
const ofAll = "all:"

// allKeys are leases of which several are acquired together, and one alone.
var allKeys = []string{ofAll + "1", ofAll + "2", ofAll + "3", ofAll + "4"}

// waitsForAll is the kind of an operation that waits until it has all of its keys.
const waitsForAll = "acquire all"

// together are leases that were acquired together.
type together interface {
	All() []*lease.Lease
	Guard(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) error
	Release(ctx context.Context) error
}

func (w *worker) acquireAll() outcome {
	return w.whole(waitsForAll, func(ctx context.Context, keys []txlock.Key) (together, error) { return w.leases.AcquireAll(ctx, keys) })
}

func (w *worker) tryAcquireAll() outcome {
	return w.whole("try acquire all", func(ctx context.Context, keys []txlock.Key) (together, error) {
		return w.leases.TryAcquireAll(ctx, keys)
	})
}

// acquireOne takes one of the keys that others take together.
func (w *worker) acquireOne() outcome {
	key := w.one(allKeys)
	return w.alone("acquire one of all", key, func(ctx context.Context) (*lease.Lease, error) { return w.leases.Acquire(ctx, keyOf(key)) })
}

// whole takes several leases, by an owner that is called as the operation, and uses and
// releases them. Each is a hold of its own.
func (w *worker) whole(kind string, acquire func(ctx context.Context, keys []txlock.Key) (together, error)) outcome {
	names := w.some(allKeys, 2)
	o := w.begin(kind, names...)
	ctx, cancel := context.WithTimeout(lease.WithOwner(context.Background(), o.ID), opLimit)
	defer cancel()
	if slices.Contains([]string{"order", "part", "rest"}, w.Without) {
		acquire = w.byHand
	}
	all, err := acquire(ctx, keysOf(names))
	granted := op{ID: o.ID, Return: w.now(), Outcome: succeeded, Owner: o.ID}
	if err != nil {
		granted.Outcome, granted.Err = unknown, err.Error()
		if refused(err) {
			granted.Outcome = failed
		}
		w.journal.write(granted)
		return granted.Outcome
	}
	w.journal.write(granted)
	use := func() { w.writeAll(all, names) }
	for _, l := range all.All() {
		part := op{ID: o.ID + "/" + l.Key().String(), Kind: "part", Keys: []string{l.Key().String()}, Call: o.Call, Return: granted.Return, Outcome: succeeded, Token: l.Token(), Of: o.ID}
		w.journal.write(part)
		h := &holding{w: w, fenced: l, l: l, id: part.ID, key: part.Keys[0]}
		inner := use
		use = func() {
			h.watched(inner)
			w.journal.write(op{ID: h.id, Valid: h.valid.Load()})
		}
	}
	use()
	release := w.begin("release", names...)
	err = all.Release(ctx)
	w.journal.write(told(op{ID: release.ID, Return: w.now(), Of: o.ID}, err))
	return succeeded
}

// writeAll raises the counters of all the keys in transactions that all the leases guard.
func (w *worker) writeAll(all together, names []string) {
	for range 1 + w.IntN(3) {
		w.think(w.TTL / 8)
		if w.stopped() {
			return
		}
		came := w.transact(w.begin("guarded write of all", names...), w.begun(w.pool), func(ctx context.Context, t *transaction) error {
			for _, name := range names {
				value, err := t.value(ctx, name)
				if err != nil {
					return err
				}
				w.think(w.TTL / 50)
				if err := t.set(ctx, name, value+1, 0); err != nil {
					return err
				}
			}
			return all.Guard(ctx, t.Tx)
		})
		if came == unknown {
			return // the server may be about to commit it
		}
	}
}

// byHand takes one lease after the other, as somebody does who has no AcquireAll: in the
// order in which they are named, or those that are free, or it leaves what it has.
func (w *worker) byHand(ctx context.Context, keys []txlock.Key) (together, error) {
	all := new(several)
	for _, key := range keys {
		take := w.leases.TryAcquire
		if w.Without == "order" {
			take = w.leases.Acquire
		}
		l, err := take(ctx, key)
		switch {
		case err == nil:
			all.leases = append(all.leases, l)
			w.think(w.TTL / 20) // meanwhile another takes what comes next
		case w.Without == "part" && refused(err):
		case w.Without == "rest":
			w.kept(all)
			return nil, err
		default:
			return nil, errors.Join(err, all.Release(ctx))
		}
	}
	return all, nil
}

// several are leases that were acquired by hand.
type several struct{ leases []*lease.Lease }

func (s *several) All() []*lease.Lease { return s.leases }

func (s *several) Guard(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) (err error) {
	for _, l := range s.leases {
		err = errors.Join(err, l.Guard(ctx, tx, options...))
	}
	return err
}

func (s *several) Release(ctx context.Context) (err error) {
	for _, l := range s.leases {
		err = errors.Join(err, l.Release(ctx))
	}
	return err
}

// kept keeps what nobody releases, which would be noticed as garbage.
func (c *client) kept(all *several) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leftOver = append(c.leftOver, all)
}
