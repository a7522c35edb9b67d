// Package model says in plain Go what leases promise: rows, tokens, holds, expiry
// and what each handle is told. Tests play the same history on it and on a server.
package model

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// World is a database, its managers and one transaction, at one moment.
type World struct {
	Now     int64        // the server's clock, in microseconds
	Rows    map[int]*Row // by key, as committed
	Tx      *Tx          // the transaction that is open, or nil
	Handles []*Handle
	Guarded bool // the pool is a guarded one

	records map[place]*record
	owed    []*record // released under the transaction, given back after it
	holds   Hold
}

// Handle is one hold that a caller has.
type Handle struct {
	Manager, Key int
	Owner        string
	Token        uint64

	record   *record
	released bool
	over     error
}

// place is where a manager finds what it holds.
type place struct {
	manager, key int
	owner        string
}

// record is one lease that a manager holds, by one hold in the row.
type record struct {
	place
	token   uint64
	hold    Hold
	handles []*Handle
	pending bool // acquired in a transaction, and not seen committed
	lost    bool
	ended   bool // given back
}

// New returns a world without a row.
func New(now int64, guarded bool) *World {
	return &World{Now: now, Guarded: guarded, Rows: make(map[int]*Row), records: make(map[place]*record)}
}

// local returns what the manager holds for the owner and may enter by itself.
func (w *World) local(at place) *record {
	r := w.records[at]
	if at.owner == "" || r == nil || r.pending {
		return nil
	}
	return r
}

// enter makes another handle.
func (w *World) enter(r *record) *Handle {
	h := &Handle{Manager: r.manager, Key: r.key, Owner: r.owner, Token: r.token, record: r}
	r.handles = append(r.handles, h)
	w.Handles = append(w.Handles, h)
	return h
}

// keep makes the record of a new hold. An owner without a name has one of its own.
func (w *World) keep(at place, token uint64, hold Hold, pending bool) *Handle {
	r := &record{place: at, token: token, hold: hold, pending: pending}
	if at.owner == "" {
		r.owner = Anonymous(hold)
	}
	if old := w.records[r.place]; old != nil {
		w.lose(old)
	}
	w.records[r.place] = r
	return w.enter(r)
}

// Anonymous stands for the name that a manager has made for an owner without one.
func Anonymous(hold Hold) string { return "?" + strconv.Itoa(int(hold)) }

// lose tells all handles of a record that it is lost.
func (w *World) lose(r *record) {
	if r.lost || r.ended {
		return
	}
	r.lost = true
	for _, h := range r.handles {
		h.finish(txlock.ErrLost)
	}
	w.forget(r)
}

func (w *World) forget(r *record) {
	if w.records[r.place] == r {
		delete(w.records, r.place)
	}
}

func (h *Handle) finish(why error) {
	if h.over == nil {
		h.over = why
	}
}

// Err is what the handle says of itself.
func (h *Handle) Err() error { return h.over }

func (h *Handle) String() string {
	return fmt.Sprintf("key %d, token %d of %q in manager %d", h.Key, h.Token, h.Owner, h.Manager)
}

// TryAcquire takes a lease or enters it again.
func (w *World) TryAcquire(manager, key int, owner string, ttl int64) (*Handle, error) {
	at := place{manager, key, owner}
	if r := w.local(at); r != nil {
		return w.enter(r), nil
	}
	if w.Locked(key) {
		return nil, txlock.ErrBusy
	}
	if w.Rows[key] == nil {
		w.Rows[key] = fresh()
	}
	row, hold := w.Rows[key], w.next()
	ahead := row.Ahead(w.Now)
	switch row.acquire(w.Now, named(owner, hold), hold, ttl) {
	case refused:
		return nil, txlock.ErrBusy
	case full:
		return nil, txlock.ErrTooManyHolds
	}
	if ahead {
		row.Either = w.Now + row.TTL
	}
	r := w.records[at]
	if r != nil && r.token == row.Token && slices.Contains(row.Holds, r.hold) {
		row.release(w.Now, hold) // one hold serves both
		row.Either = w.Now + row.TTL
		r.pending = false
		return w.enter(r), nil
	}
	return w.keep(at, row.Token, hold, false), nil
}

func fresh() *Row { return &Row{Owner: "-"} }

func named(owner string, hold Hold) string {
	if owner == "" {
		return Anonymous(hold)
	}
	return owner
}

func (w *World) next() Hold {
	w.holds++
	return w.holds
}

// Release ends a hold.
func (w *World) Release(h *Handle) error {
	if h.released {
		return nil
	}
	h.released = true
	h.finish(txlock.ErrNotHeld)
	r := h.record
	r.handles = slices.DeleteFunc(r.handles, func(other *Handle) bool { return other == h })
	var lost error
	if r.lost {
		lost = txlock.ErrNotHeld
	}
	if r.ended || !r.lost && len(r.handles) > 0 {
		return lost
	}
	r.ended = true
	w.forget(r)
	if w.Locked(r.key) {
		w.owed = append(w.owed, r)
		return lease.ErrGuarded
	}
	if row := w.Rows[r.key]; row == nil || !row.release(w.Now, r.hold) {
		return txlock.ErrNotHeld
	}
	return lost
}

// Renew extends a lease. Where a transaction has the row it waits in vain.
func (w *World) Renew(h *Handle) error {
	if h.over != nil {
		return h.over
	}
	if w.Locked(h.Key) {
		return context.DeadlineExceeded
	}
	r := h.record
	row := w.Rows[h.Key]
	if row == nil || !row.has(w.Now, r.owner, r.token, r.hold) {
		w.lose(r)
		return txlock.ErrLost
	}
	row.Expires = w.Now + row.TTL
	r.pending = false
	return nil
}

// ForceRelease takes a lease away. Where a transaction has the row it waits in vain.
func (w *World) ForceRelease(key int) error {
	if w.Locked(key) {
		return context.DeadlineExceeded
	}
	if row := w.Rows[key]; row == nil || !row.force(w.Now) {
		return txlock.ErrNotHeld
	}
	return nil
}

// Clean removes idle rows and tells how many.
func (w *World) Clean(retention int64) (n int) {
	for key, row := range w.Rows {
		if !w.Locked(key) && row.idle(w.Now, retention) {
			delete(w.Rows, key)
			n++
		}
	}
	return n
}

// Close gives back what a manager holds, and Die doesn't. The handles are told
// nothing by the dead.
func (w *World) Close(manager int) {
	for _, h := range w.of(manager) {
		if !h.record.lost {
			_ = w.Release(h) // a release that comes too late is no error of Close
		}
	}
	w.Die(manager)
}

// Die drops what a manager knows.
func (w *World) Die(manager int) {
	w.Handles = slices.DeleteFunc(w.Handles, func(h *Handle) bool { return h.Manager == manager })
	for at := range w.records {
		if at.manager == manager {
			delete(w.records, at)
		}
	}
}

// of returns the handles of a manager.
func (w *World) of(manager int) []*Handle {
	var handles []*Handle
	for _, h := range w.Handles {
		if h.Manager == manager {
			handles = append(handles, h)
		}
	}
	return handles
}

// Fill fills the list of holds of a lease that is held, as too many entries of its
// owner do. It returns how many it has added.
func (w *World) Fill(key int) (n int) {
	row := w.Rows[key]
	if row == nil || w.Locked(key) || !row.Held(w.Now) {
		return 0
	}
	row.Holds = slices.Clone(row.Holds)
	for ; len(row.Holds) < MaxHolds; n++ {
		row.Holds = append(row.Holds, w.next())
	}
	return n
}
