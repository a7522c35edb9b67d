package sqlstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// session sends statements on a pool, on a connection, or in a transaction.
type session struct {
	db gen.DBTX
	s  *Store

	callers bool // it is the caller's transaction
}

// Take takes a lease, a reader's place or a permit if it is free.
func (s session) Take(ctx context.Context, ask store.Ask) (store.Answer, error) {
	if ask.Fair || ask.Permits > 0 || ask.Slot != store.LeaseSlot {
		if err := s.s.lacks(); err != nil {
			return store.Answer{}, err
		}
	}
	if ask.InTurn {
		s.db = rawsql.Editing(s.db, rawsql.InTurn)
	}
	switch {
	case ask.Permits > 0:
		return s.takePermit(ctx, ask)
	case ask.Slot != store.LeaseSlot:
		return s.takePlace(ctx, ask)
	}
	return s.takeLease(ctx, ask)
}

// takeLease takes a lease. A statement of its own takes one that is free; what else becomes of
// it is decided by what it says.
func (s session) takeLease(ctx context.Context, ask store.Ask) (store.Answer, error) {
	owner, name, label := []byte(ask.Owner), []byte(ask.Key), []byte(ask.Label)
	ttl, notAfter := ask.TTL.Microseconds(), s.s.clock.MicrosAt(ask.NotAfter)
	var n, id int64
	var taken bool
	var err error
	if pool, ok := s.noWaitPool(); ok {
		n, id, err = result(queries.AcquireNoWait(ctx, pool, gen.AcquireNoWaitParams{
			Hold: ask.Hold, Owner: owner, Label: label, TtlUs: ttl, Name: name, Slot: ask.Slot, NotAfterUs: notAfter,
		}))
		taken, err = fault.Changed("AcquireNoWait")(n, err)
	} else {
		n, id, err = result(queries.AcquireLease(ctx, s.db, gen.AcquireLeaseParams{
			Owner: owner, Hold: ask.Hold, Label: label, TtlUs: ttl, Name: name, Slot: ask.Slot, NotAfterUs: notAfter,
		}))
		taken, err = wrote("AcquireLease")(n, err)
	}
	switch {
	case refused(err):
		return store.Answer{Slot: ask.Slot, Reply: store.Absent}, nil
	case taken || err != nil:
		return answerOf("AcquireLease", ask.Slot)(id, err)
	}
	a := store.Answer{Slot: ask.Slot}
	if !s.callers {
		a.Seen = new(store.Glance) // a plain read that finds no row
	}
	r, reply, err := s.changeUntil(ctx, ask.Row, notAfter, false, func(r rules.Row, now int64) (rules.Row, store.Reply) {
		seen := r.Glance(now)
		a.Seen = &seen
		if !r.Held(now) && r.Use >= store.Exclusive && now <= notAfter {
			return r, store.Absent // it was locked
		}
		r, reply := r.Take(ask, now, notAfter)
		if reply == store.Done {
			r.Session = ownSession
		}
		return r, reply
	})
	if a.Reply = reply; reply == store.Done {
		a.Token, a.Shared = r.Token, r.Use == store.Shared
	}
	return a, err
}

// takePlace takes a reader's place.
func (s session) takePlace(ctx context.Context, ask store.Ask) (store.Answer, error) {
	return answerOf("ShareLease", ask.Slot)(queries.ShareLease(ctx, s.skippingShared(), gen.ShareLeaseParams{
		Slot: ask.Slot, Owner: []byte(ask.Owner), Hold: ask.Hold, Label: []byte(ask.Label), TtlUs: ask.TTL.Microseconds(),
		Name: []byte(ask.Key), NotAfterUs: s.s.clock.MicrosAt(ask.NotAfter),
	}))
}

// skippingShared makes the statements skip the rows that they would wait for to lock them
// shared.
func (s session) skippingShared() gen.DBTX {
	return rawsql.Editing(s.db, s.s.clock.engine().SkipShared)
}

// takePermit takes one of the permits that look free. The answer has the slot that was
// asked for last.
func (s session) takePermit(ctx context.Context, ask store.Ask) (a store.Answer, err error) {
	free, err := queries.FreePermits(ctx, s.db, gen.FreePermitsParams{Name: []byte(ask.Key), Permits: int64(ask.Permits)})
	if err != nil {
		return a, err
	}
	for _, slot := range free {
		a = store.Answer{Slot: slot}
		n, id, err := result(queries.AcquirePermit(ctx, s.skippingShared(), gen.AcquirePermitParams{
			Owner: []byte(ask.Owner), Hold: ask.Hold, Label: []byte(ask.Label), TtlUs: ask.TTL.Microseconds(), Slot: slot,
			Name: []byte(ask.Key), Permits: int64(ask.Permits), NotAfterUs: s.s.clock.MicrosAt(ask.NotAfter),
		}))
		taken, err := wrote("AcquirePermit")(n, err)
		if taken || err != nil {
			return answerOf("AcquirePermit", slot)(id, err)
		}
	}
	return a, nil
}

// Release removes a hold. A statement of its own frees a lease that has no other hold.
func (s session) Release(ctx context.Context, at store.Row, hold string) (store.Reply, error) {
	var freed bool
	var err error
	if pool, ok := s.noWaitPool(); ok {
		freed, err = fault.Changed("ReleaseNoWait")(queries.ReleaseNoWait(ctx, pool, gen.ReleaseNoWaitParams{Name: []byte(at.Key), Slot: at.Slot, Hold: hold}))
	} else {
		freed, err = wrote("ReleaseLease")(queries.ReleaseLease(ctx, s.db, gen.ReleaseLeaseParams{Name: []byte(at.Key), Slot: at.Slot, Hold: hold}))
	}
	switch {
	case refused(err):
		return store.Absent, nil
	case freed || err != nil:
		return store.Done, err
	}
	_, reply, err := s.change(ctx, at, func(r rules.Row, now int64) (rules.Row, store.Reply) {
		if r.Holders == hold && r.Expires > now {
			return r, store.Absent // it was locked
		}
		return r.Release(hold, now)
	})
	return reply, err
}

// Keep removes a hold, and keeps the row held if it was the last.
func (s session) Keep(ctx context.Context, at store.Row, hold string, atLeast time.Duration) (store.Reply, error) {
	_, reply, err := s.change(ctx, at, func(r rules.Row, now int64) (rules.Row, store.Reply) { return r.Keep(hold, atLeast, now) })
	return reply, err
}

// Renew extends a lease whose row still has what is claimed.
func (s session) Renew(ctx context.Context, c store.Claim) (store.Reply, error) {
	n, id, err := result(queries.RenewLease(ctx, s.db, gen.RenewLeaseParams{
		Owner: []byte(c.Owner), Hold: c.Hold, Token: c.Token, ToldUs: c.Told, Name: []byte(c.Key), Slot: c.Slot,
	}))
	renewed, err := wrote("RenewLease")(n, err)
	switch {
	case refused(err):
		return store.Absent, nil
	case renewed || err != nil:
		a, err := answerOf("RenewLease", c.Slot)(id, err)
		return a.Reply, err
	}
	_, reply, err := s.change(ctx, c.Row, func(r rules.Row, now int64) (rules.Row, store.Reply) {
		if r.Has(c, now) {
			return r, store.Absent // it was locked
		}
		return r, store.Refused
	})
	return reply, err
}

// RenewMany renews many rows. If all were renewed, and nobody has asked anything, the
// first statement's reply says so, and no second is sent.
func (s session) RenewMany(ctx context.Context, claims []store.Claim) (map[store.Row]store.Standing, []store.Question, error) {
	if len(claims) == 0 {
		return nil, nil, nil
	}
	holds := holdsOf(claims)
	result, err := s.db.ExecContext(ctx, rawsql.RenewMany(holds))
	if err != nil {
		return nil, nil, err
	}
	id, err := result.LastInsertId()
	if err != nil {
		return nil, nil, err
	}
	renewed, at := rawsql.Renewed(id)
	switch {
	case id < 0, renewed > len(claims):
		return nil, nil, unknownReply("RenewMany", fmt.Sprintf("the insert id %d for %d leases", id, len(claims)))
	case renewed < len(claims):
		return s.readHeld(ctx, rawsql.HeldMany(holds, at), claims)
	}
	found := make(map[store.Row]store.Standing, len(claims))
	for _, c := range claims {
		found[c.Row] = store.Renewed
	}
	return found, nil, nil
}

// renewEach is RenewMany by a statement for each row.
func (s session) renewEach(ctx context.Context, claims []store.Claim) (map[store.Row]store.Standing, []store.Question, error) {
	found := make(map[store.Row]store.Standing, len(claims))
	var questions []store.Question
	for _, c := range claims {
		reply, err := s.Renew(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		switch reply {
		case store.Done:
			found[c.Row] = store.Renewed
		case store.Absent:
			found[c.Row] = store.Skipped
		case store.Questioned:
			found[c.Row] = store.Renewed
			q, err := s.Question(ctx, c)
			if err != nil {
				return nil, nil, err
			}
			if q.At > 0 {
				questions = append(questions, q)
			}
		}
	}
	return found, questions, nil
}

func holdsOf(claims []store.Claim) []rawsql.Hold {
	holds := make([]rawsql.Hold, len(claims))
	for i, c := range claims {
		holds[i] = rawsql.Hold{Name: c.Key, Slot: c.Slot, Owner: c.Owner, Hold: c.Hold, Token: c.Token, Told: c.Told}
	}
	return holds
}

// readHeld reads which of the rows still have what is claimed, which were renewed, and what the
// holders of these were asked.
func (s session) readHeld(ctx context.Context, query string, claims []store.Claim) (found map[store.Row]store.Standing, questions []store.Question, err error) {
	rows, err := s.db.QueryContext(ctx, query)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = rows.Close() }() // Err has what there is to say
	found = make(map[store.Row]store.Standing, len(claims))
	for rows.Next() {
		var q store.Question
		var extended bool
		if err := rows.Scan(&q.Key, &q.Slot, &extended, &q.At, &q.Why); err != nil {
			return nil, nil, err
		}
		if _, twice := found[q.Row]; twice || !slices.ContainsFunc(claims, func(c store.Claim) bool { return c.Row == q.Row }) {
			return nil, nil, unknownReply("HeldMany", fmt.Sprintf("the row of %q, %d", q.Key, q.Slot))
		}
		found[q.Row] = store.Skipped
		if extended {
			found[q.Row] = store.Renewed
			if q.At > 0 {
				questions = append(questions, q)
			}
		}
	}
	return found, questions, rows.Err()
}

// Raise makes the token of a claim at least the claim's.
func (s session) Raise(ctx context.Context, c store.Claim) (store.Answer, error) {
	r, reply, err := s.change(ctx, c.Row, func(r rules.Row, now int64) (rules.Row, store.Reply) { return r.Raise(c, now) })
	a := store.Answer{Reply: reply, Slot: c.Slot}
	if reply == store.Done {
		a.Token = r.Token
	}
	return a, err
}

// Guard writes the row of a claim, and waits for its lock.
func (s session) Guard(ctx context.Context, c store.Claim) (store.Reply, error) {
	guarded, err := fault.Changed("GuardLease")(queries.GuardLease(ctx, s.db, gen.GuardLeaseParams{
		Name: []byte(c.Key), Slot: c.Slot, Owner: []byte(c.Owner), Token: c.Token, Hold: c.Hold,
	}))
	if !guarded {
		return store.Refused, err
	}
	return store.Done, err
}

// Force frees a row, whoever holds it, or only one grant.
func (s session) Force(ctx context.Context, at store.Row, only uint64) (store.Reply, error) {
	_, reply, err := s.change(ctx, at, func(r rules.Row, now int64) (rules.Row, store.Reply) { return r.Force(only, now) })
	return reply, err
}

// Reap ends a key's readers whose time is over, but for those that guard a transaction: their
// rows are locked.
func (s session) Reap(ctx context.Context, key string) error {
	rows, err := s.heldRows(ctx, key, store.LeaseSlot+1)
	for _, seen := range rows {
		if next, reply := seen.Reap(seen.now); reply == store.Done {
			if _, err := s.swap(ctx, seen, next, always); err != nil {
				return err
			}
		}
	}
	return err
}

// Use sets what a key is used for, unless that was set before.
func (s session) Use(ctx context.Context, key string, use store.Use) (store.Use, error) {
	if err := s.s.lacks(); err != nil {
		return 0, err
	}
	r, reply, err := s.change(ctx, store.Row{Key: key, Slot: store.LeaseSlot}, func(r rules.Row, now int64) (rules.Row, store.Reply) {
		return r.UseFor(use, now), store.Done
	})
	if err == nil && reply == store.Absent {
		err = store.ErrLocked
	}
	return r.Use, err
}

// Resize changes the number of permits.
func (s session) Resize(ctx context.Context, key string, permits int) (store.Reply, error) {
	_, reply, err := s.change(ctx, store.Row{Key: key, Slot: store.LeaseSlot}, func(r rules.Row, _ int64) (rules.Row, store.Reply) {
		return r.Resize(permits)
	})
	return reply, err
}
