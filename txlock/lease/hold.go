package lease

import "time"

// HoldAtLeast keeps the key held until that long after the grant, by the server's clock,
// for work that must not be done twice in a while: a Release that comes earlier, the end of
// Do and Close included, doesn't free the lease. The handle is over and nothing is renewed,
// but until then nobody can acquire the lease, the same owner neither: TryAcquire returns
// txlock.ErrBusy, and Acquire waits. Manager.List shows the lease with the time that is
// left, and an owner "released: " with the name. ForceRelease frees it. A Release that
// comes later frees the lease as ever. It costs no statement.
//
// The time may be shorter or longer than the TTL. It is kept by the release, so a lease
// that is lost before, or whose holder dies, is free when its TTL is over. It counts from
// the first grant to an owner that re-enters, and the longest time of those that its
// handles were acquired with counts; of several managers, those of the one that releases
// last. A server clock that was set back since the grant lets it count from the release.
//
// A permit of a semaphore is kept likewise: at most n begin in any such time. A Downgrade
// keeps other readers out until then. It is no option for readers and for package quorum.
// The time is positive and at most MaxTTL.
func HoldAtLeast(d time.Duration) AcquireOption {
	return term(func(t *terms) {
		t.atLeast = d
		if d <= 0 || d > MaxTTL {
			t.atLeast = -1
		}
	})
}

// holdAtLeast notes what a handle was acquired with.
func (r *record) holdAtLeast(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.atLeast = max(r.atLeast, d)
}
