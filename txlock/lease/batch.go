package lease

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/dca00107/lockstep/txlock/internal/store"
)

// batch is what one statement renews: rows of any keys.
type batch map[store.Row]*record

// rowsPerSecond is how many rows one statement renews for each second of the shortest
// time to live of any, so that none that is urgent has to wait for it for long.
const rowsPerSecond = 200

// nextBatch returns those of the records to be renewed first: the most urgent one, and
// what is nearly as urgent. What isn't is not to be in the way of that, nor to fail with
// it where the time is short. Of two records of one row, one of which has lost it, the
// second is left for later.
func nextBatch(records []*record, shortest time.Duration) batch {
	urgency := make(map[*record]time.Duration, len(records))
	for _, r := range records {
		urgency[r] = r.left()
		if !r.shared && r.slot == store.LeaseSlot {
			urgency[r] /= 2 // others would write where it is lost
		}
	}
	slices.SortFunc(records, func(a, b *record) int { return cmp.Compare(urgency[a], urgency[b]) })
	most := min(max(int(rowsPerSecond*shortest.Seconds()), leastChunk), renewalChunk)
	next := make(batch)
	for _, r := range records {
		if len(next) == most || urgency[r] > 4*urgency[records[0]] {
			break
		}
		if next[r.row()] == nil {
			next[r.row()] = r
		}
	}
	return next
}

// renew extends those of the rows that are the records' and not locked, and tells what
// has become of each.
func (b batch) renew(ctx context.Context, s store.Session) (map[store.Row]store.Standing, error) {
	claims := make([]store.Claim, 0, len(b))
	for _, r := range b {
		claims = append(claims, r.claim())
	}
	return s.RenewMany(ctx, claims)
}
