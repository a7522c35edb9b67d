package lease

import (
	"context"
	"errors"
	"math"
	"time"
)

const (
	// renewalChunk is how many leases one statement renews.
	renewalChunk = 900
	// leastPause and mostPause bound the time between a renewal that has failed
	// and the next.
	leastPause = time.Millisecond
	mostPause  = time.Second
)

// renewals is the loop that renews the leases of the manager, one batch in a turn: what has
// become more urgent meanwhile comes before what was due with it.
func (m *Manager) renewals() {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-m.ending.Done():
			return
		case <-m.nudge:
		case <-next.C:
		}
		m.sleepsUntil.Store(awake)
		turn := now()
		if due := batches(m.due()); len(due) > 0 {
			m.renewBatch(due[0], turn)
		}
		m.lane.settle(m.idle())
		d := m.untilDue()
		m.sleepsUntil.Store(int64(now().add(d)))
		next.Reset(d)
	}
}

// awake is when the loop sleeps until while it does not: it looks at what comes.
const awake = math.MaxInt64

// expect makes the loop look anew if it sleeps for too long for a record.
func (m *Manager) expect(due instant) {
	if int64(due) < m.sleepsUntil.Load() {
		m.wake()
	}
}

// wake makes the loop look anew.
func (m *Manager) wake() {
	select {
	case m.nudge <- struct{}{}:
	default:
	}
}

// dueAt is when a record is to be renewed, under record.mu.
func (r *record) dueAt() instant {
	every := r.every()
	switch {
	case r.lifetime > 0 && r.deadline >= r.lifetime:
		return r.deadline.add(time.Hour) // never
	case r.skipped > 0:
		// Failed, or locked: again soon, and sooner than it is lost.
		pause := min(max(r.tried.until(r.deadline)/8, leastPause), mostPause, every)
		return r.tried.add(pause)
	}
	return r.renewed.add(every)
}

// every is the interval of renewals.
func (r *record) every() time.Duration {
	if r.m.options.renewEvery > 0 {
		return r.m.options.renewEvery
	}
	return r.ttl / 3
}

// due returns the records to be renewed now. What is due soon goes with them, so
// that leases of the same kind are renewed together.
func (m *Manager) due() []*record {
	var due []*record
	at := now()
	for _, r := range m.held() {
		r.mu.Lock()
		soon := r.every() / 2
		if r.skipped > 0 {
			soon = 0
		}
		if r.renewing == nil && r.dueAt() <= at.add(soon) && r.renewed.until(at) > 0 {
			due = append(due, r)
		}
		r.mu.Unlock()
	}
	return due
}

// untilDue returns for how long the loop may sleep. It looks at the clock at least
// every minute, for a suspended machine's sake.
func (m *Manager) untilDue() time.Duration {
	d := time.Hour
	at := now()
	for _, r := range m.held() {
		d = min(d, time.Minute)
		r.mu.Lock()
		if r.renewing == nil {
			d = min(d, at.until(r.dueAt()))
		}
		r.mu.Unlock()
	}
	return max(d, 0)
}

// idle tells whether the manager holds nothing, and is about to be granted nothing.
func (m *Manager) idle() bool {
	if m.granting.Load() > 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.records) == 0
}

// held returns the records of the manager.
func (m *Manager) held() []*record {
	m.mu.Lock()
	defer m.mu.Unlock()
	records := make([]*record, 0, len(m.records))
	for _, r := range m.records {
		records = append(records, r)
	}
	return records
}

// renewBatch renews records by a statement that waits for no row. Those whose row is
// locked too often, or too late, are renewed each by itself besides. The next renewal of
// all counts from the turn, so that they stay together.
func (m *Manager) renewBatch(b batch, turn instant) {
	patience := maxPatience
	for at, r := range b {
		if r.err() != nil || !r.beginRenewal(nil) { // its time was over before the turn came: told
			delete(b, at)
			continue
		}
		patience = min(patience, r.left()/2)
	}
	if len(b) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(m.ending, max(patience, leastPause))
	defer cancel()
	sent := now()
	found, err := m.sendBatch(ctx, b)
	for at, r := range b {
		lost := false
		switch {
		case err != nil:
			r.setback(err)
		case found[at] == renewed:
			r.extend(sent, turn)
		case found[at] == skipped || r.isPending(): // nobody sees yet that it is ours
			r.setback(errRowLocked)
		default:
			lost = true
		}
		r.endRenewal()
		switch {
		case lost:
			r.lose(ErrReplaced)
		case r.needsItsOwn():
			m.renewAlone(r)
		}
	}
}

// sendBatch renews a batch on the manager's connection. One on which something has failed is
// closed: its state is not known.
func (m *Manager) sendBatch(ctx context.Context, b batch) (map[row]standing, error) {
	conn, err := m.lane.conn(ctx)
	if err != nil {
		return nil, err
	}
	found, err := b.renew(ctx, conn)
	if err != nil {
		discard(conn)
		return nil, err
	}
	return found, conn.Close()
}

var errRowLocked = errors.New("the row is locked by an open transaction")

// needsItsOwn tells whether a record is to be renewed by a transaction that waits
// for its row.
func (r *record) needsItsOwn() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Is(r.failed, errRowLocked) && (r.pending || r.skipped >= 2 || now().until(r.deadline) < r.ttl/2)
}
