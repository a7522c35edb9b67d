package memstore

import (
	"context"
	"math"
	"strings"

	"github.com/dca00107/lockstep/txlock/internal/store"
)

// question returns what the holder of a claim was asked and not told of yet.
func (r *row) question(c store.Claim) []store.Question {
	if r.asked <= c.Told {
		return nil
	}
	return []store.Question{{Row: c.Row, At: r.asked, Why: r.why}}
}

func (x session) Question(ctx context.Context, c store.Claim) (store.Question, error) {
	return do(ctx, x, "Question", c.Row, func(t *Tx) (q store.Question, _ error) {
		if r := t.plain()[c.Row]; r.owner == c.Owner && r.token == c.Token {
			q = store.Question{Row: c.Row, At: r.asked, Why: r.why}
		}
		return q, nil
	})
}

// AskHolders is that of store.Store.
func (s *Store) AskHolders(ctx context.Context, key, why string, since int64) (store.Asked, error) {
	return do(ctx, s.session, "AskHolders", gate(key), func(t *Tx) (asked store.Asked, _ error) {
		now, rows := t.db.now(), t.latest()
		again := since < math.MaxInt64
		last := now
		for _, at := range append(places(rows, key), gate(key)) {
			r := rows[at]
			if !r.held(now) || !strings.HasPrefix(r.holds, ";") || int64(r.token) > since {
				continue
			}
			switch {
			case r.asked >= since: // by others, meanwhile
				asked.Holders++
			case !t.lock(at):
				asked.Left++
				last = max(last, int64(r.token))
			default:
				r.asked, r.why = max(r.asked+1, now), why
				if again {
					r.asked = max(r.asked, since)
				}
				t.written[at] = r
				asked.Holders++
			}
		}
		asked.At = min(since, last)
		return asked, nil
	})
}
