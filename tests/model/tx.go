package model

import (
	"maps"
	"slices"

	"github.com/dca00107/lockstep/txlock"
)

// Tx is an open transaction.
type Tx struct {
	Repeatable bool // REPEATABLE READ, READ COMMITTED otherwise

	read     bool
	rows     map[At]*Row // as it has written them
	snapshot map[At]Row  // nil before it was fixed
}

// Locked tells whether the open transaction has written a row.
func (w *World) Locked(at At) bool { return w.Tx != nil && w.Tx.rows[at] != nil }

// KeyLocked tells whether it has written one of the rows of a key.
func (w *World) KeyLocked(key int) bool {
	if w.Tx == nil {
		return false
	}
	for at := range w.Tx.rows {
		if at.Key == key {
			return true
		}
	}
	return false
}

// grace is for how many microseconds a transaction may have a row whose time is over.
const grace = 5e6

// Outlives tells whether the open transaction has a row at the moment whose time has been
// over for so long then that whoever wants it would end the transaction.
func (w *World) Outlives(moment int64) bool {
	if w.Tx == nil {
		return false
	}
	for _, row := range w.Tx.rows {
		if len(row.Holds) > 0 && row.Expires+grace-1e6 <= moment { // the clock is one of whole seconds
			return true
		}
	}
	return false
}

// Begin opens the transaction.
func (w *World) Begin(repeatable bool) {
	w.Tx = &Tx{Repeatable: repeatable, rows: make(map[At]*Row)}
}

// Read is a plain SELECT of the transaction.
func (w *World) Read() {
	w.Tx.read = true
	w.look()
}

// look fixes the snapshot.
func (w *World) look() {
	if w.Tx.snapshot != nil || !w.Tx.Repeatable {
		return
	}
	w.Tx.snapshot = make(map[At]Row)
	for at, row := range w.Rows {
		w.Tx.snapshot[at] = *row
	}
}

// view is what a plain read of the transaction shows of a row.
func (w *World) view(at At) Row {
	w.look()
	switch {
	case w.Tx.rows[at] != nil:
		return *w.Tx.rows[at]
	case w.Tx.Repeatable:
		return w.Tx.snapshot[at]
	case w.Rows[at] != nil:
		return *w.Rows[at]
	}
	return Row{}
}

// suspicious tells whether a lock in the transaction looks at the snapshot. A plain
// pool doesn't know what was read.
func (w *World) suspicious() bool { return !w.Guarded || w.Tx.read && w.Tx.Repeatable }

// current is the row for the transaction to write.
func (w *World) current(at At) *Row {
	row := w.Tx.rows[at]
	if row == nil {
		row = w.Rows[at]
	}
	if row == nil {
		return nil
	}
	written := *row
	w.Tx.rows[at] = &written
	return &written
}

// Owes tells whether something is given back when the open transaction ends.
func (w *World) Owes() bool { return len(w.owed) > 0 }

// End commits the transaction or rolls it back. What was released under it is given
// back then.
func (w *World) End(commit bool) {
	if commit {
		maps.Copy(w.Rows, w.Tx.rows)
	}
	w.Tx = nil
	for _, r := range w.owed {
		if row := w.Rows[r.row]; row != nil {
			row.release(w.Now, r.hold)
		}
	}
	w.owed = nil
}

// AcquireTx takes a lease in the transaction. After an error the caller rolls back.
func (w *World) AcquireTx(manager, key int, owner string, ttl int64) (*Handle, error) {
	if h, err := w.local(manager, key, owner, false); h != nil || err != nil {
		return h, err
	}
	at, where := At{Key: key}, place{manager: manager, key: key, owner: owner}
	if w.Rows[at] == nil {
		w.Rows[at] = fresh() // outside of the transaction
	}
	if row := w.Rows[at]; row.Owner != owner && row.Held(w.Now) && !row.Ahead(w.Now) {
		return nil, txlock.ErrBusy // as it looks, before anything is sent in the transaction
	}
	suspicious := w.suspicious()
	var before Row
	if suspicious {
		before = w.view(at)
	}
	row, hold := w.current(at), w.next()
	if suspicious && row.traces(&before) {
		return nil, txlock.ErrStaleSnapshot
	}
	switch row.acquire(w.Now, named(owner, hold), hold, ttl) {
	case refused:
		return nil, txlock.ErrBusy
	case full:
		return nil, txlock.ErrTooManyHolds
	}
	if r := w.records[where]; r != nil && r.token == row.Token && slices.Contains(row.Holds, r.hold) {
		row.release(w.Now, hold)
		row.Either = w.Now + row.TTL
		return w.enter(r), nil
	}
	return w.keep(where, at, row.Token, hold, ttl, true), nil
}

// Guard makes the lease a condition of the transaction. After an error the caller
// rolls back.
func (w *World) Guard(h *Handle) error {
	if h.over != nil {
		return h.over
	}
	r := h.record
	stale := w.suspicious() && w.view(r.row).Token < h.Token
	row := w.current(r.row)
	if row == nil || !row.has(w.Now, r) {
		w.lose(r)
		return txlock.ErrLost
	}
	if stale {
		return txlock.ErrStaleSnapshot
	}
	row.Guards++
	return nil
}
