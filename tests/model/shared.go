package model

import (
	"errors"
	"slices"

	"github.com/dca00107/lockstep/txlock"
)

// The readers of a key are rows beside that of the lease, its gate: a reader gets in
// where no writer has the gate, and a writer that has it waits for the readers to go,
// which keeps new ones out for as long as its time to live. Once a key was shared,
// writers look for readers for good.

// TryAcquireShared takes a reader's place, or enters again what the owner has.
func (w *World) TryAcquireShared(manager, key int, owner string, ttl int64) (*Handle, error) {
	return w.tryShare(w.freeSlot(manager, key), manager, owner, ttl)
}

func (w *World) tryShare(at At, manager int, owner string, ttl int64) (*Handle, error) {
	if h, err := w.local(manager, at.Key, owner, true); h != nil || err != nil {
		return h, err
	}
	return w.share(at, manager, owner, ttl)
}

// share takes a reader's place in the row given.
func (w *World) share(at At, manager int, owner string, ttl int64) (*Handle, error) {
	key := at.Key
	gate, err := w.use(key, Shared)
	if err != nil {
		return nil, err
	}
	hold := w.next()
	owner = named(owner, hold)
	if w.Locked(At{Key: key}) || gate.Held(w.Now) && gate.Owner != owner {
		return nil, txlock.ErrBusy
	}
	if w.Rows[at] == nil {
		w.Rows[at] = fresh()
	}
	row := w.Rows[at]
	row.acquire(w.Now, owner, hold, ttl)
	where := place{manager: manager, key: key, owner: owner, shared: true}
	if r := w.records[where]; r != nil { // of another handle that was downgraded
		if own := w.Rows[r.row]; own != nil && own.has(w.Now, r) {
			own.renew(w.Now)
			row.release(w.Now, hold) // one row serves both
			return w.enter(r), nil
		}
	}
	return w.keep(where, at, row.Token, hold, ttl, false), nil
}

// use says what a key is used for, which nobody changes but Resize.
func (w *World) use(key, use int) (*Row, error) {
	at := At{Key: key}
	if w.Rows[at] == nil {
		w.Rows[at] = fresh()
	}
	row := w.Rows[at]
	switch {
	case row.Use == 0 && w.Locked(at):
		return nil, txlock.ErrBusy
	case row.Use == 0:
		row.Use = use
	case row.Use > 0 != (use > 0):
		return nil, txlock.ErrInvalidKey
	}
	return row, nil
}

// freeSlot returns the first place of a reader that nobody has in a manager. No two
// managers, nor one that is started again, have the same.
func (w *World) freeSlot(manager, key int) At {
	at := At{key, FirstReader * (1 + manager + 10*w.lives[manager])}
	for w.slots[at] {
		at.Slot++
	}
	return at
}

// readers counts who reads, as a writer that has the gate does: it ends those whose
// time is over, but for one that a transaction guards.
func (w *World) readers(key int) (n int) {
	if w.Rows[At{Key: key}].Use != Shared {
		return 0
	}
	for at, row := range w.Rows {
		switch {
		case at.Key != key || at.Slot < FirstReader || len(row.Holds) == 0:
		case row.Expires > w.Now || w.Locked(at):
			n++
		default:
			row.reap()
		}
	}
	return n
}

// obstacle is what a writer is told whom readers keep out: of its own one, by whichever
// manager, that it would wait for itself.
func (w *World) obstacle(key int, owner string) error {
	for at, row := range w.Rows {
		if at.Key == key && at.Slot >= FirstReader && owner != "" && row.Owner == owner && row.Held(w.Now) {
			return txlock.ErrUpgrade
		}
	}
	return txlock.ErrBusy
}

// drain looks for readers as a writer that has the gate does: for its own one first.
func (w *World) drain(key int, owner string) error {
	if err := w.obstacle(key, owner); !errors.Is(err, txlock.ErrBusy) {
		return err
	}
	if w.readers(key) > 0 {
		return txlock.ErrBusy
	}
	return nil
}

// Downgrade turns a writer into a reader: the reader is there before the writer goes.
func (w *World) Downgrade(h *Handle) (*Handle, error) {
	switch {
	case h.over != nil:
		return nil, h.over
	case h.record.shared:
		return nil, txlock.ErrInvalidOption
	}
	reader, err := w.share(w.freeSlot(h.Manager, h.Key), h.Manager, h.Owner, h.record.ttl)
	if err != nil {
		return nil, err
	}
	if err := w.Release(h); err != nil { // another writer may have come between
		w.giveBack(reader)
		return nil, err
	}
	return reader, nil
}

// Wait is a call that waits: Acquire, AcquireShared, Acquire of a semaphore, Resize.
type Wait struct {
	Manager int
	Over    bool
	Handle  *Handle // what it returns when it is over
	Err     error

	try   func() (*Handle, error) // what it does when things have changed
	taken *Handle                 // the gate, while there are readers
	place *At                     // of a reader, which has it before it gets in
}

// Acquire is TryAcquire that waits. While it waits for readers it has the gate.
func (w *World) Acquire(manager, key int, owner string, ttl int64) *Wait {
	x := &Wait{Manager: manager}
	begun := false
	x.try = func() (*Handle, error) {
		asks := !begun // once for readers, where somebody else has the gate
		begun = true
		if x.taken == nil {
			h, err := w.local(manager, key, owner, false)
			if h == nil && err == nil {
				x.taken, err = w.take(manager, key, owner, ttl)
			}
			if asks && errors.Is(err, txlock.ErrBusy) {
				err = w.obstacle(key, owner)
			}
			if h != nil || err != nil {
				return h, err
			}
		}
		err := w.drain(key, owner)
		x.taken.record.draining = err != nil
		if errors.Is(err, txlock.ErrUpgrade) {
			w.giveBack(x.taken)
		}
		if err != nil {
			return nil, err
		}
		return x.taken, nil
	}
	return w.wait(x)
}

// AcquireShared is TryAcquireShared that waits.
func (w *World) AcquireShared(manager, key int, owner string, ttl int64) *Wait {
	at := w.freeSlot(manager, key)
	w.slots[at] = true
	return w.wait(&Wait{Manager: manager, place: &at, try: func() (*Handle, error) {
		return w.tryShare(at, manager, owner, ttl)
	}})
}

func (w *World) wait(x *Wait) *Wait {
	w.Waiting = x
	w.Settle()
	return x
}

// Settle lets the call that waits go on, as far as it can.
func (w *World) Settle() {
	x := w.Waiting
	if x == nil {
		return
	}
	h, err := x.try()
	w.hide(x.taken)
	if errors.Is(err, txlock.ErrBusy) {
		return
	}
	w.finish(x, h, err)
	if h != nil && h == x.taken {
		w.Handles = append(w.Handles, h)
	}
}

// finish ends the call that waits.
func (w *World) finish(x *Wait, h *Handle, err error) {
	x.Over, x.Handle, x.Err, w.Waiting = true, h, err, nil
	if x.place != nil && (h == nil || h.At() != *x.place) {
		delete(w.slots, *x.place)
	}
}

// GiveUp ends the call that waits, for the reason given.
func (w *World) GiveUp(why error) {
	x := w.Waiting
	w.finish(x, nil, why)
	if x.taken != nil {
		w.giveBack(x.taken)
	}
}

// giveBack releases what no caller has seen.
func (w *World) giveBack(h *Handle) {
	_ = w.Release(h) // that it was lost meanwhile is told nobody
	w.hide(h)
}

// hide keeps a handle from being chosen: no caller has it.
func (w *World) hide(h *Handle) {
	w.Handles = slices.DeleteFunc(w.Handles, func(other *Handle) bool { return other == h })
}
