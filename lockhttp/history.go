package lockhttp

import (
	"slices"
	"sync"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
)

const (
	step  = 10 * time.Second
	steps = int64(time.Hour / step)
)

// hour has a sample for each step of the last hour in which something was noted.
type hour[T any] struct {
	samples [steps]T
	steps   [steps]int64 // which step since 1970 each is of
}

// at returns the sample of a moment, to be changed.
func (h *hour[T]) at(t time.Time) *T {
	n := t.UnixNano() / int64(step)
	if i := n % steps; h.steps[i] != n {
		var empty T
		h.samples[i], h.steps[i] = empty, n
	}
	return &h.samples[n%steps]
}

// point is a sample and its place in the last hour, 0 for the oldest.
type point[T any] struct {
	x      int
	sample T
}

// points returns the samples of the last hour, in order.
func (h *hour[T]) points(now time.Time) (all []point[T]) {
	last := now.UnixNano() / int64(step)
	for x := range steps {
		if n := last - steps + 1 + x; h.steps[n%steps] == n {
			all = append(all, point[T]{int(x), h.samples[n%steps]})
		}
	}
	return all
}

// history is what looks have seen in the last hour.
type history struct {
	mu    sync.Mutex
	hour  hour[seenSample]
	last  map[held]happening
	ended time.Time // of the last look
	news  ring
	rates ops.Rates
}

// seenSample is what looks have seen in a part of the hour: the most of each.
type seenSample struct {
	locks, leases, waits int
	longest              ops.Seconds
	grants, most         float64       // of locks, by the tokens that were seen, and by the rows that the server has updated
	over                 time.Duration // between the looks that tell of grants
	counted              time.Duration // and between those that have the server's count
}

// held is a grant.
type held struct {
	row     ops.Row
	session uint64
	token   uint64
}

// note takes over what a look has found, and how many rows of locks the server has updated, or 0.
func (h *history) note(now time.Time, c content, updates float64) {
	grants := make(map[held]happening, len(c.Locks)+len(c.Leases))
	for _, l := range c.Locks {
		if l.Kind != ops.Other {
			grants[held{l.Row, l.Session, l.Token}] = happening{Kind: string(l.Kind), Key: l.Key, Slot: l.Slot, Owner: l.Owner, Token: l.Token, Took: l.Held}
		}
	}
	leases := 0
	for _, l := range c.Leases {
		if l.Kind != "waiter" {
			leases++
			grants[held{ops.Row{Kind: ops.LeaseRow, Key: l.Key, Slot: l.Slot}, 0, l.Token}] = happening{Kind: "lease", Key: l.Key, Slot: l.Slot, Owner: l.Owner, Token: l.Token, Took: l.Held}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.hour.at(now)
	s.locks, s.leases, s.waits = max(s.locks, len(c.Locks)), max(s.leases, leases), max(s.waits, len(c.Waits))
	for _, w := range c.Waits {
		s.longest = max(s.longest, w.For)
	}
	_, rate, most := h.rates.See(c.Picture, updates)
	if between := now.Sub(h.ended); between < step { // else there is nothing to compare with
		h.compare(now, grants)
		s.over += between
		s.grants += rate.PerSecond * between.Seconds()
		if most > 0 || updates > 0 {
			s.counted += between
			s.most += most * between.Seconds()
		}
	}
	h.last, h.ended = grants, now
}

// compare notes what is new and what is gone.
func (h *history) compare(now time.Time, grants map[held]happening) {
	tell := func(what string, e happening) {
		e.At, e.What, e.From = now, what, "server"
		h.news.add(e)
	}
	for grant, e := range h.last {
		if _, still := grants[grant]; !still {
			tell("ended", e)
		}
	}
	for grant, e := range grants {
		if _, old := h.last[grant]; !old {
			tell("held", e)
		}
	}
}

func (h *history) events(now time.Time) ([]happening, []point[seenSample]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.news.list(), h.hour.points(now)
}

// timeline returns the events of both sources, the last ones first, as viewers see them.
func (h *Handler) timeline() []happening {
	now := time.Now()
	seen, _ := h.history.events(now)
	own, _ := h.recorder.events(now)
	all := slices.Concat(seen, own)
	slices.SortStableFunc(all, func(a, b happening) int { return b.At.Compare(a.At) })
	for i := range all {
		replace(&all[i].Key, h.keys)
		replace(&all[i].Owner, h.notes)
	}
	return all
}
