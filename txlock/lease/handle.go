package lease

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/dca00107/lockstep/txlock"
)

// handle is what the manager knows of a Lease. It doesn't refer to the Lease, unless the
// program may wait for a channel or a context of that: so a Lease that the program drops
// becomes garbage.
type handle struct {
	record  *record
	again   bool            // the owner had a handle before
	cleanup runtime.Cleanup // notes that the Lease is garbage
	garbage atomic.Bool

	// The fields below are guarded by record.mu.
	released bool
	done     chan struct{} // made by Done
	over     error         // why it has ended
	contexts map[context.Context]context.CancelCauseFunc
	kept     *Lease // see keep
}

// lease makes the Lease of a handle. The caller holds record.mu.
func (h *handle) lease() *Lease {
	l := &Lease{h}
	h.cleanup = runtime.AddCleanup(l, (*handle).drop, h)
	return l
}

// drop notes that the Lease is garbage. The loop of renewals does the rest: a cleanup runs
// outside of any bubble of testing/synctest, whose channels and timers it must not touch.
func (h *handle) drop() {
	h.garbage.Store(true)
	h.record.m.dropped.Store(true)
}

// keep makes the Lease one that is used until it has ended. The caller holds record.mu.
func (h *handle) keep(l *Lease) {
	if h.over == nil {
		h.kept = l
	}
}

// forgetEnded forgets the contexts that have ended by their parents: each keeps its Lease.
// The caller holds record.mu.
func (h *handle) forgetEnded() {
	maps.DeleteFunc(h.contexts, func(ctx context.Context, _ context.CancelCauseFunc) bool { return ctx.Err() != nil })
}

// end marks the handle as over, and closes its channel and its contexts. The caller holds
// record.mu.
func (h *handle) end(why error) {
	if h.over != nil {
		return
	}
	h.over, h.kept = why, nil
	if h.done != nil {
		close(h.done)
	}
	for _, cancel := range h.contexts {
		cancel(why)
	}
	h.contexts = nil
}

// enter makes another handle, or returns nil if the lease doesn't count any more. A lease
// whose transaction may not be committed yet is entered only with pending.
func (r *record) enter(pending bool) *Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost != nil || r.handles == nil || r.pending && !pending || r.m.store.Now() >= r.deadline {
		return nil
	}
	h := &handle{record: r, again: true}
	r.handles = append(r.handles, h)
	if len(r.handles) == 1 { // the others were dropped, so it was not renewed
		r.m.expect(r.dueAt())
	}
	return h.lease()
}

// leave removes a handle. After the last one, the caller releases the lease.
func (r *record) leave(h *handle) (last bool, lost error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.released {
		return false, nil
	}
	r.letGo(h)
	if i := slices.Index(r.handles, h); i >= 0 {
		r.handles = slices.Delete(r.handles, i, i+1)
	}
	if len(r.handles) > 0 || r.handles == nil {
		return false, r.lost
	}
	r.handles = nil
	r.expiry.Stop()
	return true, r.lost
}

// leaveAll removes all handles, also if all were dropped. It returns false if the record
// has ended already.
func (r *record) leaveAll() (last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.handles == nil || r.lost != nil {
		return false
	}
	for _, h := range r.handles {
		r.letGo(h)
	}
	r.handles = nil
	r.expiry.Stop()
	return true
}

// letGo marks a handle as released. The caller holds record.mu.
func (r *record) letGo(h *handle) {
	h.released = true
	h.cleanup.Stop()
	h.end(released{r.key, r.token.Load()})
}

// errDropped is the cause of a loss, and the error of txlock.Dropped.
var errDropped = errors.New("the program dropped its handle without Release")

// noticeDropped tells the observer of handles that were dropped since the last call.
func (m *Manager) noticeDropped() {
	if !m.dropped.Swap(false) {
		return
	}
	for _, r := range m.held() {
		for range r.removeDropped() {
			r.report(context.Background(), txlock.Dropped, r.granted.Until(m.store.Now()), errDropped)
		}
	}
}

// removeDropped removes the handles that were dropped, and returns how many.
func (r *record) removeDropped() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.handles)
	r.handles = slices.DeleteFunc(r.handles, func(h *handle) bool {
		if h.garbage.Load() {
			h.end(errDropped)
		}
		return h.garbage.Load()
	})
	return before - len(r.handles)
}
