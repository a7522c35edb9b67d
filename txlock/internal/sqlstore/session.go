package sqlstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// session sends statements on a pool, on a connection, or in a transaction.
type session struct {
	db gen.DBTX
	s  *Store
}

// Take takes a lease, a reader's place or a permit if it is free.
func (s session) Take(ctx context.Context, ask store.Ask) (store.Answer, error) {
	if ask.InTurn {
		s.db = &rawsql.Text{DBTX: s.db, Rewrite: rawsql.Edited(rawsql.InTurn)}
	}
	switch {
	case ask.Permits > 0:
		return s.takePermit(ctx, ask)
	case ask.Slot != store.LeaseSlot:
		return s.takePlace(ctx, ask)
	}
	return s.takeLease(ctx, ask)
}

// takeLease takes a lease.
func (s session) takeLease(ctx context.Context, ask store.Ask) (store.Answer, error) {
	owner, name, note := []byte(ask.Owner), []byte(ask.Key), []byte(ask.Note)
	ttl, notAfter := ask.TTL.Microseconds(), s.s.clock.MicrosAt(ask.NotAfter)
	a, err := store.Answer{Slot: ask.Slot, Reply: beyond}, error(nil)
	if pool, ok := s.refusing(); ok {
		a, err = answerOf("AcquireNoWait", ask.Slot)(queries.AcquireNoWait(ctx, pool, gen.AcquireNoWaitParams{
			Hold: ask.Hold, Owner: owner, Note: note, TtlUs: ttl, Name: name, Slot: ask.Slot, NotAfterUs: notAfter,
		}))
	}
	if err == nil && a.Reply == beyond {
		a, err = answerOf("AcquireLease", ask.Slot)(queries.AcquireLease(ctx, s.db, gen.AcquireLeaseParams{
			Owner: owner, Hold: ask.Hold, Note: note, TtlUs: ttl, Name: name, Slot: ask.Slot, NotAfterUs: notAfter,
		}))
	}
	if refused(err) { // a refusing pool, or the caller's transaction, in which it doesn't skip the row: see rawsql.Refuse
		return store.Answer{Slot: ask.Slot, Reply: store.Absent}, nil
	}
	return a, err
}

// takePlace takes a reader's place.
func (s session) takePlace(ctx context.Context, ask store.Ask) (store.Answer, error) {
	return answerOf("ShareLease", ask.Slot)(queries.ShareLease(ctx, s.skippingShared(), gen.ShareLeaseParams{
		Slot: ask.Slot, Owner: []byte(ask.Owner), Hold: ask.Hold, Note: []byte(ask.Note), TtlUs: ask.TTL.Microseconds(),
		Name: []byte(ask.Key), NotAfterUs: s.s.clock.MicrosAt(ask.NotAfter),
	}))
}

// skippingShared makes the statements skip the rows that they would wait for to lock them
// shared.
func (s session) skippingShared() gen.DBTX {
	return &rawsql.Text{DBTX: s.db, Rewrite: rawsql.Edited(func(query string) string {
		return rawsql.SkipShared(query, s.s.clock.onMariaDB())
	})}
}

// takePermit takes one of the permits that look free. The answer has the slot that was
// asked for last.
func (s session) takePermit(ctx context.Context, ask store.Ask) (a store.Answer, err error) {
	free, err := queries.FreePermits(ctx, s.db, gen.FreePermitsParams{Name: []byte(ask.Key), Permits: int64(ask.Permits)})
	if err != nil {
		return a, err
	}
	for _, slot := range free {
		a, err = answerOf("AcquirePermit", slot)(queries.AcquirePermit(ctx, s.skippingShared(), gen.AcquirePermitParams{
			Owner: []byte(ask.Owner), Hold: ask.Hold, Note: []byte(ask.Note), TtlUs: ask.TTL.Microseconds(), Slot: slot,
			Name: []byte(ask.Key), Permits: int64(ask.Permits), NotAfterUs: s.s.clock.MicrosAt(ask.NotAfter),
		}))
		if err != nil || a.Reply == store.Done {
			return a, err
		}
	}
	return a, nil
}

// Release removes a hold.
func (s session) Release(ctx context.Context, at store.Row, hold string) (store.Reply, error) {
	name, a, err := []byte(at.Key), store.Answer{Reply: store.Absent}, error(nil)
	if pool, ok := s.refusing(); ok {
		a, err = answerOf("ReleaseNoWait", at.Slot)(queries.ReleaseNoWait(ctx, pool, gen.ReleaseNoWaitParams{Hold: hold, Name: name, Slot: at.Slot}))
		if refused(err) {
			return store.Absent, nil
		}
	}
	if err == nil && a.Reply == store.Absent {
		a, err = answerOf("ReleaseLease", at.Slot)(queries.ReleaseLease(ctx, s.db, gen.ReleaseLeaseParams{Hold: hold, Name: name, Slot: at.Slot}))
	}
	return a.Reply, err
}

// Keep removes a hold, and keeps the row held if it was the last.
func (s session) Keep(ctx context.Context, at store.Row, hold string, atLeast time.Duration) (store.Reply, error) {
	a, err := answerOf("KeepLease", at.Slot)(queries.KeepLease(ctx, s.db, gen.KeepLeaseParams{
		Hold: hold, KeepUs: atLeast.Microseconds(), Name: []byte(at.Key), Slot: at.Slot,
	}))
	return a.Reply, err
}

// Renew extends a lease whose row still has what is claimed.
func (s session) Renew(ctx context.Context, c store.Claim) (store.Reply, error) {
	a, err := answerOf("RenewLease", c.Slot)(queries.RenewLease(ctx, s.db, gen.RenewLeaseParams{
		Owner: []byte(c.Owner), Hold: c.Hold, Token: c.Token, ToldUs: c.Told, Name: []byte(c.Key), Slot: c.Slot,
	}))
	if a.Shared { // the same bit
		return store.Questioned, err
	}
	return a.Reply, err
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
	renewed, at, asked := rawsql.Renewed(id)
	if id < 0 || renewed > len(claims) {
		return nil, nil, unknownReply("RenewMany", fmt.Sprintf("the insert id %d for %d leases", id, len(claims)))
	}
	found := make(map[store.Row]store.Standing, len(claims))
	if renewed == len(claims) {
		for _, c := range claims {
			found[c.Row] = store.Renewed
		}
	} else if err := s.readHeld(ctx, rawsql.HeldMany(holds, at), claims, found); err != nil {
		return nil, nil, err
	}
	if !asked {
		return found, nil, nil
	}
	questions, _ := s.questions(ctx, holds) // they are renewed whatever this returns, and the next renewal asks again
	return found, questions, nil
}

func holdsOf(claims []store.Claim) []rawsql.Hold {
	holds := make([]rawsql.Hold, len(claims))
	for i, c := range claims {
		holds[i] = rawsql.Hold{Name: c.Key, Slot: c.Slot, Owner: c.Owner, Hold: c.Hold, Token: c.Token, Told: c.Told}
	}
	return holds
}

// readHeld reads which of the rows still have what is claimed, and which were renewed.
func (s session) readHeld(ctx context.Context, query string, claims []store.Claim, found map[store.Row]store.Standing) error {
	rows, err := s.db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // Err has what there is to say
	for rows.Next() {
		var name []byte
		var slot int64
		var extended bool
		if err := rows.Scan(&name, &slot, &extended); err != nil {
			return err
		}
		standing := store.Skipped
		if extended {
			standing = store.Renewed
		}
		at := store.Row{Key: string(name), Slot: slot}
		if _, twice := found[at]; twice || !slices.ContainsFunc(claims, func(c store.Claim) bool { return c.Row == at }) {
			return unknownReply("HeldMany", fmt.Sprintf("the row of %q, %d", name, slot))
		}
		found[at] = standing
	}
	return rows.Err()
}

// Raise makes the token of a claim at least the claim's.
func (s session) Raise(ctx context.Context, c store.Claim) (store.Answer, error) {
	return answerOf("RaiseToken", c.Slot)(queries.RaiseToken(ctx, s.db, gen.RaiseTokenParams{
		Owner: []byte(c.Owner), Hold: c.Hold, Token: c.Token, Name: []byte(c.Key), Slot: c.Slot,
	}))
}

// Guard writes the row of a claim, and waits for its lock.
func (s session) Guard(ctx context.Context, c store.Claim) (store.Reply, error) {
	a, err := answerOf("GuardLease", c.Slot)(queries.GuardLease(ctx, s.db, gen.GuardLeaseParams{
		Name: []byte(c.Key), Slot: c.Slot, Owner: []byte(c.Owner), Token: c.Token, Hold: c.Hold,
	}))
	if err == nil && a.Reply == store.Done && a.Token != c.Token {
		err = unknownReply("GuardLease", fmt.Sprintf("the token %d and not %d", a.Token, c.Token))
	}
	return a.Reply, err
}

// Force frees a row, whoever holds it.
func (s session) Force(ctx context.Context, at store.Row) (store.Reply, error) {
	a, err := answerOf("ForceRelease", at.Slot)(queries.ForceRelease(ctx, s.db, gen.ForceReleaseParams{Name: []byte(at.Key), Slot: at.Slot}))
	return a.Reply, err
}

// Reap ends a key's readers whose time is over, one by one: a range would lock others.
func (s session) Reap(ctx context.Context, key string) error {
	slots, err := queries.ExpiredReaders(ctx, s.db, []byte(key))
	for _, slot := range slots {
		if err = queries.ReapReader(ctx, s.db, gen.ReapReaderParams{Name: []byte(key), Slot: slot}); err != nil {
			return err
		}
	}
	return err
}

// Use sets what a key is used for, unless that was set before.
func (s session) Use(ctx context.Context, key string, use store.Use) (store.Use, error) {
	reply, err := queries.MarkGate(ctx, s.db, gen.MarkGateParams{UsedFor: int64(use), Name: []byte(key)})
	a, err := answerOf("MarkGate", store.LeaseSlot)(reply, err)
	if err == nil && a.Reply == store.Absent {
		err = store.ErrLocked
	}
	return store.Use(reply - UsedFor), err
}

// Resize changes the number of permits.
func (s session) Resize(ctx context.Context, key string, permits int) (store.Reply, error) {
	a, err := answerOf("ResizeSemaphore", store.LeaseSlot)(queries.ResizeSemaphore(ctx, s.db, gen.ResizeSemaphoreParams{UsedFor: -int64(permits), Name: []byte(key)}))
	return a.Reply, err
}
