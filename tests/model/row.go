package model

import "slices"

// At is where a row is. Slot 0 is the lease of the key, which is the gate of its
// readers as well; 1 to 999 are the permits of a semaphore, and above is a reader each.
type At struct{ Key, Slot int }

// FirstReader is the least slot of a reader.
const FirstReader = 1000

// Hold is one entry in the list of holds of a row.
type Hold int

// Row is the row of a lease. Times are microseconds by the server's clock.
type Row struct {
	Owner   string
	Holds   []Hold
	Token   uint64
	TTL     int64
	Expires int64
	Guards  uint64
	Use     int // of slot 0: what the key is used for

	// Either is what the expiry may be as well, 0 for nothing: an attempt that came
	// too late by the manager's idea of the server's clock cuts one that is ahead, one
	// that finds the row locked for a moment and doesn't wait leaves it, and whoever
	// looks for a hold may renew it.
	Either int64
}

// Shared is the use of a key that was shared once: a writer has to look for readers.
// That of a semaphore of n permits is -n.
const Shared = 1

// MaxHolds is how many entries of 23 bytes the list of 8192 bytes takes.
const MaxHolds = 8192 / 23

// reply is what the row says to an owner that wants it.
type reply int

const (
	granted reply = iota // a new grant
	entered              // one more hold of the owner that has it
	refused              // somebody else's
	full                 // the owner's list of holds is full
)

// Held tells whether somebody holds the lease.
func (r *Row) Held(now int64) bool { return len(r.Holds) > 0 && r.Expires > now }

// Ahead tells whether the lease is held for longer than its time to live, as a
// clock that was set back leaves it.
func (r *Row) Ahead(now int64) bool { return r.Expires > now+r.TTL }

// has tells whether the lease is the record's, with its token and hold.
func (r *Row) has(now int64, of *record) bool {
	return r.Expires > now && r.Owner == of.owner && r.Token == of.token && slices.Contains(r.Holds, of.hold)
}

// acquire takes the lease, or enters it again.
func (r *Row) acquire(now int64, owner string, hold Hold, ttl int64) reply {
	switch {
	case !r.Held(now):
		*r = Row{Owner: owner, Holds: []Hold{hold}, Token: max(r.Token+1, uint64(now)), TTL: ttl, Expires: now + ttl, Guards: r.Guards, Use: r.Use}
		return granted
	case r.Owner != owner:
		r.cut(now)
		return refused
	case len(r.Holds) >= MaxHolds:
		r.cut(now)
		return full
	}
	r.Holds = append(slices.Clone(r.Holds), hold)
	r.Expires = max(r.Expires, now+ttl)
	if r.Either != 0 {
		r.Either = max(r.Either, now+ttl)
	}
	r.TTL = max(r.TTL, ttl)
	return entered
}

// cut is what a refusal does to an expiry that lies too far ahead.
func (r *Row) cut(now int64) {
	r.Expires = min(r.Expires, now+r.TTL)
	r.Either = min(r.Either, now+r.TTL)
}

// renew sets the expiry anew.
func (r *Row) renew(now int64) { r.Expires = now + r.TTL }

// release removes a hold. It tells whether the hold was there, and counted.
func (r *Row) release(now int64, hold Hold) bool {
	i := slices.Index(r.Holds, hold)
	if i < 0 {
		return false
	}
	counted := r.Expires > now
	r.Holds = slices.Delete(slices.Clone(r.Holds), i, i+1)
	if len(r.Holds) == 0 {
		r.Expires = min(r.Expires, now)
		r.Either = min(r.Either, now)
	}
	return counted
}

// force takes the lease away from whoever holds it.
func (r *Row) force(now int64) bool {
	if !r.Held(now) {
		return false
	}
	r.Holds, r.Expires, r.Token = nil, now, r.Token+1
	return true
}

// reap ends a reader whose time is over, so that it can't guard any more.
func (r *Row) reap() { r.Holds, r.Token = nil, r.Token+1 }

// idle tells whether the row may be removed, by a clock of whole seconds.
func (r *Row) idle(now, retention int64) bool {
	now -= now % 1e6
	return r.Expires < now-retention && r.Token < uint64(now)
}

// traces tells whether a snapshot of the row shows that it was held since: renewed,
// too.
func (r *Row) traces(before *Row) bool {
	return r.Token != before.Token || r.Guards != before.Guards || r.Expires != before.Expires || !slices.Equal(r.Holds, before.Holds)
}
