package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// page is how many rows one statement reads.
const page = 1000

// List returns what is held, and the first waiter of each key.
func (s *Store) List(ctx context.Context) ([]store.Info, error) {
	all, err := s.listHeld(ctx)
	if err == nil && !s.clock.engine().CommittedOnly {
		err = uncommitted(ctx, s.pool, func(tx gen.DBTX) error {
			waiters, err := listWaiters(ctx, tx)
			all = append(all, waiters...)
			return err
		})
	}
	return all, err
}

func (s *Store) listHeld(ctx context.Context) (all []store.Info, err error) {
	next := gen.ListLeasesParams{After: []byte{}, AfterSlot: math.MinInt64, Limit: page}
	for {
		rows, err := queries.ListLeases(ctx, rawsql.Scanning(s.pool), next)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			all = append(all, infoOf(gen.InspectLeaseRow(row)))
		}
		if len(rows) < page {
			return all, nil
		}
		next.After, next.AfterSlot = rows[page-1].Name, rows[page-1].Slot
	}
}

func listWaiters(ctx context.Context, tx gen.DBTX) (all []store.Info, err error) {
	next := gen.ListQueuesParams{After: []byte{}, Limit: page}
	for {
		rows, err := queries.ListQueues(ctx, rawsql.Scanning(tx), next)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			all = append(all, waiterOf(gen.InspectQueueRow(row)))
		}
		if len(rows) < page {
			return all, nil
		}
		next.After = rows[page-1].Name
	}
}

// Inspect returns what is held of a key, the row of its lease, and its first waiter.
func (s *Store) Inspect(ctx context.Context, key string) (all []store.Info, err error) {
	rows, err := queries.InspectLease(ctx, rawsql.Scanning(s.pool), []byte(key))
	for _, row := range rows {
		if row.Slot != store.QueueSlot || s.clock.engine().CommittedOnly {
			all = append(all, infoOf(row))
			continue
		}
		first, err := s.firstWaiter(ctx, key)
		if err != nil {
			return nil, err
		}
		all = append(all, first...)
	}
	return all, err
}

// firstWaiter returns the waiter that has the queue row of a key, if there is one.
func (s *Store) firstWaiter(ctx context.Context, key string) (first []store.Info, err error) {
	err = uncommitted(ctx, s.pool, func(tx gen.DBTX) error {
		row, err := queries.InspectQueue(ctx, tx, []byte(key))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		first = []store.Info{waiterOf(row)}
		return err
	})
	return first, err
}

func infoOf(row gen.InspectLeaseRow) store.Info {
	info := store.Info{
		Row: store.Row{Key: string(row.Name), Slot: row.Slot}, Owner: string(row.Owner), Label: string(row.Label), Token: row.Token,
		TTL: micros(row.TtlUs), Left: micros(row.LeftUs), Holders: int(row.HoldersLength / store.HoldLength), Use: store.Use(row.UsedFor),
	}
	if row.AskedUs > 0 && info.Left > 0 {
		info.Asked, info.AskedAt = string(row.ReleaseReason), time.UnixMicro(row.AskedUs)
	}
	return info
}

func waiterOf(row gen.InspectQueueRow) store.Info {
	return store.Info{
		Row: store.Row{Key: string(row.Name), Slot: store.QueueSlot}, Owner: strings.TrimRight(string(row.Owner), " "), Label: strings.TrimRight(string(row.Label), " "),
		Since: time.UnixMicro(row.SinceUs), Session: row.ConnID,
	}
}
