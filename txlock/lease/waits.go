package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
)

var errRowLocked = errors.New("the row is locked by an open transaction")

// mustWait reports whether a record must be renewed by a transaction that waits for its
// row. The transactions that guard the lease may follow each other without a gap, so that
// the row is locked whenever a renewal tries.
func (r *record) mustWait() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Is(r.failed, errRowLocked) && (r.pending || r.skipped >= 2 || r.m.store.Now().Until(r.deadline) < r.ttl/2)
}

// place is what a wait is for: the end of the session that has guarded the lease last,
// with all that it has guarded, or else one row.
type place struct {
	session uint64
	row     store.Row
}

func (r *record) place() place {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.guardedIn != 0 {
		return place{session: r.guardedIn}
	}
	return place{row: r.row()}
}

// waitFor waits for the row of a record in the server's queue, in the background while
// the loop of renewals goes on. It then renews the other leases that wait for the same
// transaction. There is one wait for each place.
func (m *Manager) waitFor(r *record) {
	at := r.place()
	m.mu.Lock()
	_, waiting := m.waits[at]
	begin := !waiting && len(m.waits) < store.MostWaits
	if begin {
		m.waits[at] = struct{}{}
	}
	m.mu.Unlock()
	end := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.waits, at)
	}
	if begin && !m.tasks.Go(func() { defer end(); m.renewWaiting(r) }) {
		end()
	}
}

// renewWaiting waits for the row of one record, and then renews all leases whose rows
// were locked.
func (m *Manager) renewWaiting(r *record) {
	ctx, cancel := context.WithTimeout(m.ending, max(r.left(), leastPause))
	defer cancel()
	b := batch{r.row(): r}
	var found map[store.Row]store.Standing
	var questions []store.Question
	var sent instant
	begun := false
	err := m.store.Wait(ctx, r.row(), func(brief bool) (time.Duration, bool) {
		limit := r.left() * 9 / 10 // as long as possible: a new wait begins at the end of the queue
		if places := m.places(); places > store.MostWaits {
			limit = limit * store.MostWaits / time.Duration(places)
		}
		if brief {
			limit = min(limit, guardPatience)
		}
		if begun = r.beginRenewal(nil); begun {
			r.queue()
		}
		return max(limit, leastPause), begun
	}, func(s store.Session) (err error) {
		m.gather(b, r)
		sent = m.store.Now()
		found, questions, err = b.renew(ctx, s)
		return err
	})
	if !begun {
		return // the loop of renewals goes on with it
	}
	if _, ours := found[r.row()]; err == nil && !ours {
		r.committed() // or rolled back: either way it is not pending any more
	}
	b.settle(found, questions, err, sent, sent)
}

// gather adds to a batch the other records whose rows were found locked, perhaps by the
// same transaction. It removes the record that was waited for if that was released
// meanwhile.
func (m *Manager) gather(b batch, r *record) {
	if !r.proceed() {
		delete(b, r.row())
		r.endRenewal()
	}
	for _, other := range m.locked() {
		if len(b) < renewalChunk && b[other.row()] == nil && other.beginRenewal(nil) {
			b[other.row()] = other
		}
	}
}

// locked returns the records whose rows must be waited for.
func (m *Manager) locked() []*record {
	return slices.DeleteFunc(m.held(), func(r *record) bool { return !r.mustWait() })
}

// places counts the places that must be waited for.
func (m *Manager) places() int {
	all := make(map[place]struct{})
	for _, r := range m.locked() {
		all[r.place()] = struct{}{}
	}
	return len(all)
}
