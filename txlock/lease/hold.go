package lease

import "time"

// HoldAtLeast keeps the key held until d after the grant, by the server's clock, for work that
// must not be repeated for a while. An earlier Release, including the end of Do and Close, ends
// the handle and its renewals but doesn't free the lease: until then TryAcquire returns
// txlock.ErrBusy and Acquire waits, also for the same owner. Manager.List shows the lease with the
// remaining time, and with "released: " before its owner. ForceRelease frees it. A later Release
// frees the lease as usual. HoldAtLeast costs no statement.
//
// The time may be shorter or longer than the TTL. The release applies it, so a lease that is lost
// before, or whose holder crashes, is free when its TTL has expired. For an owner that re-enters,
// it counts from the first grant, and the longest time of its handles applies; if several managers
// hold the lease, that of the one that releases last. If the server's clock was set back since the
// grant, it counts from the release.
//
// A permit of a semaphore is kept in the same way: at most n permits are granted in any such
// period. A Downgrade keeps other readers out until then. HoldAtLeast is not an option for readers
// or for package quorum. The time is positive and at most MaxTTL.
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
