package locktest

import "slices"

// deadlocked returns who is to be rolled back, because those wait for each other who
// wait for a transaction.
func (m *Memory) deadlocked(last *transaction) *transaction {
	return m.choose(m.circle(last, last, make(map[*transaction]bool))) // whose last is the last
}

// choose returns the victim: the one with the fewest locks, and of equals not the last.
func (m *Memory) choose(circle []*transaction) (victim *transaction) {
	if m.victim != nil && circle != nil {
		scopes := make([]*Scope, len(circle))
		for i, t := range circle {
			scopes[i] = t.begun
		}
		if chosen := m.victim(scopes); chosen != nil {
			return chosen.transaction
		}
	}
	for _, t := range circle {
		if victim == nil || len(t.rows) < len(victim.rows) {
			victim = t
		}
	}
	return victim
}

// circle returns the transactions on a way of waits from one to another, backwards. It
// goes through none twice.
func (m *Memory) circle(from, to *transaction, been map[*transaction]bool) []*transaction {
	been[from] = true
	for _, other := range m.blockers(from) {
		if other == to {
			return []*transaction{from}
		}
		if been[other] {
			continue
		}
		if way := m.circle(other, to, been); way != nil {
			return append(way, from)
		}
	}
	return nil
}

// blockers are those that a transaction waits for: who holds the row, and who has come
// before it.
func (m *Memory) blockers(t *transaction) (others []*transaction) {
	for _, r := range m.rows {
		i := slices.IndexFunc(r.queue, func(w *rowWait) bool { return w.tx == t })
		if i < 0 {
			continue
		}
		for holder, sharing := range r.holders {
			if holder != t && (!r.queue[i].shared || !sharing) {
				others = append(others, holder)
			}
		}
		for _, w := range r.queue[:i] {
			if !w.shared || !r.queue[i].shared {
				others = append(others, w.tx)
			}
		}
	}
	return others
}
