package lease

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/dca00107/lockstep/txlock/internal/store"
)

// batch is what one statement renews, by row.
type batch map[store.Row]*record

// rowsPerSecond is how many rows one statement renews for each second of the shortest
// TTL, so that no urgent lease waits for it for long.
const rowsPerSecond = 200

// nextBatch returns the records to be renewed first: the most urgent one and those that
// are nearly as urgent. The others must not delay these, nor fail with them if time is
// short. If two records have the same row, one of them has lost it; the second waits for
// the next batch.
func nextBatch(records []*record, shortest time.Duration) batch {
	urgency := make(map[*record]time.Duration, len(records))
	for _, r := range records {
		urgency[r] = max(r.left(), 0) // its time may be over before its timer has said so
		if !r.shared && r.slot == store.LeaseSlot {
			urgency[r] /= 2 // if it is lost, others may write
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

// renew extends the rows that are still ours and not locked, and returns what has become
// of each.
func (b batch) renew(ctx context.Context, s store.Session) (map[store.Row]store.Standing, error) {
	claims := make([]store.Claim, 0, len(b))
	for _, r := range b {
		claims = append(claims, r.claim())
	}
	return s.RenewMany(ctx, claims)
}
