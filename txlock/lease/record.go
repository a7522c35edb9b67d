package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// record is a lease that this manager holds: one hold in the row on the server. All
// handles of the owner share it, and the last of them releases it.
type record struct {
	m       *Manager
	key     txlock.Key
	slot    int64
	shared  bool
	owner   string
	hold    string
	token   atomic.Uint64 // changed by RaiseToken only, and not during a renewal
	ttl     time.Duration
	granted instant
	inside  bool // under Manager.mu: a function of the manager works with it; see works

	mu        sync.Mutex    // guards the fields below; locked before Manager.mu, never after
	deadline  instant       // until when the lease counts
	renewed   instant       // from when the next renewal counts
	tried     instant       // when the last renewal was sent
	failed    error         // why renewals have failed since the last one that succeeded
	skipped   int           // renewals in a row that found the row locked
	pending   bool          // acquired in a transaction that may not have committed yet
	draining  bool          // it waits for readers to go: nobody re-enters it
	drain     time.Duration // how long it has waited for them
	lifetime  instant       // when renewals end; 0 for never
	lost      error
	handles   []*handle // nil after the last was released
	expiry    *time.Timer
	renewing  chan struct{} // closed when the renewal that is under way has ended
	queued    bool          // the renewal waits for the row, and a release need not wait for it
	interrupt context.CancelFunc
	guardedIn uint64        // the session of the transaction that was guarded last
	atLeast   time.Duration // see HoldAtLeast; 0: none
	question  *store.Question
	revoked   chan struct{}  // made by ReleaseRequested
	told      bool           // the observer was told of a grant
	early     []txlock.Event // before it was

	first handle
	room  [2]*handle // for the first ones
}

// newRecord makes the record of a lease whose request was sent at the moment since, and
// its first handle.
func (m *Manager) newRecord(q *request, a store.Answer, since instant, pending bool) (*record, *Lease) {
	r := &record{
		m: m, key: q.key, slot: a.Slot, shared: q.shared, owner: q.owner, hold: q.hold, ttl: q.ttl,
		granted: since, renewed: since, tried: since, inside: q.inside,
	}
	r.token.Store(a.Token)
	if q.lifetime > 0 && !q.drains {
		r.lifetime = since.Add(q.lifetime)
	}
	r.mu.Lock() // the timer may call expire at once
	defer r.mu.Unlock()
	r.first.record = r
	r.handles = append(r.room[:0], &r.first)
	r.pending, r.draining = pending, q.drains
	r.deadline = r.deadlineFrom(since)
	r.expiry = time.AfterFunc(m.store.Now().Until(r.deadline), r.expire)
	return r, r.first.lease()
}

// row is the row of the lease.
func (r *record) row() store.Row { return store.Row{Key: r.key.String(), Slot: r.slot} }

// claim is what the row must contain while the lease is ours.
func (r *record) claim() store.Claim {
	return store.Claim{Row: r.row(), Owner: r.owner, Hold: r.hold, Token: r.token.Load(), Told: store.NoQuestion}
}

// at is the key of the record in the manager.
func (r *record) at() recordKey {
	at := recordKey{key: r.key.String(), owner: r.owner, shared: r.shared}
	if !r.shared {
		at.slot = r.slot
	}
	return at
}

// deadlineFrom returns until when a lease counts if its request was sent at that moment.
func (r *record) deadlineFrom(sent instant) instant {
	deadline := sent.Add(validity(r.ttl))
	if r.lifetime > 0 {
		deadline = min(deadline, r.lifetime)
	}
	return deadline
}

// committed notes that the transaction that has acquired the lease is committed.
func (r *record) committed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = false
}

// drained notes that the readers are gone: MaxLifetime and HoldAtLeast count from now.
func (r *record) drained(lifetime time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.draining {
		return // another call of its owner has waited for them
	}
	now := r.m.store.Now()
	r.draining, r.drain = false, r.granted.Until(now)
	if lifetime > 0 {
		r.lifetime = now.Add(lifetime)
	}
}

func (r *record) isDraining() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.draining
}

// err returns why the lease doesn't count any more, or nil. It compares the clock.
func (r *record) err() error {
	r.mu.Lock()
	lost, late := r.lost, r.handles != nil && r.m.store.Now() >= r.deadline
	r.mu.Unlock()
	if lost == nil && late {
		r.expire()
		return r.err()
	}
	return lost
}

// expire loses the lease if its time is over; the timer calls it.
func (r *record) expire() {
	r.mu.Lock()
	left := r.m.store.Now().Until(r.deadline)
	if left > 0 {
		r.expiry.Reset(left) // it was renewed
		r.mu.Unlock()
		return
	}
	cause := errExpired
	switch {
	case len(r.handles) == 0:
		cause = errDropped
	case r.lifetime > 0 && r.deadline >= r.lifetime:
		cause = errLifetime
	case r.failed != nil:
		cause = fmt.Errorf("%w: its renewals failed: %w", errExpired, r.failed)
	}
	r.mu.Unlock()
	r.lose(cause)
}

// The causes of a loss.
var (
	errExpired  = errors.New("its TTL expired and it was not renewed")
	errLifetime = errors.New("its maximum lifetime has ended")
)

// ErrReplaced is the cause of a loss that was found in the database and not by the clock:
// the lease was taken over, released by force, or acquired in a transaction that was
// rolled back.
var ErrReplaced = errors.New("lease: its row is no longer ours: it was taken over, released by force, or its transaction was rolled back")

// lose tells every handle that the lease is lost. The first cause stays.
func (r *record) lose(cause error) {
	r.mu.Lock()
	if r.lost != nil || r.handles == nil {
		r.mu.Unlock()
		return
	}
	r.lost = fmt.Errorf("lease %q, token %d: %w: %w", r.key, r.token.Load(), txlock.ErrLost, cause)
	r.expiry.Stop()
	dropped := len(r.handles) == 0
	for _, h := range r.handles {
		h.end(r.lost)
	}
	r.handles = r.handles[:0] // not nil: it is not released yet
	lost := r.lost
	r.mu.Unlock()
	r.m.forget(r)
	if errors.Is(cause, errLifetime) {
		r.free()
	}
	if dropped { // nobody releases it
		if r.shared {
			r.m.freeSlot(r.key, r.slot)
		}
		r.m.freed(r.key)
	}
	r.report(context.Background(), txlock.Lost, r.granted.Until(r.m.store.Now()), lost)
}

// free releases the row in the background. Without it, a lease whose time is over would be held for as
// long as its row was renewed for last.
func (r *record) free() {
	what, until := r.remains(errLifetime), r.m.store.Now().Add(r.ttl)
	r.m.tasks.Go(func() {
		r.m.releaseUntil(what, r.m.store.Now(), until)
		r.m.freed(r.key)
	})
}

// report tells the observer what has become of the lease: behind its grant, and not at all where
// the call fails for which it was taken, since nobody has had it then.
func (r *record) report(ctx context.Context, kind txlock.Kind, took time.Duration, err error) {
	if r.m.options.observer == nil {
		return
	}
	e := txlock.Event{Kind: kind, Lease: true, Key: r.key, Token: r.token.Load(), Owner: r.owner, Shared: r.shared, Took: took, Err: err}
	r.mu.Lock()
	told := r.told
	if !told {
		r.early = append(r.early, e)
	}
	r.mu.Unlock()
	if told {
		r.m.observe(ctx, e)
	}
}

// reportGrant tells the observer of a grant, and of what has become of the lease meanwhile. If that
// panics, it may have been told.
func (r *record) reportGrant(ctx context.Context, e txlock.Event) {
	defer func() {
		r.mu.Lock()
		early := r.early
		r.told, r.early = true, nil
		r.mu.Unlock()
		for _, e := range early {
			r.m.observe(context.Background(), e)
		}
	}()
	r.m.observe(ctx, e)
}

// released is the error of a handle that was released. Its text is made only when
// somebody asks for it.
type released struct {
	key   txlock.Key
	token uint64
}

func (r released) Error() string {
	return fmt.Sprintf("lease %q, token %d: %v: it was released", r.key, r.token, txlock.ErrNotHeld)
}

func (released) Unwrap() error { return txlock.ErrNotHeld }

// beginRenewal marks the record as being renewed. It returns false if the lease has
// ended, or is being renewed already.
func (r *record) beginRenewal(interrupt context.CancelFunc) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost != nil || len(r.handles) == 0 || r.renewing != nil {
		return false
	}
	r.renewing, r.queued = make(chan struct{}), false
	r.interrupt = interrupt
	r.tried = r.m.store.Now()
	return true
}

// queue notes that the renewal waits for the row: until it proceeds, a release doesn't
// wait for it.
func (r *record) queue() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queued = true
}

// proceed ends queue, and reports whether the lease is still to be renewed.
func (r *record) proceed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queued = false
	return r.lost == nil && len(r.handles) > 0
}

// endRenewal ends the renewal, and wakes a release that waits for it.
func (r *record) endRenewal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.renewing)
	r.renewing, r.interrupt = nil, nil
	r.m.expect(r.dueAt()) // the loop has passed over it meanwhile
}

// joinRenewal waits until the renewal that is under way has ended; none follows it. It
// interrupts a renewal that waits for the row in a call of the program (Renew or Guard),
// and doesn't wait for one of the manager that waits for the row.
func (r *record) joinRenewal(ctx context.Context) error {
	r.mu.Lock()
	renewing, interrupt, queued := r.renewing, r.interrupt, r.queued
	r.mu.Unlock()
	if renewing == nil || queued {
		return nil
	}
	if interrupt != nil {
		interrupt()
	}
	r.awaitRenewal(ctx)
	select {
	case <-renewing:
		return nil
	default:
		return fmt.Errorf("release lease %q: a renewal is under way: %w", r.key, ctx.Err())
	}
}

// extend notes a renewal that was sent at the moment sent and has succeeded; the next one
// counts from turn. A renewal that is answered after the old deadline does not revive the
// lease.
func (r *record) extend(sent, turn instant) {
	r.mu.Lock()
	if r.lost != nil || r.m.store.Now() >= r.deadline {
		r.mu.Unlock()
		return
	}
	left := r.m.store.Now().Until(r.deadline)
	r.renewed, r.failed, r.skipped, r.pending = turn, nil, 0, false
	r.deadline = max(r.deadline, r.deadlineFrom(sent))
	for _, h := range r.handles {
		h.forgetEnded()
	}
	r.mu.Unlock()
	r.report(context.Background(), txlock.Renewed, left, nil)
}

// setback notes a renewal that has failed, or has found the row locked. The limit of one of the last,
// for which little time is left, doesn't replace what was told before.
func (r *record) setback(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil || !errors.Is(err, context.DeadlineExceeded) {
		r.failed = err
	}
	r.skipped++
}

// left returns for how much longer the lease counts.
func (r *record) left() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m.store.Now().Until(r.deadline)
}

func (r *record) isPending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending
}
