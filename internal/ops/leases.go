package ops

import (
	"context"
	"database/sql"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// The slots of a key of leases: 0 is the lease, permits follow, then readers.
const maxPermits = 1000

const page = 1000

// cleanup is the key of the lease by which one process at a time deletes unused rows. It keeps the
// lease until the next time, and never renews it.
const cleanup = "lockstep:cleanup"

// released begins the owner of a lease that its holder has released, and that is kept for a while by
// lease.HoldAtLeast.
const released = "released: "

// standby ends the name of the semaphore on which those stand by who don't lead.
const standby = ":standby"

// leased is what the last reading of the table of leases has found.
type leased struct {
	read      time.Time // by the server's clock; zero before the first
	rows      int       // of the table, held or not
	leases    []Lease
	elections map[string]bool // at which a process has been on standby
	queues    []string        // the keys whose queue of Fair had a first waiter
}

// pause returns for how long the table isn't read again. A server reads a row in 1 to 3 µs, so it
// spends less than 1 % of a core on it.
func (t leased) pause() time.Duration {
	return min(time.Duration(t.rows)*500*time.Microsecond, time.Minute)
}

// due reports whether the table is to be read again.
func (t leased) due(now time.Time) bool {
	age := now.Sub(t.read)
	return t.read.IsZero() || age < 0 || age >= t.pause() // below 0 the clock was set back
}

// leases shows what was held when the table was read last, and reads it again where that is due.
func (l *look) leases(ctx context.Context) error {
	if l.leased.due(l.Taken) {
		if err := l.unless("lockstep_leases", func() error { return l.readLeases(ctx) }); err != nil {
			return err
		}
	}
	l.Leases, l.elections, l.LeasesAge = slices.Clone(l.leased.leases), l.leased.elections, l.since(l.leased.read)
	return nil
}

// readLeases reads the table of leases from end to end.
func (l *look) readLeases(ctx context.Context) error {
	table := leased{read: l.Taken, elections: make(map[string]bool)}
	if err := l.db.QueryRowContext(ctx, rawsql.Look("SELECT COUNT(*) FROM lockstep_leases")).Scan(&table.rows); err != nil {
		return err
	}
	type told struct {
		name string
		slot int64
	}
	var all []told
	err := l.uncommitted(ctx, func(tx *sql.Tx) (err error) {
		all, err = every(ctx, tx, "SELECT name, slot FROM lockstep_leases WHERE slot = 0 AND name LIKE '%"+standby+"' OR slot = -1 AND guards > 0", nil, func(t *told) []any { return []any{&t.name, &t.slot} })
		return err
	})
	if err != nil {
		return err
	}
	for _, t := range all {
		if t.slot < 0 {
			table.queues = append(table.queues, t.name)
		} else {
			table.elections[strings.TrimSuffix(t.name, standby)] = true
		}
	}
	next := gen.ListLeasesParams{After: []byte{}, AfterSlot: math.MinInt64, Limit: page}
	for {
		rows, err := queries.ListLeases(ctx, rawsql.Looking(l.db), next)
		if err != nil {
			return err
		}
		for _, row := range rows {
			lease := l.leaseOf(row)
			lease.Leads = lease.Kind == string(Exclusive) && table.elections[lease.Key]
			table.leases = append(table.leases, lease)
		}
		if len(rows) < page {
			break
		}
		next.After, next.AfterSlot = rows[page-1].Name, rows[page-1].Slot
	}
	waitForReaders(table.leases)
	l.leased = table
	return nil
}

// waitForReaders finds the writers that have their row, and wait until others have released theirs
// as readers: a reader comes beside a writer only if it has the same owner.
func waitForReaders(leases []Lease) {
	readers := make(map[string]string) // the owners by key
	for _, l := range leases {
		if l.Kind == "reader" {
			readers[l.Key] = l.Owner
		}
	}
	for i := range leases {
		l := &leases[i]
		if owner, read := readers[l.Key]; read && l.Kind == string(Exclusive) && owner != l.Owner && !l.Kept() {
			l.Kind, l.Leads = waiter, false
		}
	}
}

func (l *look) leaseOf(row gen.ListLeasesRow) Lease {
	lease := Lease{
		Key: string(row.Name), Kind: string(Exclusive), Slot: row.Slot, Owner: string(row.Owner), Label: string(row.Label), Token: row.Token,
		Since: time.UnixMicro(int64(row.Token)).UTC(), TTL: micros(row.TtlUs), Left: micros(row.LeftUs),
		Renewed: max(0, micros(row.TtlUs-row.LeftUs)), Holders: int(row.HoldersLength / 23),
	}
	lease.Held = l.since(lease.Since)
	if lease.Key == cleanup || lease.Kept() {
		lease.Renewed = unknown // and it isn't late
	}
	switch {
	case row.Slot > maxPermits:
		lease.Kind = "reader"
	case row.Slot > 0:
		lease.Kind = "permit"
	}
	if row.AskedUs > 0 {
		lease.Asked, lease.AskedAt = string(row.ReleaseReason), time.UnixMicro(row.AskedUs).UTC()
	}
	return lease
}

func micros(us int64) Seconds { return seconds(time.Duration(us) * time.Microsecond) }

// firstWaiters reads who is the first in the queues of Fair: in those that had one when the table was
// read, and in those of whose queue rows the server lists a lock.
func (l *look) firstWaiters(ctx context.Context) error {
	keys := make(map[string]bool)
	for _, key := range l.leased.queues {
		keys[key] = true
	}
	for _, s := range l.seen {
		if s.Kind == Queue {
			keys[s.Key] = true
		}
	}
	if len(keys) == 0 {
		return nil
	}
	type row struct {
		key, owner, label string
		session           uint64
		since             int64
	}
	return l.unless("lockstep_leases", func() error {
		return l.uncommitted(ctx, func(tx *sql.Tx) error {
			for part := range slices.Chunk(slices.Sorted(maps.Keys(keys)), chunk) {
				names := make([]any, len(part))
				for i, key := range part {
					names[i] = []byte(key)
				}
				rows, err := every(ctx, tx, "SELECT name, owner, label, conn_id, expires_us FROM lockstep_leases WHERE slot = -1 AND guards > 0 AND name IN (?"+strings.Repeat(",?", len(part)-1)+")", names, func(r *row) []any {
					return []any{&r.key, &r.owner, &r.label, &r.session, &r.since}
				})
				if err != nil {
					return err
				}
				for _, r := range rows {
					first := Lease{Key: r.key, Kind: waiter, Slot: -1, Owner: strings.TrimRight(r.owner, " "), Label: strings.TrimRight(r.label, " "), Since: time.UnixMicro(r.since).UTC(), Session: r.session}
					first.Held = l.since(first.Since)
					l.Leases = append(l.Leases, first)
				}
			}
			return nil
		})
	})
}
