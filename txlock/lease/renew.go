package lease

import (
	"context"
	"math"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
)

const (
	// renewalChunk is how many leases one statement renews at most. If there are leases
	// with a short TTL the limit is lower, but at least leastChunk.
	renewalChunk = 900
	leastChunk   = 50
	// leastPause and mostPause bound the time between a failed renewal and the next.
	leastPause = time.Millisecond
	mostPause  = time.Second
)

// renewals is the loop that renews the leases of the manager. A turn looks at all of them
// and is short, so that a lease that has become more urgent meanwhile comes first.
func (m *Manager) renewals() {
	next := time.NewTimer(time.Minute)
	defer next.Stop()
	var expected instant // for which the loop was woken last
	for m.ending.Err() == nil {
		m.sleepsUntil.Store(awake)
		m.noticeDropped()
		m.renewDue()
		m.store.Settle(m.idle)
		d := m.untilDue()
		// That lease may be released already. Not to sleep for longer saves the next one,
		// which is due later, from waking the loop again.
		if left := m.store.Now().Until(expected); left > 0 {
			d = min(d, left)
		}
		m.sleepsUntil.Store(int64(m.store.Now().Add(d)))
		if d == 0 {
			continue
		}
		next.Reset(d)
		select {
		case <-m.ending.Done():
		case <-m.nudge:
			expected = instant(m.sleepsUntil.Load())
		case <-next.C:
		}
	}
}

// turnsPerTTL bounds a turn of the loop, to a part of the shortest TTL.
const turnsPerTTL = 20

// renewDue renews what is due, in batches. It ends early if the turn has taken too long,
// or something else will be due before that.
func (m *Manager) renewDue() {
	turn := m.store.Now()
	due, shortest := m.due()
	sortByUrgency(due)
	for end := turn.Add(shortest / turnsPerTTL); len(due) > 0; {
		var b batch
		b, due = nextBatch(due, shortest, m.chunk)
		m.renewBatch(b, turn)
		if m.store.Now() > end || instant(m.sleepsUntil.Load()) < end {
			return
		}
	}
}

// awake is the value of sleepsUntil while the loop doesn't sleep and nothing is expected.
const awake = math.MaxInt64

// expect wakes the loop if it would sleep for longer than until the moment due.
func (m *Manager) expect(due instant) {
	for until := m.sleepsUntil.Load(); int64(due) < until; until = m.sleepsUntil.Load() {
		if m.sleepsUntil.CompareAndSwap(until, int64(due)) {
			m.wake()
			return
		}
	}
}

// wake makes the loop look again at what is due.
func (m *Manager) wake() {
	select {
	case m.nudge <- struct{}{}:
	default:
	}
}

// schedule returns when a record is to be renewed, and how much sooner it may be renewed
// together with others. The caller holds record.mu.
func (r *record) schedule() (due instant, early time.Duration) {
	every := r.every()
	switch {
	case r.lifetime > 0 && r.deadline >= r.lifetime, len(r.handles) == 0:
		return r.deadline.Add(time.Hour), 0 // never
	case r.skipped > 0:
		// It has failed, or the row was locked: try again soon, before the lease is lost.
		pause := min(max(r.tried.Until(r.deadline)/8, leastPause), mostPause, every)
		return r.tried.Add(pause), pause / 2
	}
	return r.renewed.Add(every), every / 2
}

// dueAt returns when a record is to be renewed. The caller holds record.mu.
func (r *record) dueAt() instant {
	due, _ := r.schedule()
	return due
}

// every is the interval of renewals.
func (r *record) every() time.Duration {
	if r.m.options.renewEvery > 0 {
		return r.m.options.renewEvery
	}
	return r.ttl / 3
}

// due returns the records to be renewed now, and the shortest TTL of all. Where one is due
// it includes those that are due soon, so that leases of the same kind are renewed
// together, and those that have failed together are tried again together.
func (m *Manager) due() (due []*record, shortest time.Duration) {
	at, ripe := m.store.Now(), false
	shortest = MaxTTL
	for _, r := range m.held() {
		r.mu.Lock()
		shortest = min(shortest, r.ttl)
		when, early := r.schedule()
		if r.renewing == nil && when <= at.Add(early) && r.renewed.Until(at) > 0 {
			due, ripe = append(due, r), ripe || when <= at
		}
		r.mu.Unlock()
	}
	if !ripe { // the loop has woken up to look at the clock
		due = nil
	}
	return due, shortest
}

// untilDue returns for how long the loop may sleep. While leases are held that is at most
// a minute, as the machine may be suspended meanwhile.
func (m *Manager) untilDue() time.Duration {
	d := time.Hour
	at := m.store.Now()
	for _, r := range m.held() {
		d = min(d, time.Minute)
		r.mu.Lock()
		if r.renewing == nil {
			d = min(d, at.Until(r.dueAt()))
		}
		r.mu.Unlock()
	}
	return max(d, 0)
}

// idle reports whether the manager holds nothing and no request may be granted at the
// moment.
func (m *Manager) idle() bool { return m.granting.Load() == 0 && m.holding.Load() == 0 }

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

// renewBatch renews records by a statement that doesn't wait for locks. Rows that it
// finds locked too often, or late, are waited for in the background. The next renewal of
// all of them counts from turn, so that they stay together.
func (m *Manager) renewBatch(b batch, turn instant) {
	patience := maxPatience
	for at, r := range b {
		if r.err() != nil || !r.beginRenewal(nil) { // its time was over before its turn came
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
	sent := m.store.Now()
	found, questions, err := b.renew(ctx, m.store)
	m.pace(len(b), sent.Until(m.store.Now()), patience)
	b.settle(found, questions, err, sent, turn)
	for _, r := range b {
		if r.mustWait() {
			m.waitFor(r)
		}
	}
}

// pace makes the next statement smaller if one took much of the time that it had. As many
// leases once more, in what is left then, would be late again, until all of them are lost.
func (m *Manager) pace(rows int, took, patience time.Duration) {
	switch {
	case took >= patience:
		m.chunk = max(rows/8, leastChunk)
	case took > patience/2:
		m.chunk = max(rows/2, leastChunk)
	case took < patience/4:
		m.chunk = min(2*m.chunk, renewalChunk)
	}
}

// settle notes what has become of the records of a batch.
func (b batch) settle(found map[store.Row]store.Standing, questions []store.Question, err error, sent, turn instant) {
	for _, question := range questions {
		if r := b[question.Row]; r != nil {
			r.ask(question)
		}
	}
	for at, r := range b {
		lost := false
		switch {
		case err != nil:
			r.setback(err)
		case found[at] == store.Renewed:
			r.extend(sent, turn)
		case found[at] == store.Skipped || r.isPending(): // pending: nobody can see yet that it is ours
			r.setback(errRowLocked)
		default:
			lost = true
		}
		r.endRenewal()
		if lost {
			r.lose(ErrReplaced)
		}
	}
}
