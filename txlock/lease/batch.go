package lease

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// batch is what one statement renews: rows of any keys.
type batch map[row]*record

// row is a row of the table.
type row struct {
	key  string
	slot int64
}

func (r *record) row() row { return row{r.key.String(), r.slot} }

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
		if !r.shared && r.slot == leaseSlot {
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

// standing is what has become of a row.
type standing int

const (
	gone    standing = iota // it is not the record's any more
	skipped                 // it is, and somebody has locked it
	renewed
)

// renew extends those of the rows that are the records' and not locked, and tells what
// has become of each. It needs no second look where all were renewed.
func (b batch) renew(ctx context.Context, conn gen.DBTX) (map[row]standing, error) {
	if len(b) == 0 {
		return nil, nil
	}
	holds := make([]rawsql.Hold, 0, len(b))
	for at, r := range b {
		holds = append(holds, rawsql.Hold{Name: at.key, Slot: at.slot, Owner: r.owner, Hold: r.hold, Token: r.token.Load()})
	}
	result, err := conn.ExecContext(ctx, rawsql.RenewMany(holds))
	if err != nil {
		return nil, err
	}
	affected, err := result.RowsAffected()
	if err != nil {
		return nil, err
	}
	found := make(map[row]standing, len(b))
	if affected == 2*int64(len(b)) {
		for at := range b {
			found[at] = renewed
		}
		return found, nil
	}
	at, err := result.LastInsertId()
	if err != nil {
		return nil, err
	}
	return found, read(ctx, conn, rawsql.HeldMany(holds, at), found)
}

// read reads what has become of the rows that are still the records'.
func read(ctx context.Context, conn gen.DBTX, query string, found map[row]standing) error {
	rows, err := conn.QueryContext(ctx, query)
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
		found[row{string(name), slot}] = skipped
		if extended {
			found[row{string(name), slot}] = renewed
		}
	}
	return rows.Err()
}
