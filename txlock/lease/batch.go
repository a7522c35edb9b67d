package lease

import (
	"context"
	"database/sql"

	"github.com/dca00107/lockstep/gen"
)

// batch is what one transaction renews: leases of any keys, or readers and permits
// of one.
type batch struct {
	name    string // of readers and permits
	records map[row]*record
}

// row is a row of the table.
type row struct {
	key  string
	slot int64
}

func (r *record) row() row { return row{r.key.String(), r.slot} }

// batches divides records into batches. Of two records of one row, one of which has
// lost it, the second goes into a batch of its own.
func batches(records []*record) []*batch {
	var all []*batch
	open := make(map[string]*batch)
	for _, r := range records {
		name := ""
		if r.slot != leaseSlot {
			name = r.key.String()
		}
		b := open[name]
		if b == nil || len(b.records) == renewalChunk || b.records[r.row()] != nil {
			b = &batch{name: name, records: make(map[row]*record)}
			open[name] = b
			all = append(all, b)
		}
		b.records[r.row()] = r
	}
	return all
}

// renew extends the rows that are locked and still the records', and tells of the others
// whether they are.
func (b *batch) renew(ctx context.Context, tx *sql.Tx) (ours, locked map[row]bool, err error) {
	tokens := make([]uint64, 0, len(b.records))
	for _, r := range b.records {
		tokens = append(tokens, r.token.Load())
	}
	free, err := b.lock(ctx, tx, tokens)
	if err != nil {
		return nil, nil, err
	}
	ours = b.own(free)
	if len(ours) > 0 {
		if err := b.extend(ctx, tx, ours); err != nil {
			return nil, nil, err
		}
	}
	if len(ours) == len(b.records) {
		return ours, nil, nil
	}
	left := make(map[row]bool)
	for at := range b.records {
		if !ours[at] {
			left[at] = true
		}
	}
	current, err := b.read(ctx, tx, left)
	return ours, b.own(current), err
}

// held is a row as it was read.
type held struct {
	row
	owner string
	token uint64
}

// own returns which of the rows are still the records'.
func (b *batch) own(rows []held) map[row]bool {
	own := make(map[row]bool, len(rows))
	for _, h := range rows {
		if r := b.records[h.row]; r != nil && r.token.Load() == h.token && r.owner == h.owner {
			own[h.row] = true
		}
	}
	return own
}

// names and slots are the parameters for rows, of which one varies.
func names(rows map[row]bool) (names [][]byte) {
	for at := range rows {
		names = append(names, []byte(at.key))
	}
	return names
}

func slots(rows map[row]bool) (slots []int64) {
	for at := range rows {
		slots = append(slots, at.slot)
	}
	return slots
}

func (b *batch) all() map[row]bool {
	rows := make(map[row]bool, len(b.records))
	for at := range b.records {
		rows[at] = true
	}
	return rows
}

// lock locks the rows that nobody else has locked.
func (b *batch) lock(ctx context.Context, tx gen.DBTX, tokens []uint64) (found []held, err error) {
	if b.name == "" {
		rows, err := queries.LeasesForRenewal(ctx, tx, gen.LeasesForRenewalParams{Slot: leaseSlot, Names: names(b.all()), Tokens: tokens})
		for _, r := range rows {
			found = append(found, held{row{string(r.Name), leaseSlot}, string(r.Owner), r.Token})
		}
		return found, err
	}
	rows, err := queries.PermitsForRenewal(ctx, tx, gen.PermitsForRenewalParams{Name: []byte(b.name), Slots: slots(b.all()), Tokens: tokens})
	for _, r := range rows {
		found = append(found, held{row{b.name, r.Slot}, string(r.Owner), r.Token})
	}
	return found, err
}

// extend sets the expiry of rows that are locked.
func (b *batch) extend(ctx context.Context, tx gen.DBTX, rows map[row]bool) error {
	if b.name == "" {
		return queries.ExtendLeases(ctx, tx, gen.ExtendLeasesParams{Slot: leaseSlot, Names: names(rows)})
	}
	return queries.ExtendPermits(ctx, tx, gen.ExtendPermitsParams{Name: []byte(b.name), Slots: slots(rows)})
}

// read reads rows without a lock.
func (b *batch) read(ctx context.Context, tx gen.DBTX, rows map[row]bool) (found []held, err error) {
	if b.name == "" {
		current, err := queries.LeasesNow(ctx, tx, gen.LeasesNowParams{Slot: leaseSlot, Names: names(rows)})
		for _, r := range current {
			found = append(found, held{row{string(r.Name), leaseSlot}, string(r.Owner), r.Token})
		}
		return found, err
	}
	current, err := queries.PermitsNow(ctx, tx, gen.PermitsNowParams{Name: []byte(b.name), Slots: slots(rows)})
	for _, r := range current {
		found = append(found, held{row{b.name, r.Slot}, string(r.Owner), r.Token})
	}
	return found, err
}
