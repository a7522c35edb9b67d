package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"
)

const (
	// renewalChunk is how many leases one transaction renews.
	renewalChunk = 900
	// keepFor is how long a connection is kept for the next renewal.
	keepFor = time.Minute
	// leastPause and mostPause bound the time between a renewal that has failed
	// and the next.
	leastPause = time.Millisecond
	mostPause  = time.Second
)

// renewals is the loop that renews the leases of the manager.
func (m *Manager) renewals() {
	var conn renewalConn
	defer conn.close()
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
		for _, batch := range batches(m.due()) {
			m.renewBatch(&conn, batch, turn)
		}
		d := m.untilDue()
		if most := m.db.Stats().MaxOpenConnections; d >= keepFor || most == 1 || most == 2 {
			conn.close()
		}
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
// every keepFor, for a suspended machine's sake.
func (m *Manager) untilDue() time.Duration {
	d := time.Hour
	at := now()
	for _, r := range m.held() {
		d = min(d, keepFor)
		r.mu.Lock()
		if r.renewing == nil {
			d = min(d, at.until(r.dueAt()))
		}
		r.mu.Unlock()
	}
	return max(d, 0)
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

// renewBatch renews records by one transaction that waits for no row. Those whose
// row is locked too often, or too late, are renewed each by itself. The next renewal of
// all counts from the turn, so that they stay together.
func (m *Manager) renewBatch(conn *renewalConn, b *batch, turn instant) {
	patience := maxPatience
	for at, r := range b.records {
		switch {
		case r.err() != nil: // its time was over before the turn came: told
			delete(b.records, at)
		case r.needsItsOwn():
			delete(b.records, at)
			m.renewAlone(r)
		case !r.beginRenewal(nil):
			delete(b.records, at)
		default:
			patience = min(patience, r.left()/2)
		}
	}
	if len(b.records) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(m.ending, max(patience, leastPause))
	defer cancel()
	sent := now()
	ours, locked, err := conn.renew(ctx, m.db.DB, b)
	for at, r := range b.records {
		switch {
		case err != nil:
			r.setback(err)
		case ours[at]:
			r.extend(sent, turn)
		case locked[at]:
			r.setback(errRowLocked)
		}
		r.endRenewal()
		if err == nil && !ours[at] && !locked[at] {
			r.lose(ErrReplaced)
		}
	}
}

var errRowLocked = errors.New("the row is locked by an open transaction")

// needsItsOwn tells whether a record is to be renewed by a transaction that waits
// for its row.
func (r *record) needsItsOwn() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending || errors.Is(r.failed, errRowLocked) && (r.skipped >= 2 || now().until(r.deadline) < r.ttl/2)
}

// renewalConn is the connection that the loop keeps.
type renewalConn struct{ conn *sql.Conn }

// renew extends those of the leases that are ours and not locked, and tells of the
// others whether they are ours still.
func (c *renewalConn) renew(ctx context.Context, db *sql.DB, b *batch) (ours, locked map[row]bool, err error) {
	if c.conn == nil {
		if c.conn, err = db.Conn(ctx); err != nil {
			c.conn = nil
			return nil, nil, fmt.Errorf("get a connection: %w", err)
		}
	}
	err = inTx(ctx, c.conn, func(tx *sql.Tx) (err error) {
		ours, locked, err = b.renew(ctx, tx)
		return err
	})
	if err != nil {
		c.discard()
	}
	return ours, locked, err
}

// discard closes the connection, whose state is not known.
func (c *renewalConn) discard() {
	if c.conn == nil {
		return
	}
	discard(c.conn)
	c.conn = nil
}

// close gives the connection back to the pool.
func (c *renewalConn) close() {
	if c.conn == nil {
		return
	}
	_ = c.conn.Close() // an error is that of a connection that is gone already
	c.conn = nil
}
