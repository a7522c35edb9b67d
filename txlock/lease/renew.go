package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dca00107/lockstep/gen"
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

// batch is what one transaction renews: leases of any keys, or readers and permits
// of one.
type batch struct {
	name    string // of readers and permits
	records map[row]*record
}

// row is a row of the table.
type row struct {
	key  string
	slot int64
}

func (r *record) row() row { return row{r.key.String(), r.slot} }

// batches divides records into batches. Of two records of one row, one of which has
// lost it, the second goes into a batch of its own.
func batches(records []*record) []*batch {
	var all []*batch
	open := make(map[string]*batch)
	for _, r := range records {
		name := ""
		if r.slot != leaseSlot {
			name = r.key.String()
		}
		b := open[name]
		if b == nil || len(b.records) == renewalChunk || b.records[r.row()] != nil {
			b = &batch{name: name, records: make(map[row]*record)}
			open[name] = b
			all = append(all, b)
		}
		b.records[r.row()] = r
	}
	return all
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

// renew is renew in a transaction.
func (b *batch) renew(ctx context.Context, tx *sql.Tx) (ours, locked map[row]bool, err error) {
	tokens := make([]uint64, 0, len(b.records))
	for _, r := range b.records {
		tokens = append(tokens, r.token.Load())
	}
	free, err := b.lock(ctx, tx, tokens)
	if err != nil {
		return nil, nil, err
	}
	ours = b.own(free)
	if len(ours) > 0 {
		if err := b.extend(ctx, tx, ours); err != nil {
			return nil, nil, err
		}
	}
	if len(ours) == len(b.records) {
		return ours, nil, nil
	}
	left := make(map[row]bool)
	for at := range b.records {
		if !ours[at] {
			left[at] = true
		}
	}
	current, err := b.read(ctx, tx, left)
	return ours, b.own(current), err
}

// held is a row as it was read.
type held struct {
	row
	owner string
	token uint64
}

// own returns which of the rows are still the records'.
func (b *batch) own(rows []held) map[row]bool {
	own := make(map[row]bool, len(rows))
	for _, h := range rows {
		if r := b.records[h.row]; r != nil && r.token.Load() == h.token && r.owner == h.owner {
			own[h.row] = true
		}
	}
	return own
}

// names and slots are the parameters for rows, of which one varies.
func names(rows map[row]bool) (names [][]byte) {
	for at := range rows {
		names = append(names, []byte(at.key))
	}
	return names
}

func slots(rows map[row]bool) (slots []int64) {
	for at := range rows {
		slots = append(slots, at.slot)
	}
	return slots
}

func (b *batch) all() map[row]bool {
	rows := make(map[row]bool, len(b.records))
	for at := range b.records {
		rows[at] = true
	}
	return rows
}

// lock locks the rows that nobody else has locked.
func (b *batch) lock(ctx context.Context, tx gen.DBTX, tokens []uint64) (found []held, err error) {
	if b.name == "" {
		rows, err := queries.LeasesForRenewal(ctx, tx, gen.LeasesForRenewalParams{Slot: leaseSlot, Names: names(b.all()), Tokens: tokens})
		for _, r := range rows {
			found = append(found, held{row{string(r.Name), leaseSlot}, string(r.Owner), r.Token})
		}
		return found, err
	}
	rows, err := queries.PermitsForRenewal(ctx, tx, gen.PermitsForRenewalParams{Name: []byte(b.name), Slots: slots(b.all()), Tokens: tokens})
	for _, r := range rows {
		found = append(found, held{row{b.name, r.Slot}, string(r.Owner), r.Token})
	}
	return found, err
}

// extend sets the expiry of rows that are locked.
func (b *batch) extend(ctx context.Context, tx gen.DBTX, rows map[row]bool) error {
	if b.name == "" {
		return queries.ExtendLeases(ctx, tx, gen.ExtendLeasesParams{Slot: leaseSlot, Names: names(rows)})
	}
	return queries.ExtendPermits(ctx, tx, gen.ExtendPermitsParams{Name: []byte(b.name), Slots: slots(rows)})
}

// read reads rows without a lock.
func (b *batch) read(ctx context.Context, tx gen.DBTX, rows map[row]bool) (found []held, err error) {
	if b.name == "" {
		current, err := queries.LeasesNow(ctx, tx, gen.LeasesNowParams{Slot: leaseSlot, Names: names(rows)})
		for _, r := range current {
			found = append(found, held{row{string(r.Name), leaseSlot}, string(r.Owner), r.Token})
		}
		return found, err
	}
	current, err := queries.PermitsNow(ctx, tx, gen.PermitsNowParams{Name: []byte(b.name), Slots: slots(rows)})
	for _, r := range current {
		found = append(found, held{row{b.name, r.Slot}, string(r.Owner), r.Token})
	}
	return found, err
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
