package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/nodes"
)

// wanted is what a call asks for.
type wanted struct {
	shared  bool
	permits int // a permit of a semaphore of so many
}

var exclusive, shared = wanted{}, wanted{shared: true}

// memoryLease is what there is of a key: its lease, its readers, or its permits.
type memoryLease struct {
	token  uint64 // of the last grant of the lease
	last   uint64 // and of its readers and permits
	use    int    // 1: it was shared, -n: it is a semaphore of n
	holder *holding
	others []*holding // readers and permits
	queue  []*leaseWait
}

// holding is a lease, a reader's place or a permit that an owner holds.
type holding struct {
	wanted
	by      *Manager
	row     *memoryLease
	key     txlock.Key
	owner   string
	token   uint64
	slot    int // of a permit, from 1
	terms   nodes.Terms
	ends    time.Time // of MaxLifetime
	until   time.Time // when it expires
	stop    func()    // the alarm for that
	over    bool      // it is free, or somebody else's
	lost    error
	handles []*Lease
}

// leaseWait is a call that asks for a lease, and may wait for it.
type leaseWait struct {
	wanted
	m     *Manager
	key   txlock.Key
	terms nodes.Terms
	owner string
	named bool              // the owner may hold it already
	under *holding          // what the context carries of this key, if it does
	done  chan leaseOutcome // of one place
}

type leaseOutcome struct {
	lease *Lease
	err   error
}

// ask gives what is wanted, or a place among those who wait.
func (w *leaseWait) ask(ctx context.Context, wait bool) (l *Lease, waits bool, err error) {
	memory := w.m.memory
	memory.mu.Lock()
	defer memory.mu.Unlock()
	if w.m.closed {
		return nil, false, w.m.errClosed()
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	row := memory.leaseOf(w.key)
	row.expire()
	if l, err := row.enter(w); l != nil || err != nil {
		return l, false, err
	}
	if w.m.quorum != nil {
		if err := w.m.quorum.majority(); err != nil {
			return nil, false, err
		}
	}
	if err := row.useFor(w); err != nil {
		return nil, false, err
	}
	switch {
	case row.admits(w) && (len(row.queue) == 0 || row.readsOn(w)):
		return row.give(w), false, nil
	case !wait:
		return nil, false, txlock.ErrBusy
	}
	row.queue = append(row.queue, w)
	memory.wait(w.key, 1)
	return nil, true, nil
}

// await waits for the lease, until the limit or the end of the context.
func (w *leaseWait) await(ctx context.Context) (*Lease, error) {
	memory := w.m.memory
	leave := func(why func(row *memoryLease) error) {
		memory.mu.Lock()
		defer memory.mu.Unlock()
		row := memory.leaseOf(w.key)
		row.leave(w, leaseOutcome{err: why(row)})
	}
	if limit := w.terms.WaitAtMost; limit > 0 {
		defer memory.clock.after(limit, func() {
			leave(func(row *memoryLease) error {
				return fmt.Errorf("%w: after %v %s", txlock.ErrWaitTimeout, limit, row.obstacle(w))
			})
		})()
	}
	defer context.AfterFunc(ctx, func() { leave(func(*memoryLease) error { return ctx.Err() }) })()
	o := <-w.done
	return o.lease, o.err
}

// leaseOf returns what there is of a key, under Memory.mu as all below.
func (m *Memory) leaseOf(key txlock.Key) *memoryLease {
	row := m.leases[key.String()]
	if row == nil {
		row = new(memoryLease)
		m.leases[key.String()] = row
	}
	return row
}

// held returns all that is held.
func (row *memoryLease) held() []*holding {
	if row.holder == nil {
		return slices.Clone(row.others)
	}
	return append([]*holding{row.holder}, row.others...)
}

// expire ends what is over by the clock.
func (row *memoryLease) expire() {
	for _, h := range row.held() {
		h.check()
	}
}

// enter gives another handle of what the context carries, or the owner that it names
// holds already, and refuses to make a reader a writer. Readers and the leases of a quorum
// are entered in their own manager.
func (row *memoryLease) enter(w *leaseWait) (*Lease, error) {
	for _, h := range row.held() {
		switch {
		case h != w.under && (!w.named || h.owner != w.owner) || h.permits > 0 || len(h.handles) == 0:
		case h.shared && !w.shared:
			return nil, fmt.Errorf("%w: owner %q reads under this lease: release that first, or acquire it exclusively from the beginning", txlock.ErrUpgrade, h.owner)
		case h.by != w.m && (h.shared || w.shared || w.m.quorum != nil):
		default:
			return h.enter(), nil
		}
	}
	return nil, nil
}

// useFor notes what a key is used for, which doesn't change.
func (row *memoryLease) useFor(w *leaseWait) error {
	use := -w.permits
	switch {
	case w.shared:
		use = 1
	case w.permits == 0 && row.use >= 0:
		return nil // a writer
	}
	if row.use == 0 {
		row.use = use
	}
	switch {
	case row.use == use:
		return nil
	case row.use > 0:
		return fmt.Errorf("%w: %q is used for a shared lease: use another key", txlock.ErrInvalidKey, w.key)
	case use >= 0:
		return fmt.Errorf("%w: %q is used for a semaphore of %d permits: use another key", txlock.ErrInvalidKey, w.key, -row.use)
	}
	return fmt.Errorf("%w: the semaphore %q has %d permits, not %d: use Resize to change that", txlock.ErrInvalidOption, w.key, -row.use, w.permits)
}

// admits tells whether what is wanted is free.
func (row *memoryLease) admits(w *leaseWait) bool {
	switch {
	case w.permits > 0:
		return row.freeSlot(w.permits) > 0
	case w.shared:
		return row.holder == nil || row.readsOn(w)
	}
	return row.holder == nil && len(row.others) == 0
}

// obstacle says what keeps a call from what it wants.
func (row *memoryLease) obstacle(w *leaseWait) string {
	switch {
	case row.admits(w):
		return "others were before it"
	case w.permits > 0:
		return "no permit was free"
	case row.holder != nil:
		return fmt.Sprintf("owner %q had it", row.holder.owner)
	}
	return "readers had it"
}

// readsOn tells whether a writer wants to read: it waits for nobody.
func (row *memoryLease) readsOn(w *leaseWait) bool {
	return w.shared && row.holder != nil && (row.holder == w.under || row.holder.owner == w.owner)
}

// freeSlot returns the lowest of n permits that is free, or 0.
func (row *memoryLease) freeSlot(n int) int {
	for slot := 1; slot <= n; slot++ {
		if !slices.ContainsFunc(row.others, func(h *holding) bool { return h.slot == slot }) {
			return slot
		}
	}
	return 0
}

// give makes what is wanted that of an owner.
func (row *memoryLease) give(w *leaseWait) *Lease {
	memory := w.m.memory
	h := &holding{wanted: w.wanted, by: w.m, row: row, key: w.key, owner: w.owner, terms: w.terms}
	if w.under != nil && !w.under.over {
		h.owner = w.under.owner
	}
	if w.wanted == exclusive {
		row.token = memory.nextToken(row.token)
		h.token, row.holder = row.token, h
	} else {
		row.last = memory.nextToken(row.last)
		h.token, h.slot = row.last, row.freeSlot(w.permits)
		row.others = append(row.others, h)
	}
	if w.terms.MaxLifetime > 0 {
		h.ends = memory.clock.now().Add(w.terms.MaxLifetime)
	}
	h.extend()
	return h.enter()
}

// serve gives to the first who wait, as far as they don't exclude each other, and to
// owners that enter again.
func (row *memoryLease) serve() {
	behind := false // somebody who has to wait on
	for _, w := range slices.Clone(row.queue) {
		if w.m.closed || !slices.Contains(row.queue, w) {
			continue // it is told, or was
		}
		l, err := row.enter(w)
		if l == nil && err == nil {
			err = row.useFor(w)
		}
		if l == nil && err == nil && !behind && row.admits(w) {
			l = row.give(w)
		}
		if l == nil && err == nil {
			behind = true
			continue
		}
		row.leave(w, leaseOutcome{l, err})
	}
}

// leave takes a call out of the queue with its outcome, unless it has one.
func (row *memoryLease) leave(w *leaseWait, o leaseOutcome) {
	i := slices.Index(row.queue, w)
	if i < 0 {
		return
	}
	row.queue = slices.Delete(row.queue, i, i+1)
	w.m.memory.wait(w.key, -1)
	w.done <- o
	if o.lease == nil {
		row.serve() // who was behind
	}
}

// extend lets what is held live for another TTL.
func (h *holding) extend() {
	m := h.by.memory
	if h.stop != nil {
		h.stop()
	}
	h.until = m.clock.now().Add(h.terms.TTL)
	if !h.ends.IsZero() && h.until.After(h.ends) {
		h.until = h.ends
	}
	h.stop = m.clock.after(h.until.Sub(m.clock.now()), func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		h.check()
	})
}

// check ends what is held when its time is over.
func (h *holding) check() {
	if h.over || h.by.memory.clock.now().Before(h.until) {
		return
	}
	cause := errExpired
	if !h.ends.IsZero() && !h.until.Before(h.ends) {
		cause = errLifetime
	}
	h.lose(cause)
}

// The causes of a loss.
var (
	errReplaced = errors.New("it was taken over or released by force")
	errExpired  = errors.New("its time is over and it was not renewed")
	errLifetime = errors.New("its maximum lifetime is over")
)

// lose tells every handle that it is lost.
func (h *holding) lose(cause error) {
	h.lost = fmt.Errorf("lease %q, token %d: %w: %w", h.key, h.token, txlock.ErrLost, cause)
	for _, l := range h.handles {
		l.end(h.lost)
	}
	h.leave()
}

// leave frees what was held.
func (h *holding) leave() {
	h.stop()
	h.over = true
	if h.row.holder == h {
		h.row.holder = nil
	}
	h.row.others = slices.DeleteFunc(h.row.others, func(other *holding) bool { return other == h })
	h.row.serve()
	h.by.memory.changed()
}
