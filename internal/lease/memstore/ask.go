package memstore

import (
	"context"
	"slices"

	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
)

// question is what the holder of a claim was asked last.
func question(c store.Claim, r rules.Row) store.Question {
	return store.Question{Row: c.Row, At: r.Asked, Why: r.Reason}
}

func (x session) Question(ctx context.Context, c store.Claim) (store.Question, error) {
	return do(ctx, x, "Question", c.Row, func(t *Tx) (q store.Question, _ error) {
		if r := t.plain()[c.Row]; r.Owner == c.Owner && r.Token == c.Token {
			q = question(c, r)
		}
		return q, nil
	})
}

// AskHolders is that of store.Store.
func (s *Store) AskHolders(ctx context.Context, key, why string, since int64) (store.Asked, error) {
	return do(ctx, s.session, "AskHolders", entryRow(key), func(t *Tx) (asked store.Asked, _ error) {
		now, rows := t.db.now(), t.latest()
		last := now
		others, entry := places(rows, key), entryRow(key)
		if !slices.ContainsFunc(others, func(at store.Row) bool { return rows[entry].WaitsFor(rows[at], now) }) { // else it holds nothing yet
			others = append(others, entry)
		}
		for _, at := range others {
			r, reply := rows[at].Request(why, since, now)
			switch {
			case reply == store.Refused:
			case reply == store.Questioned: // by others, meanwhile
				asked.Holders++
			case !t.lock(at):
				asked.Left++
				last = max(last, int64(r.Token))
			default:
				t.Written[at] = r
				asked.Holders++
			}
		}
		asked.At = min(since, last)
		return asked, nil
	})
}
