package lease

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
)

// batch is what one statement renews, by row.
type batch map[store.Row]*record

// rowsPerSecond is how many rows one statement renews for each second of the shortest
// TTL, so that no urgent lease waits for it for long.
const rowsPerSecond = 200

// sortByUrgency sorts records by the time that is left to renew them. It counts half for
// those whose loss lets others write.
func sortByUrgency(records []*record) {
	urgency := make(map[*record]time.Duration, len(records))
	for _, r := range records {
		urgency[r] = r.urgency()
	}
	slices.SortFunc(records, func(a, b *record) int { return cmp.Compare(urgency[a], urgency[b]) })
}

func (r *record) urgency() time.Duration {
	left := max(r.left(), 0) // its time may be over before its timer has said so
	if !r.shared && r.slot == store.LeaseSlot {
		return left / 2
	}
	return left
}

// nextBatch returns which of the records, sorted by urgency, are to be renewed first, and
// the rest: the most urgent one and those that are nearly as urgent. The others must not
// delay these, nor fail with them if time is short. If two records have the same row, one
// of them has lost it; the second waits for the next batch.
func nextBatch(records []*record, shortest time.Duration, chunk int) (next batch, rest []*record) {
	most := min(max(int(rowsPerSecond*shortest.Seconds()), leastChunk), chunk)
	limit := 4 * records[0].urgency()
	next = make(batch)
	for i, r := range records {
		if len(next) == most || r.urgency() > limit {
			return next, append(rest, records[i:]...)
		}
		if next[r.row()] != nil {
			rest = append(rest, r)
			continue
		}
		next[r.row()] = r
	}
	return next, rest
}

// renew extends the rows that are still ours and not locked, and returns what has become
// of each, and what their owners are asked.
func (b batch) renew(ctx context.Context, s store.Session) (map[store.Row]store.Standing, []store.Question, error) {
	claims := make([]store.Claim, 0, len(b))
	for _, r := range b {
		claims = append(claims, r.renewal())
	}
	return s.RenewMany(ctx, claims)
}
