package ops

import (
	"context"
	"database/sql"
	"math"
	"strings"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// The slots of a key of leases: 0 is the lease, permits follow, then readers.
const maxPermits = 1000

const page = 1000

// standby ends the name of the semaphore on which those stand by who don't lead.
const standby = ":standby"

// leases reads what is held, and who is the first in each queue of Fair.
func (l *look) leases(ctx context.Context) error {
	next := gen.ListLeasesParams{After: []byte{}, AfterSlot: math.MinInt64, Limit: page}
	for {
		rows, err := queries.ListLeases(ctx, rawsql.Looking(l.db), next)
		if err != nil {
			return err
		}
		for _, row := range rows {
			l.Leases = append(l.Leases, l.leaseOf(row))
		}
		if len(rows) < page {
			break
		}
		next.After, next.AfterSlot = rows[page-1].Name, rows[page-1].Slot
	}
	elections, err := l.candidates(ctx)
	if err != nil {
		return err
	}
	l.elections = elections
	for i := range l.Leases {
		lease := &l.Leases[i]
		lease.Leads = lease.Kind == string(Exclusive) && elections[lease.Key]
	}
	return l.uncommitted(ctx, func(tx *sql.Tx) error { return l.firstWaiters(ctx, tx) })
}

func (l *look) leaseOf(row gen.ListLeasesRow) Lease {
	lease := Lease{
		Key: string(row.Name), Kind: string(Exclusive), Slot: row.Slot, Owner: string(row.Owner), Note: string(row.Note), Token: row.Token,
		Since: time.UnixMicro(int64(row.Token)).UTC(), TTL: micros(row.TtlUs), Left: micros(row.LeftUs),
		Renewed: max(0, micros(row.TtlUs-row.LeftUs)), Holds: int(row.HoldsLength / 23),
	}
	lease.Held = l.since(lease.Since)
	switch {
	case row.Slot > maxPermits:
		lease.Kind = "reader"
	case row.Slot > 0:
		lease.Kind = "permit"
	}
	if row.AskedUs > 0 {
		lease.Asked, lease.AskedAt = string(row.Question), time.UnixMicro(row.AskedUs).UTC()
	}
	return lease
}

func micros(us int64) Seconds { return seconds(time.Duration(us) * time.Microsecond) }

// candidates returns the keys of elections at which a process has been on standby.
func (l *look) candidates(ctx context.Context) (map[string]bool, error) {
	names, err := every(ctx, l.db, "SELECT name FROM lockstep_leases WHERE slot = 0 AND name LIKE '%"+standby+"'", nil, func(name *string) []any { return []any{name} })
	found := make(map[string]bool, len(names))
	for _, name := range names {
		found[strings.TrimSuffix(name, standby)] = true
	}
	return found, err
}

// firstWaiters reads who has the turnstiles.
func (l *look) firstWaiters(ctx context.Context, tx *sql.Tx) error {
	next := gen.ListTurnstilesParams{After: []byte{}, Limit: page}
	for {
		rows, err := queries.ListTurnstiles(ctx, rawsql.Looking(tx), next)
		if err != nil {
			return err
		}
		for _, row := range rows {
			first := Lease{Key: string(row.Name), Kind: waiter, Slot: -1, Owner: strings.TrimRight(string(row.Owner), " "), Note: strings.TrimRight(string(row.Note), " "), Since: time.UnixMicro(row.SinceUs).UTC(), Session: row.ConnID}
			first.Held = l.since(first.Since)
			l.Leases = append(l.Leases, first)
		}
		if len(rows) < page {
			return nil
		}
		next.After = rows[page-1].Name
	}
}
