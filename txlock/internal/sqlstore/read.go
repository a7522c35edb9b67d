package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// Look reads a row without a lock.
func (s session) Look(ctx context.Context, at store.Row) (store.Glance, error) {
	row, err := queries.LookLease(ctx, s.db, gen.LookLeaseParams{Name: []byte(at.Key), Slot: at.Slot})
	if errors.Is(err, sql.ErrNoRows) {
		return store.Glance{}, nil
	}
	return store.Glance{
		Exists: err == nil, Owner: string(row.Owner), Note: string(row.Note), Token: row.Token, Left: micros(row.LeftUs), TTL: micros(row.TtlUs), Use: store.Use(row.UsedFor),
	}, err
}

// Stored reads the token and the holds of a row.
func (s session) Stored(ctx context.Context, at store.Row) (store.Stored, error) {
	row, err := queries.LeaseInSnapshot(ctx, s.db, gen.LeaseInSnapshotParams{Name: []byte(at.Key), Slot: at.Slot})
	if errors.Is(err, sql.ErrNoRows) {
		return store.Stored{}, nil
	}
	return store.Stored{Exists: err == nil, Token: row.Token, Holds: row.Holds}, err
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

// LockReaders locks the rows of a key's readers, and returns the readers.
func (s session) LockReaders(ctx context.Context, key string) ([]store.Reader, error) {
	rows, err := queries.ReadersForShare(ctx, s.db, []byte(key))
	readers := make([]store.Reader, len(rows))
	for i, row := range rows {
		readers[i] = store.Reader{Owner: string(row.Owner), Hold: row.Holds}
	}
	return readers, err
}

// UnchangedSinceSnapshot compares the row of a lease, and of its readers, with what the
// transaction's snapshot shows.
func (s session) UnchangedSinceSnapshot(ctx context.Context, key string) error {
	name := []byte(key)
	before, err := queries.LeaseInSnapshot(ctx, s.db, gen.LeaseInSnapshotParams{Name: name, Slot: store.LeaseSlot})
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	current, err := queries.LeaseAsItIs(ctx, s.db, gen.LeaseAsItIsParams{Name: name, Slot: store.LeaseSlot})
	if errors.Is(err, sql.ErrNoRows) {
		return store.ErrLocked
	}
	before.UsedFor = current.UsedFor
	if err == nil && gen.LeaseInSnapshotRow(current) != before {
		err = fmt.Errorf("%w: the lease was held by somebody since", txlock.ErrStaleSnapshot)
	}
	if err != nil || store.Use(current.UsedFor) != store.Shared {
		return err
	}
	// Readers may have committed something too. What is compared only rises.
	readBefore, err := queries.ReadingInSnapshot(ctx, s.db, name)
	if err != nil {
		return err
	}
	each, err := queries.ReadingAsItIs(ctx, s.db, name)
	var readSince int64
	for _, done := range each {
		readSince += done
	}
	if err == nil && readSince != readBefore {
		err = fmt.Errorf("%w: somebody has read under the lease since", txlock.ErrStaleSnapshot)
	}
	return err
}
