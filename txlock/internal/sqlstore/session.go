package sqlstore

import (
	"context"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// The replies of the statements in queries/leases.sql and shared.sql, which come as an
// insert id. Package lockmock plays the server with them.
const (
	ReplyAbsent  = 0 // the row is locked by somebody or missing
	ReplyRefused = 1 // it is somebody else's; from 2 up it depends on the statement
	replyBeyond  = 5 // of AcquireNoWait: only AcquireLease can tell
	firstToken   = 16

	SharedBit = store.MaxToken + 1 // of a token: there may be readers
	UsedFor   = 100000             // the reply of MarkGate for store.Exclusive
)

// answerOf returns the meaning of a reply: a token, or the reason why there is none. The
// others are the meanings of 2 and up.
func answerOf(reply, slot int64, others ...store.Reply) store.Answer {
	a := store.Answer{Slot: slot}
	switch {
	case reply >= firstToken:
		a.Reply, a.Token, a.Shared = store.Done, uint64(reply&^SharedBit), reply&SharedBit != 0
	case reply >= 2 && int(reply) < 2+len(others):
		a.Reply = others[reply-2]
	case reply != ReplyAbsent:
		a.Reply = store.Refused
	}
	return a
}

// session sends statements on a pool, on a connection, or in a transaction.
type session struct {
	db gen.DBTX
	s  *Store
}

// Take takes a lease, a reader's place or a permit if it is free.
func (s session) Take(ctx context.Context, ask store.Ask) (store.Answer, error) {
	if ask.InTurn {
		s.db = &rawsql.Text{DBTX: s.db, Rewrite: rawsql.InTurn}
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
	reply, err := int64(replyBeyond), error(nil)
	if pool, ok := s.refusing(); ok {
		reply, err = queries.AcquireNoWait(ctx, pool, gen.AcquireNoWaitParams{
			Hold: ask.Hold, Owner: owner, Note: note, TtlUs: ttl, Name: name, Slot: ask.Slot, NotAfterUs: notAfter,
		})
	}
	if err == nil && reply == replyBeyond {
		reply, err = queries.AcquireLease(ctx, s.db, gen.AcquireLeaseParams{
			Owner: owner, Hold: ask.Hold, Note: note, TtlUs: ttl, Name: name, Slot: ask.Slot, NotAfterUs: notAfter,
		})
	}
	if refused(err) { // a refusing pool, or the caller's transaction, in which it doesn't skip the row: see rawsql.Refuse
		reply, err = ReplyAbsent, nil
	}
	return answerOf(reply, ask.Slot, store.Full, store.Late, store.Other), err
}

// takePlace takes a reader's place.
func (s session) takePlace(ctx context.Context, ask store.Ask) (store.Answer, error) {
	reply, err := queries.ShareLease(ctx, s.skippingShared(), gen.ShareLeaseParams{
		Slot: ask.Slot, Owner: []byte(ask.Owner), Hold: ask.Hold, Note: []byte(ask.Note), TtlUs: ask.TTL.Microseconds(),
		Name: []byte(ask.Key), NotAfterUs: s.s.clock.MicrosAt(ask.NotAfter),
	})
	return answerOf(reply, ask.Slot), err
}

// skippingShared makes the statements skip the rows that they would wait for to lock them
// shared.
func (s session) skippingShared() gen.DBTX {
	return &rawsql.Text{DBTX: s.db, Rewrite: func(query string) string {
		return rawsql.SkipShared(query, s.s.clock.onMariaDB())
	}}
}

// takePermit takes one of the permits that look free. The answer has the slot that was
// asked for last.
func (s session) takePermit(ctx context.Context, ask store.Ask) (a store.Answer, err error) {
	free, err := queries.FreePermits(ctx, s.db, gen.FreePermitsParams{Name: []byte(ask.Key), Permits: int64(ask.Permits)})
	if err != nil {
		return a, err
	}
	for _, slot := range free {
		reply, err := queries.AcquirePermit(ctx, s.skippingShared(), gen.AcquirePermitParams{
			Owner: []byte(ask.Owner), Hold: ask.Hold, Note: []byte(ask.Note), TtlUs: ask.TTL.Microseconds(), Slot: slot,
			Name: []byte(ask.Key), Permits: int64(ask.Permits), NotAfterUs: s.s.clock.MicrosAt(ask.NotAfter),
		})
		if a = answerOf(reply, slot); err != nil || a.Reply == store.Done {
			return a, err
		}
	}
	return a, nil
}

// Release removes a hold.
func (s session) Release(ctx context.Context, at store.Row, hold string) (store.Reply, error) {
	name, reply, err := []byte(at.Key), int64(ReplyAbsent), error(nil)
	if pool, ok := s.refusing(); ok {
		reply, err = queries.ReleaseNoWait(ctx, pool, gen.ReleaseNoWaitParams{Hold: hold, Name: name, Slot: at.Slot})
		if refused(err) {
			return store.Absent, nil
		}
	}
	if err == nil && reply == ReplyAbsent {
		reply, err = queries.ReleaseLease(ctx, s.db, gen.ReleaseLeaseParams{Hold: hold, Name: name, Slot: at.Slot})
	}
	return answerOf(reply, at.Slot, store.Expired).Reply, err
}

// Keep removes a hold, and keeps the row held if it was the last.
func (s session) Keep(ctx context.Context, at store.Row, hold string, atLeast time.Duration) (store.Reply, error) {
	reply, err := queries.KeepLease(ctx, s.db, gen.KeepLeaseParams{
		Hold: hold, KeepUs: atLeast.Microseconds(), Name: []byte(at.Key), Slot: at.Slot,
	})
	return answerOf(reply, at.Slot, store.Expired, store.Kept).Reply, err
}

// Renew extends a lease whose row still has what is claimed.
func (s session) Renew(ctx context.Context, c store.Claim) (store.Reply, error) {
	reply, err := queries.RenewLease(ctx, s.db, gen.RenewLeaseParams{
		Owner: []byte(c.Owner), Hold: c.Hold, Token: c.Token, ToldUs: c.Told, Name: []byte(c.Key), Slot: c.Slot,
	})
	a := answerOf(reply, c.Slot)
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
	found := make(map[store.Row]store.Standing, len(claims))
	if renewed == len(claims) {
		for _, c := range claims {
			found[c.Row] = store.Renewed
		}
	} else if err := s.readHeld(ctx, rawsql.HeldMany(holds, at), found); err != nil {
		return found, nil, err
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
func (s session) readHeld(ctx context.Context, query string, found map[store.Row]store.Standing) error {
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
		found[store.Row{Key: string(name), Slot: slot}] = standing
	}
	return rows.Err()
}

// Raise makes the token of a claim at least the claim's.
func (s session) Raise(ctx context.Context, c store.Claim) (store.Answer, error) {
	reply, err := queries.RaiseToken(ctx, s.db, gen.RaiseTokenParams{
		Owner: []byte(c.Owner), Hold: c.Hold, Token: c.Token, Name: []byte(c.Key), Slot: c.Slot,
	})
	return answerOf(reply, c.Slot), err
}

// Guard writes the row of a claim, and waits for its lock.
func (s session) Guard(ctx context.Context, c store.Claim) (store.Reply, error) {
	reply, err := queries.GuardLease(ctx, s.db, gen.GuardLeaseParams{
		Name: []byte(c.Key), Slot: c.Slot, Owner: []byte(c.Owner), Token: c.Token, Hold: c.Hold,
	})
	if uint64(reply) == c.Token {
		return store.Done, err
	}
	return store.Refused, err
}

// Force frees a row, whoever holds it.
func (s session) Force(ctx context.Context, at store.Row) (store.Reply, error) {
	reply, err := queries.ForceRelease(ctx, s.db, gen.ForceReleaseParams{Name: []byte(at.Key), Slot: at.Slot})
	return answerOf(reply, at.Slot).Reply, err
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
	if err == nil && reply == ReplyAbsent {
		err = store.ErrLocked
	}
	return store.Use(reply - UsedFor), err
}

// Resize changes the number of permits.
func (s session) Resize(ctx context.Context, key string, permits int) (store.Reply, error) {
	reply, err := queries.ResizeSemaphore(ctx, s.db, gen.ResizeSemaphoreParams{UsedFor: -int64(permits), Name: []byte(key)})
	return answerOf(reply, store.LeaseSlot).Reply, err
}
