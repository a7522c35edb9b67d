package ops

import (
	"cmp"
	"hash/crc32"
	"slices"
	"strings"
)

// SlotOf returns the slot that a key of a hashed family falls on.
func SlotOf(key string) int64 { return int64(crc32.ChecksumIEEE([]byte(key)) % (1 << 16)) }

// bySlot orders keys by the slots that they would fall on.
func bySlot(keys []string) map[int64][]string {
	slots := make(map[int64][]string)
	for _, key := range keys {
		slots[SlotOf(key)] = append(slots[SlotOf(key)], key)
	}
	return slots
}

// place is a row; several rows of a table that isn't lockstep's have the same name. Behind DDL that
// waits for a table is another place than that of the DDL.
type place struct {
	Row
	place  string
	queued bool
}

func (s rowLock) at() place {
	if s.Kind == Other {
		return place{Row: s.Row, place: s.place}
	}
	return place{Row: s.Row}
}

// assemble joins what was found: the locks, who waits for them, and how many.
func (l *look) assemble(held []Lock) {
	holders := l.holders(held)
	for _, s := range l.seen {
		if s.waiting && !slices.ContainsFunc(l.Waits, func(w Wait) bool { return w.Session == s.session && w.Row == s.Row }) {
			l.Waits = append(l.Waits, l.waitOf(s, holders[s.at()]))
		}
	}
	for _, first := range l.Leases {
		if first.Kind == waiter && first.Session != 0 { // a writer that waits for readers polls
			l.Waits = append(l.Waits, Wait{Row: Row{Kind: LeaseRow, Key: first.Key}, Mode: Exclusive, Session: first.Session, For: first.Held, Blockers: []uint64{}})
		}
	}
	l.Locks = held
	l.count()
}

// count counts the waiters of each lock and lease, which is held at least since it was renewed.
func (l *look) count() {
	waiters := make(map[Row]Count)
	for _, w := range l.Waits {
		waiters[w.Row]++
	}
	of := func(rows ...Row) (n Count) {
		if l.unwaited || len(l.faded) > 0 {
			return uncounted
		}
		for _, row := range rows {
			n += waiters[row]
		}
		return n
	}
	for i := range l.Locks {
		l.Locks[i].Waiters = of(l.Locks[i].Row)
	}
	for i := range l.Leases {
		lease := &l.Leases[i]
		if lease.Renewed.Known() { // which was read after now, from where the other counts
			lease.Held = max(lease.Held, lease.Renewed)
		}
		rows := []Row{{Kind: Queue, Key: lease.Key, Slot: -1}}
		if lease.Kind != waiter {
			rows = append(rows, Row{Kind: LeaseRow, Key: lease.Key, Slot: lease.Slot})
		}
		lease.Waiters = of(rows...)
	}
}

// holders returns who holds each row, as the server lists it, or as the rows tell.
func (l *look) holders(held []Lock) map[place][]rowLock {
	holders := make(map[place][]rowLock)
	for _, s := range l.seen {
		if !s.waiting {
			holders[s.at()] = append(holders[s.at()], s)
		}
	}
	for _, lock := range held {
		if lock.Session == 0 && !lock.Detached { // it has no holder at the moment
			continue
		}
		here := place{Row: lock.Row}
		if !slices.ContainsFunc(holders[here], func(s rowLock) bool { return s.session == lock.Session }) {
			holders[here] = append(holders[here], rowLock{Row: lock.Row, session: lock.Session, detached: lock.Detached, unsure: lock.Unsure})
		}
	}
	return holders
}

func (l *look) waitOf(s rowLock, holders []rowLock) Wait {
	w := Wait{Row: s.Row, Mode: s.mode, Session: s.session, Blockers: []uint64{}, place: s.at().place}
	_, w.Changing = l.changing[s.Row]
	if t := l.open[s.session]; t != nil {
		w.For = t.waits
	}
	for _, h := range holders {
		switch {
		case h.detached:
			w.Detached = true
		case h.session != s.session:
			w.addBlocker(h.session)
			w.Unsure = w.Unsure || h.unsure
		}
	}
	return w
}

// addBlocker adds who holds what is waited for, once, in order.
func (w *Wait) addBlocker(session uint64) {
	if at, has := slices.BinarySearch(w.Blockers, session); !has {
		w.Blockers = slices.Insert(w.Blockers, at, session)
	}
}

// stranger tells whether the wait is for what is not lockstep's.
func (w Wait) stranger() bool {
	return w.Kind == Other || w.Kind == Table && !w.Unsure && (strings.Contains(w.Table, ".") || !strings.HasPrefix(w.Table, "lockstep_"))
}

// dropStrangers removes the waits for rows of other tables that keep nobody from a row of
// lockstep.
func (l *look) dropStrangers() {
	ours := make(map[uint64]bool)
	for _, lock := range l.Locks {
		ours[lock.Session] = true
	}
	for grown := true; grown; {
		grown = false
		for _, w := range l.Waits {
			sure := w.Blockers
			if w.Unsure {
				sure = nil
			}
			if w.stranger() && !ours[w.Session] && !slices.ContainsFunc(sure, func(id uint64) bool { return ours[id] }) {
				continue
			}
			for _, id := range append([]uint64{w.Session}, sure...) {
				grown, ours[id] = grown || !ours[id], true
			}
		}
	}
	l.Waits = slices.DeleteFunc(l.Waits, func(w Wait) bool { return w.stranger() && !ours[w.Session] })
}

// order sorts all by what people look for: keys, and who has waited longest.
func (p *Picture) order() {
	slices.SortFunc(p.Locks, func(a, b Lock) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Slot, b.Slot), strings.Compare(string(a.Kind), string(b.Kind)), cmp.Compare(a.Session, b.Session))
	})
	slices.SortFunc(p.Leases, func(a, b Lease) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Slot, b.Slot))
	})
	slices.SortFunc(p.Waits, func(a, b Wait) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Slot, b.Slot), -cmp.Compare(a.For, b.For), cmp.Compare(a.Session, b.Session))
	})
	p.Locks, p.Leases, p.Waits, p.Gaps = notNil(p.Locks), notNil(p.Leases), notNil(p.Waits), notNil(p.Gaps)
}

// notNil returns an empty list, which JSON writes as one, in place of none.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
