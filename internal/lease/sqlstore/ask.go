package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
)

// Question reads what the holder of a claim was asked last.
func (s session) Question(ctx context.Context, c store.Claim) (store.Question, error) {
	row, err := queries.ReleaseReasonOf(ctx, s.db, gen.ReleaseReasonOfParams{Name: []byte(c.Key), Slot: c.Slot, Owner: []byte(c.Owner), Token: c.Token})
	if errors.Is(err, sql.ErrNoRows) {
		return store.Question{}, nil
	}
	return store.Question{Row: c.Row, At: row.AskedUs, Why: string(row.ReleaseReason)}, err
}

// AskHolders asks everyone who holds something under a key, one row at a time: if we are stopped
// meanwhile, no row stays locked that its holder has to renew.
func (s *Store) AskHolders(ctx context.Context, key, why string, since int64) (asked store.Asked, err error) {
	rows, err := s.heldRows(ctx, key, store.LeaseSlot)
	if err != nil {
		return asked, err
	}
	if len(rows) > 0 {
		asked.At = min(since, rows[0].now)
	}
	for _, seen := range rows {
		if seen.at.Slot == store.LeaseSlot && slices.ContainsFunc(rows, func(r seenRow) bool { return seen.WaitsFor(r.Row, seen.now) }) {
			continue // it holds nothing yet
		}
		_, reply, err := s.changeSeen(ctx, seen, always, false, func(r rules.Row, now int64) (rules.Row, store.Reply) { return r.Request(why, since, now) })
		if err != nil {
			return asked, err
		}
		switch reply {
		case store.Done, store.Questioned:
			asked.Holders++
		case store.Absent:
			asked.Left++
			asked.At = min(since, max(asked.At, int64(seen.Token)))
		}
	}
	return asked, nil
}
