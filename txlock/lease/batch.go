package lease

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

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

// batches divides records into batches, the most urgent first. Of two records of one row,
// one of which has lost it, the second goes into a batch of its own.
func batches(records []*record) []batch {
	urgency := make(map[*record]time.Duration, len(records))
	for _, r := range records {
		urgency[r] = r.left()
		if !r.shared && r.slot == leaseSlot {
			urgency[r] /= 2 // others would write where it is lost
		}
	}
	slices.SortFunc(records, func(a, b *record) int { return cmp.Compare(urgency[a], urgency[b]) })
	var all []batch
	for _, r := range records {
		i := slices.IndexFunc(all, func(b batch) bool { return len(b) < renewalChunk && b[r.row()] == nil })
		if i < 0 {
			i, all = len(all), append(all, make(batch))
		}
		all[i][r.row()] = r
	}
	return all
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
func (b batch) renew(ctx context.Context, conn *sql.Conn) (map[row]standing, error) {
	holds := make([]rawsql.Hold, 0, len(b))
	for at, r := range b {
		holds = append(holds, rawsql.Hold{Name: at.key, Slot: at.slot, Owner: r.owner, Hold: r.hold, Token: r.token.Load()})
	}
	if _, err := conn.ExecContext(ctx, rawsql.ReadCommitted); err != nil {
		return nil, err
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
func read(ctx context.Context, conn *sql.Conn, query string, found map[row]standing) error {
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
