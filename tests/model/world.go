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
	Now     int64       // the server's clock, in microseconds
	Rows    map[At]*Row // as committed
	Tx      *Tx         // the transaction that is open, or nil
	Waiting *Wait       // the call that waits, or nil
	Handles []*Handle
	Guarded bool // the pool is a guarded one

	records map[place]*record
	slots   map[At]bool // of readers, in use
	lives   map[int]int // how often a manager was started again
	owed    []*record   // released under the transaction, given back after it
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
	shared       bool
	slot         int // of a permit
}

// record is one lease that a manager holds, by one hold in the row.
type record struct {
	place
	row      At
	token    uint64
	hold     Hold
	ttl      int64
	handles  []*Handle
	pending  bool // acquired in a transaction, and not seen committed
	draining bool // a writer that waits for readers
	lost     bool
	ended    bool // given back
}

// New returns a world without a row.
func New(now int64, guarded bool) *World {
	return &World{
		Now: now, Guarded: guarded,
		Rows: make(map[At]*Row), records: make(map[place]*record), slots: make(map[At]bool), lives: make(map[int]int),
	}
}

// local enters what the manager holds for the owner, by itself: a writer as a reader
// too, but no reader as a writer.
func (w *World) local(manager, key int, owner string, shared bool) (*Handle, error) {
	if owner == "" {
		return nil, nil
	}
	at := place{manager: manager, key: key, owner: owner}
	writer := w.records[at]
	at.shared = true
	reader := w.records[at]
	switch {
	case writer != nil && writer.draining:
		return nil, txlock.ErrBusy
	case writer != nil && !writer.pending:
		return w.enter(writer), nil
	case reader != nil && !shared:
		return nil, txlock.ErrUpgrade
	case reader != nil:
		return w.enter(reader), nil
	}
	return nil, nil
}

// enter makes another handle.
func (w *World) enter(r *record) *Handle {
	h := &Handle{Manager: r.manager, Key: r.key, Owner: r.owner, Token: r.token, record: r}
	r.handles = append(r.handles, h)
	w.Handles = append(w.Handles, h)
	return h
}

// keep makes the record of a new hold. An owner without a name has one of its own.
func (w *World) keep(where place, row At, token uint64, hold Hold, ttl int64, pending bool) *Handle {
	where.owner = named(where.owner, hold)
	r := &record{place: where, row: row, token: token, hold: hold, ttl: ttl, pending: pending}
	if old := w.records[r.place]; old != nil {
		w.lose(old)
	}
	w.records[r.place] = r
	w.slots[row] = true
	return w.enter(r)
}

// Anonymous begins what stands for the name that a manager has made for an owner
// without one.
const Anonymous = "?"

func named(owner string, hold Hold) string {
	if owner == "" {
		return Anonymous + strconv.Itoa(int(hold))
	}
	return owner
}

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

// Shared tells whether the handle is a reader's.
func (h *Handle) Shared() bool { return h.record.shared }

// At is where the row of the handle is.
func (h *Handle) At() At { return h.record.row }

// Err is what the handle says of itself.
func (h *Handle) Err() error { return h.over }

func (h *Handle) String() string {
	return fmt.Sprintf("row %d, token %d of %q in manager %d", h.record.row, h.Token, h.Owner, h.Manager)
}

// TryAcquire takes a lease or enters it again. Where there are readers it gives it
// back.
func (w *World) TryAcquire(manager, key int, owner string, ttl int64) (*Handle, error) {
	if h, err := w.local(manager, key, owner, false); h != nil || err != nil {
		return h, err
	}
	var before int64
	if row := w.Rows[At{Key: key}]; row != nil {
		before = row.Expires
	}
	h, err := w.take(manager, key, owner, ttl)
	if row := w.Rows[At{Key: key}]; err != nil && row.Expires != before {
		row.Either = before
	}
	if err != nil {
		return nil, err
	}
	if err := w.drain(key, owner); err != nil {
		w.giveBack(h)
		return nil, err
	}
	return h, nil
}

// take takes the row of a lease.
func (w *World) take(manager, key int, owner string, ttl int64) (*Handle, error) {
	at, where := At{Key: key}, place{manager: manager, key: key, owner: owner}
	if w.Locked(at) {
		return nil, txlock.ErrBusy
	}
	if w.Rows[at] == nil {
		w.Rows[at] = fresh()
	}
	row, hold := w.Rows[at], w.next()
	if row.Use < 0 {
		return nil, txlock.ErrInvalidKey
	}
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
	r := w.records[where]
	if r != nil && r.token == row.Token && slices.Contains(row.Holds, r.hold) {
		row.release(w.Now, hold) // one hold serves both
		row.Either = w.Now + row.TTL
		r.pending = false
		return w.enter(r), nil
	}
	return w.keep(where, at, row.Token, hold, ttl, false), nil
}

func fresh() *Row { return &Row{Owner: "-"} }

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
	delete(w.slots, r.row)
	if w.Locked(r.row) {
		w.owed = append(w.owed, r)
		return lease.ErrGuarded
	}
	if row := w.Rows[r.row]; row == nil || !row.release(w.Now, r.hold) {
		return txlock.ErrNotHeld
	}
	return lost
}

// Renew extends a lease. Where a transaction has the row it waits in vain.
func (w *World) Renew(h *Handle) error {
	if h.over != nil {
		return h.over
	}
	r := h.record
	if w.Locked(r.row) {
		return context.DeadlineExceeded
	}
	row := w.Rows[r.row]
	if row == nil || !row.has(w.Now, r) {
		w.lose(r)
		return txlock.ErrLost
	}
	row.renew(w.Now)
	r.pending = false
	return nil
}

// ForceRelease takes away all that is held under a key. Where a transaction has one of
// the rows it waits in vain.
func (w *World) ForceRelease(key int) error {
	if w.KeyLocked(key) {
		return context.DeadlineExceeded
	}
	released := false
	for at, row := range w.Rows {
		if at.Key == key {
			released = row.force(w.Now) || released
		}
	}
	if !released {
		return txlock.ErrNotHeld
	}
	return nil
}

// Clean removes idle rows and tells how many. What says how a key is used stays while
// there is a reader's or permit's row that stays.
func (w *World) Clean(retention int64) (n int) {
	stays := make(map[int]bool)
	var idle []At
	for at, row := range w.Rows {
		if !w.Locked(at) && row.idle(w.Now, retention) {
			idle = append(idle, at)
		} else if at.Slot > 0 {
			stays[at.Key] = true
		}
	}
	for _, at := range idle {
		if at.Slot > 0 || w.Rows[at].Use == 0 || !stays[at.Key] {
			delete(w.Rows, at)
			n++
		}
	}
	return n
}

// Close gives back what a manager holds, and Die doesn't. The handles are told
// nothing by the dead.
func (w *World) Close(manager int) {
	if w.Waiting != nil && w.Waiting.Manager == manager {
		w.GiveUp(lease.ErrClosed)
	}
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
	w.lives[manager]++
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
	at := At{Key: key}
	row := w.Rows[at]
	if row == nil || w.Locked(at) || !row.Held(w.Now) {
		return 0
	}
	row.Holds = slices.Clone(row.Holds)
	for ; len(row.Holds) < MaxHolds; n++ {
		row.Holds = append(row.Holds, w.next())
	}
	return n
}
