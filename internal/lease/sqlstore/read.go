package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock"
)

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// Look reads a row without a lock.
func (s session) Look(ctx context.Context, at store.Row) (store.Glance, error) {
	row, err := queries.LookLease(ctx, s.db, gen.LookLeaseParams{Name: []byte(at.Key), Slot: at.Slot})
	if errors.Is(err, sql.ErrNoRows) {
		return store.Glance{}, nil
	}
	return store.Glance{
		Exists: err == nil, Owner: string(row.Owner), Label: string(row.Label), Token: row.Token, Left: micros(row.LeftUs), TTL: micros(row.TtlUs), Use: store.Use(row.UsedFor),
	}, fault.Read("LookLease", err)
}

// Stored reads the token and the holds of a row.
func (s session) Stored(ctx context.Context, at store.Row) (store.Stored, error) {
	row, err := queries.LeaseInSnapshot(ctx, s.db, gen.LeaseInSnapshotParams{Name: []byte(at.Key), Slot: at.Slot})
	if errors.Is(err, sql.ErrNoRows) {
		return store.Stored{}, nil
	}
	return store.Stored{Exists: err == nil, Token: row.Token, Holders: row.Holders}, fault.Read("LeaseInSnapshot", err)
}

// Permits counts the permits of a key with slots from first to last.
func (s session) Permits(ctx context.Context, key string, first, last int) (store.Permits, error) {
	row, err := queries.PermitsOf(ctx, s.db, gen.PermitsOfParams{Name: []byte(key), First: int64(first), Last: int64(last)})
	return store.Permits{Rows: int(row.Permits), Held: int(row.Held), Left: micros(row.LeftUs)}, err
}

// Readers counts the readers of a key.
func (s session) Readers(ctx context.Context, key string) (store.Readers, error) {
	row, err := queries.ReadersOf(ctx, s.db, []byte(key))
	return store.Readers{Held: int(row.Readers), Expired: int(row.Expired), Left: micros(row.LeftUs), Idle: int(row.Idle)}, err
}

// ReaderAmong returns which of the owners reads under a key, or "".
func (s session) ReaderAmong(ctx context.Context, key string, owners []string, begins string) (string, error) {
	names := make([][]byte, len(owners))
	for i, owner := range owners {
		names[i] = []byte(owner)
	}
	owner, err := queries.ReaderAmong(ctx, s.db, gen.ReaderAmongParams{Name: []byte(key), Owners: names, Begins: begins})
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return string(owner), err
}

// Places reads the rows of a key's readers.
func (s session) Places(ctx context.Context, key string) ([]store.Place, error) {
	rows, err := queries.PlacesOf(ctx, s.db, []byte(key))
	places := make([]store.Place, len(rows))
	for i, row := range rows {
		places[i] = store.Place{Slot: row.Slot, Owner: string(row.Owner), Held: row.Held, Expired: row.Expired, Done: row.Done}
	}
	return places, err
}

// DoneInSnapshot reads what Place.Done is of the slots.
func (s session) DoneInSnapshot(ctx context.Context, key string, slots []int64) (done map[int64]int64, err error) {
	if len(slots) == 0 {
		return nil, nil
	}
	rows, err := s.db.QueryContext(ctx, rawsql.ReadersDone([]byte(key), slots))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	done = make(map[int64]int64, len(slots))
	for rows.Next() {
		var slot, n int64
		if err := rows.Scan(&slot, &n); err != nil {
			return nil, fault.Read("ReadersDone", err)
		}
		done[slot] = n
	}
	return done, rows.Err()
}

// UnchangedSinceSnapshot locks the row of a lease, and compares it with what the
// transaction's snapshot shows: afterwards, since a plain read may lock, too.
func (s session) UnchangedSinceSnapshot(ctx context.Context, key string) error {
	name := []byte(key)
	current, err := queries.LeaseAsItIs(ctx, s.db, gen.LeaseAsItIsParams{Name: name, Slot: store.LeaseSlot})
	if errors.Is(err, sql.ErrNoRows) || refused(err) {
		return store.ErrLocked
	}
	if err != nil {
		return fault.Read("LeaseAsItIs", err)
	}
	before, err := queries.LeaseInSnapshot(ctx, s.db, gen.LeaseInSnapshotParams{Name: name, Slot: store.LeaseSlot})
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	if before.UsedFor == int64(store.Exclusive) { // else the row was made anew
		before.UsedFor = current.UsedFor
	}
	if err == nil && gen.LeaseInSnapshotRow(current) != before {
		err = fmt.Errorf("%w: the lease was held, or rows of its readers were removed, since", txlock.ErrStaleSnapshot)
	}
	return fault.Read("LeaseInSnapshot", err)
}
