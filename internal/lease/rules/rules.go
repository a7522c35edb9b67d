// Package rules decides what becomes of a row of leases: each rule is a pure function of
// the row, of what is asked for, and of the server's clock. Package memstore writes what the
// rules decide, and package sqlstore does where its statements can't decide by themselves.
package rules

import (
	"math"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
)

// Row is a row of the table of leases. Times are microseconds of the server's clock. The
// zero Row is one that is missing.
type Row struct {
	Owner, Label string
	Holders      string // identifiers, one after the other, all of store.HoldLength
	Token        uint64
	TTL, Expires int64
	Use          store.Use // of the entry row
	Guards       uint64
	Session      uint64 // of the transaction that has guarded or acquired it last
	Asked        int64  // when its owner was asked to release it, 0 for never
	Reason       string // why
}

// New is a row that was never held.
var New = Row{Owner: "-"}

// maxHolders is the length of the column of holders.
const maxHolders = 8192

// kept begins the list of holders in place of ';' once the last one has released the row,
// which stays held by no one.
const kept = ","

// Held reports whether the row is held.
func (r Row) Held(now int64) bool { return r.Holders != "" && r.Expires > now }

// Left returns for how much longer the row is held, 0 if it isn't.
func (r Row) Left(now int64) time.Duration {
	if !r.Held(now) {
		return 0
	}
	return time.Duration(r.Expires-now) * time.Microsecond
}

// Glance returns what a look at the row shows.
func (r Row) Glance(now int64) store.Glance {
	return store.Glance{
		Exists: r != Row{}, Owner: r.Owner, Label: r.Label, Token: r.Token, Left: r.Left(now), TTL: time.Duration(r.TTL) * time.Microsecond, Use: r.Use,
	}
}

// Done rises with each grant, and with each transaction that was guarded.
func (r Row) Done() int64 { return int64(r.Token + r.Guards) }

// has reports whether a claim's owner and hold are in the row, whatever its token.
func (r Row) has(c store.Claim, now int64) bool {
	return r.Owner == c.Owner && strings.Contains(r.Holders, c.Hold) && r.Expires > now
}

// Has reports whether the row has what is claimed.
func (r Row) Has(c store.Claim, now int64) bool { return r.Token == c.Token && r.has(c, now) }

// Take acquires a lease that is free, or whose holder is the owner: it re-enters a lease
// of the same process, and takes over one of another process, which must be gone. The reply is
// Done, Refused, Full, Late, or Other for a semaphore. A refusal shortens an expiry that is
// further ahead than one TTL, as it is after the clock was set back.
func (r Row) Take(ask store.Ask, now, notAfter int64) (Row, store.Reply) {
	var reply store.Reply
	switch ttl := ask.TTL.Microseconds(); {
	case now > notAfter:
		reply = store.Late
	case r.Use < store.Exclusive:
		reply = store.Other
	case !r.Held(now), r.Owner == ask.Owner && !strings.Contains(r.Holders, ask.Hold[:store.HoldBegins]):
		return r.grant(ask, now), store.Done
	case r.Owner != ask.Owner:
		reply = store.Refused
	case len(r.Holders)+len(ask.Hold) > maxHolders:
		reply = store.Full
	default:
		r.Holders, r.Expires, r.TTL = r.Holders+ask.Hold, max(r.Expires, now+ttl), max(r.TTL, ttl)
		return r, store.Done
	}
	r.Expires = min(r.Expires, now+r.TTL)
	return r, reply
}

// grant gives a row to a new holder, which was asked for nothing yet. The token rises, also if
// it is ahead of the clock.
func (r Row) grant(ask store.Ask, now int64) Row {
	r.Owner, r.Label, r.Holders, r.Asked = ask.Owner, ask.Label, ask.Hold, 0
	r.Token = max(r.Token+1, uint64(now))
	r.TTL, r.Expires = ask.TTL.Microseconds(), now+ask.TTL.Microseconds()
	return r
}

// TakePlace acquires a reader's place, if no writer holds the entry row, or the owner is that
// writer. The reply is Done, Refused if the place is held, or Absent: also if it is too late.
func (r Row) TakePlace(entry Row, ask store.Ask, now, notAfter int64) (Row, store.Reply) {
	switch {
	case entry.Use != store.Shared, entry.Held(now) && entry.Owner != ask.Owner, now > notAfter:
		return r, store.Absent
	case r.Held(now):
		return r, store.Refused
	}
	return r.grant(ask, now), store.Done
}

// TakePermit acquires a permit that is free, of a semaphore with the number of permits that is
// asked for. The reply is Done, or Absent: also if it is too late.
func (r Row) TakePermit(entry Row, ask store.Ask, now, notAfter int64) (Row, store.Reply) {
	if int(entry.Use)+ask.Permits != 0 || r.Held(now) || now > notAfter {
		return r, store.Absent
	}
	return r.grant(ask, now), store.Done
}

// Release removes a hold. Without holds the row is free. The reply is Done, Refused if the
// hold isn't there, or Expired.
func (r Row) Release(hold string, now int64) (Row, store.Reply) {
	if !strings.Contains(r.Holders, hold) {
		return r, store.Refused
	}
	reply := store.Done
	if r.Expires <= now {
		reply = store.Expired
	}
	if r.Holders = strings.ReplaceAll(r.Holders, hold, ""); r.Holders == "" {
		r.Expires = min(r.Expires, now)
	}
	return r, reply
}

// Keep is Release that keeps the row held if the hold was the last one and so much time
// hasn't passed since the grant: until then, by an owner that no one else can be. The reply is
// Kept then. The token is the time of the grant, unless it is ahead of the clock: then the time
// counts from now. The TTL is as long, so that no refusal shortens the expiry. A second Keep
// doesn't find the hold any more.
func (r Row) Keep(hold string, atLeast time.Duration, now int64) (Row, store.Reply) {
	until := min(int64(r.Token), now) + atLeast.Microseconds()
	if r.Holders != hold || r.Expires <= now || until <= now {
		return r.Release(hold, now)
	}
	r.Owner, r.Holders = store.Released+r.Owner[:min(len(r.Owner), 255-len(store.Released))], kept+hold[1:]
	r.TTL, r.Expires, r.Asked = atLeast.Microseconds(), until, 0
	return r, store.Kept
}

// Renew sets the expiry of a row that has what is claimed. The reply is Done, Questioned if its
// owner was asked for something that it doesn't know of, or Refused.
func (r Row) Renew(c store.Claim, now int64) (Row, store.Reply) {
	if !r.Has(c, now) {
		return r, store.Refused
	}
	r.Expires = now + r.TTL
	if r.Asked > c.Told {
		return r, store.Questioned
	}
	return r, store.Done
}

// Raise raises the token of a row to at least the claim's. The reply is Done or Refused.
func (r Row) Raise(c store.Claim, now int64) (Row, store.Reply) {
	if !r.has(c, now) {
		return r, store.Refused
	}
	r.Token = max(r.Token, c.Token)
	return r, store.Done
}

// Force frees a row, whoever holds it, or only a holder with the given token, and raises the token,
// so that the holder's renewals and guards fail. The reply is Done, or Refused if no one holds the
// row, or another one.
func (r Row) Force(only uint64, now int64) (Row, store.Reply) {
	if !r.Held(now) || only != 0 && r.Token != only {
		return r, store.Refused
	}
	r.Holders, r.Expires, r.Token = "", now, r.Token+1
	return r, store.Done
}

// Reap ends a reader that has expired. The reply is Done, or Refused if there is none.
func (r Row) Reap(now int64) (Row, store.Reply) {
	if r.Holders == "" || r.Expires > now {
		return r, store.Refused
	}
	r.Holders = ""
	return r, store.Done
}

// UseFor sets what a key is used for, unless that is set already: it makes no semaphore of
// a key while its lease is held.
func (r Row) UseFor(use store.Use, now int64) Row {
	if r.Use == store.Exclusive && (use > store.Exclusive || !r.Held(now)) {
		r.Use = use
	}
	return r
}

// Resize changes the number of permits. The reply is Done, or Refused if the key is no
// semaphore.
func (r Row) Resize(permits int) (Row, store.Reply) {
	if r.Use >= store.Exclusive {
		return r, store.Refused
	}
	r.Use = store.Use(-permits)
	return r, store.Done
}

// WaitsFor reports whether the holder of an entry row waits until another row of the key is released.
func (r Row) WaitsFor(reader Row, now int64) bool {
	return reader.Held(now) && store.WaitsFor(r.Owner, reader.Owner)
}

// Latest is the moment for Request if everyone is to be asked who holds something now.
const Latest = math.MaxInt64

// Request asks who has held the row since before a moment to release it. The reply is Done
// if that was to be asked, Questioned if it was asked since, and Refused if there is no such
// holder.
func (r Row) Request(reason string, since, now int64) (Row, store.Reply) {
	switch {
	case !r.Held(now), strings.HasPrefix(r.Holders, kept), int64(r.Token) > since:
		return r, store.Refused
	case r.Asked >= since:
		return r, store.Questioned
	}
	r.Asked, r.Reason = max(r.Asked+1, now), reason
	if since != Latest {
		r.Asked = max(r.Asked, since)
	}
	return r, store.Done
}
