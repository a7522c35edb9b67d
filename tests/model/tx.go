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
	rows     map[int]*Row // as it has written them
	snapshot map[int]Row  // nil before it was fixed
}

// Locked tells whether the open transaction has written the row of a key.
func (w *World) Locked(key int) bool { return w.Tx != nil && w.Tx.rows[key] != nil }

// Begin opens the transaction.
func (w *World) Begin(repeatable bool) {
	w.Tx = &Tx{Repeatable: repeatable, rows: make(map[int]*Row)}
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
	w.Tx.snapshot = make(map[int]Row)
	for key, row := range w.Rows {
		w.Tx.snapshot[key] = *row
	}
}

// view is what a plain read of the transaction shows of a row.
func (w *World) view(key int) Row {
	w.look()
	switch {
	case w.Tx.rows[key] != nil:
		return *w.Tx.rows[key]
	case w.Tx.Repeatable:
		return w.Tx.snapshot[key]
	case w.Rows[key] != nil:
		return *w.Rows[key]
	}
	return Row{}
}

// suspicious tells whether a lock in the transaction looks at the snapshot. A plain
// pool doesn't know what was read.
func (w *World) suspicious() bool { return !w.Guarded || w.Tx.read && w.Tx.Repeatable }

// current is the row for the transaction to write.
func (w *World) current(key int) *Row {
	row := w.Tx.rows[key]
	if row == nil {
		row = w.Rows[key]
	}
	if row == nil {
		return nil
	}
	written := *row
	w.Tx.rows[key] = &written
	return &written
}

// End commits the transaction or rolls it back. What was released under it is given
// back then.
func (w *World) End(commit bool) {
	if commit {
		maps.Copy(w.Rows, w.Tx.rows)
	}
	w.Tx = nil
	for _, r := range w.owed {
		if row := w.Rows[r.key]; row != nil {
			row.release(w.Now, r.hold)
		}
	}
	w.owed = nil
}

// AcquireTx takes a lease in the transaction. After an error the caller rolls back.
func (w *World) AcquireTx(manager, key int, owner string, ttl int64) (*Handle, error) {
	at := place{manager, key, owner}
	if r := w.local(at); r != nil {
		return w.enter(r), nil
	}
	if w.Rows[key] == nil {
		w.Rows[key] = fresh() // outside of the transaction
	}
	if row := w.Rows[key]; row.Owner != owner && row.Held(w.Now) && !row.Ahead(w.Now) {
		return nil, txlock.ErrBusy // as it looks, before anything is sent in the transaction
	}
	suspicious := w.suspicious()
	var before Row
	if suspicious {
		before = w.view(key)
	}
	row, hold := w.current(key), w.next()
	if suspicious && row.traces(&before) {
		return nil, txlock.ErrStaleSnapshot
	}
	switch row.acquire(w.Now, named(owner, hold), hold, ttl) {
	case refused:
		return nil, txlock.ErrBusy
	case full:
		return nil, txlock.ErrTooManyHolds
	}
	if r := w.records[at]; r != nil && r.token == row.Token && slices.Contains(row.Holds, r.hold) {
		row.release(w.Now, hold)
		row.Either = w.Now + row.TTL
		return w.enter(r), nil
	}
	return w.keep(at, row.Token, hold, true), nil
}

// Guard makes the lease a condition of the transaction. After an error the caller
// rolls back.
func (w *World) Guard(h *Handle) error {
	if h.over != nil {
		return h.over
	}
	if w.suspicious() && w.view(h.Key).Token < h.Token {
		return txlock.ErrStaleSnapshot
	}
	r := h.record
	row := w.current(h.Key)
	if row == nil || !row.has(w.Now, r.owner, r.token, r.hold) {
		w.lose(r)
		return txlock.ErrLost
	}
	row.Guards++
	return nil
}
