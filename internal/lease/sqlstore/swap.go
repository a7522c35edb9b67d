package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strconv"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
)

// mostSwaps is how often a change is decided anew because the row has changed meanwhile.
const mostSwaps = 8

// always is a deadline of swap for what is never too late.
const always = math.MaxInt64

// rule decides what becomes of a row, by the server's clock.
type rule func(r rules.Row, now int64) (rules.Row, store.Reply)

// seenRow is a row as it was read.
type seenRow struct {
	rules.Row
	at      store.Row
	version uint64
	now     int64 // the server's clock
}

// change reads a row, and writes what the rule makes of it if it has not changed meanwhile.
// The reply is Absent if the row is missing or locked, which is only seen by writing it: so it is
// written although the rule changes nothing, unless that replies Absent itself.
func (s session) change(ctx context.Context, at store.Row, decide rule) (rules.Row, store.Reply, error) {
	return s.changeUntil(ctx, at, always, true, decide)
}

// changeUntil is change that writes what the rule replies with Done until notAfter only. Unless
// checked, a row for which the rule changes nothing may be locked.
func (s session) changeUntil(ctx context.Context, at store.Row, notAfter int64, checked bool, decide rule) (rules.Row, store.Reply, error) {
	seen, is, err := s.find(ctx, at)
	if !is {
		return rules.Row{}, store.Absent, err
	}
	return s.changeSeen(ctx, seen, notAfter, checked, decide)
}

// changeSeen is changeUntil of a row that was read already.
func (s session) changeSeen(ctx context.Context, seen seenRow, notAfter int64, checked bool, decide rule) (rules.Row, store.Reply, error) {
	for range mostSwaps {
		next, reply := decide(seen.Row, seen.now)
		if reply == store.Absent || next == seen.Row && !checked {
			return next, reply, nil
		}
		until := int64(always)
		if reply == store.Done {
			until = notAfter
		}
		swapped, err := s.swap(ctx, seen, next, until)
		switch {
		case refused(err):
			return rules.Row{}, store.Absent, nil
		case swapped || err != nil:
			return next, reply, err
		}
		before, is := seen, false
		if seen, is, err = s.find(ctx, before.at); !is || seen.version == before.version && seen.Token == before.Token {
			return rules.Row{}, store.Absent, err
		}
	}
	return rules.Row{}, store.Absent, nil
}

// find is row that returns false for a row that is missing or locked.
func (s session) find(ctx context.Context, at store.Row) (seenRow, bool, error) {
	seen, err := s.row(ctx, at)
	if errors.Is(err, sql.ErrNoRows) || refused(err) {
		return seen, false, nil
	}
	return seen, err == nil, err
}

// row reads a row: in the caller's transaction as it is, whatever the snapshot shows.
func (s session) row(ctx context.Context, at store.Row) (seenRow, error) {
	if s.callers {
		r, err := queries.ReadLeaseAsItIs(ctx, s.db, gen.ReadLeaseAsItIsParams{Name: []byte(at.Key), Slot: at.Slot})
		return seen(at.Key, gen.HeldRowsRow(r)), fault.Read("ReadLeaseAsItIs", err)
	}
	r, err := queries.ReadLease(ctx, s.db, gen.ReadLeaseParams{Name: []byte(at.Key), Slot: at.Slot})
	return seen(at.Key, gen.HeldRowsRow(r)), fault.Read("ReadLease", err)
}

// heldRows reads the rows of a key from a slot on that have holders.
func (s session) heldRows(ctx context.Context, key string, first int64) (all []seenRow, err error) {
	rows, err := queries.HeldRows(ctx, s.db, gen.HeldRowsParams{Name: []byte(key), First: first})
	for _, r := range rows {
		all = append(all, seen(key, r))
	}
	return all, fault.Read("HeldRows", err)
}

func seen(key string, r gen.HeldRowsRow) seenRow {
	return seenRow{
		at: store.Row{Key: key, Slot: r.Slot}, version: r.Version, now: r.NowUs,
		Row: rules.Row{
			Owner: string(r.Owner), Label: string(r.Label), Holders: r.Holders, Token: r.Token, TTL: r.TtlUs, Expires: r.ExpiresUs,
			Use: store.Use(r.UsedFor), Guards: r.Guards, Session: r.ConnID, Asked: r.AskedUs, Reason: string(r.ReleaseReason),
		},
	}
}

// swap writes a row over what was seen of it. It reports false if the row has changed, is
// locked, or it is too late.
func (s session) swap(ctx context.Context, seen seenRow, next rules.Row, notAfter int64) (bool, error) {
	acquired := int64(0)
	if next.Session == ownSession {
		acquired = 1
	}
	return wrote("SwapLease")(queries.SwapLease(ctx, s.db, gen.SwapLeaseParams{
		Owner: []byte(next.Owner), Holders: next.Holders, Token: next.Token, TtlUs: next.TTL, ExpiresUs: next.Expires, UsedFor: int64(next.Use),
		Acquired: acquired, Label: []byte(next.Label), AskedUs: next.Asked, ReleaseReason: []byte(next.Reason),
		Name: []byte(seen.at.Key), Slot: seen.at.Slot, SeenVersion: seen.version, SeenToken: seen.Token, NotAfterUs: notAfter,
	}))
}

// ownSession stands in a row for the session that writes it.
const ownSession = math.MaxUint64

// wrote returns whether a statement has changed the row that it selects. The server counts 2
// then, MariaDB 3 in a table WITH SYSTEM VERSIONING.
func wrote(statement string) func(n int64, err error) (bool, error) {
	return func(n int64, err error) (bool, error) {
		if err == nil && n != 0 && n != 2 && n != 3 {
			err = unknownReply(statement, strconv.FormatInt(n, 10)+" changed rows")
		}
		return n > 0, err
	}
}

// result returns the count and the insert id of a statement.
func result(r sql.Result, err error) (n, id int64, _ error) {
	if err == nil {
		n, err = r.RowsAffected()
	}
	if err == nil {
		id, err = r.LastInsertId()
	}
	return n, id, err
}
