package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dca00107/lockstep/internal/ops"
)

const keysHelp = "file of keys, - for the standard input: those of hashed families are named with their slots, which don't know their keys"

func (a *app) locks() *cobra.Command {
	cmd := &cobra.Command{
		Use: "locks", Args: cobra.NoArgs,
		Short: "List the transaction locks that are held",
		Long: `List the locks that open transactions hold: of keys, of the slots of hashed keys, of
keys of Once, and of leases that they guard.

Privileges: SELECT on lockstep_locks, lockstep_centers and lockstep_leases, and PROCESS; on
MySQL SELECT on performance_schema.* as well. MariaDB lists shared locks, and those of Once
and of leases, only while a session waits.`,
		RunE: a.with(func(ctx context.Context, _ []string) error {
			p, err := a.look(ctx)
			if err != nil {
				return err
			}
			if done, err := a.found(locksForm{p.Locks, p.Sessions, p.Gaps}, len(p.Locks), p.Gaps, "no locks are held"); done {
				return err
			}
			table(a.out, lockHead, lockRows(p, p.Locks))
			return nil
		}),
	}
	cmd.Flags().StringVar(&a.keys, "keys", "", keysHelp)
	return cmd
}

const lockHead = "KEY MODE HELD WAITERS OWNER SESSION USER PROGRAM TRANSACTION ACTIVITY"

func lockRows(p *ops.Picture, locks []ops.Lock) (rows [][]string) {
	for _, l := range locks {
		s := p.Sessions[l.Session]
		rows = append(rows, []string{nameOf(l.Row, l.Keys), l.How(), l.Held.String(), l.Waiters.String(), l.Owner,
			ops.Number(l.Session), s.Who(), s.Program, s.Age(), clipped(s.Doing(), 60)})
	}
	return rows
}

// nameOf names a row, and which of the keys that were given fall on its slot.
func nameOf(row ops.Row, keys []string) string {
	if len(keys) == 0 {
		return row.String()
	}
	var shown []string
	for _, key := range keys {
		shown = append(shown, ops.Shown(key))
	}
	return row.String() + " (" + strings.Join(shown, ", ") + ")"
}

func (a *app) leases() *cobra.Command {
	return &cobra.Command{
		Use: "leases", Args: cobra.NoArgs,
		Short: "List the leases, readers and permits that are held",
		Long: `List the leases, readers and permits that are held, and the first waiter of each queue
of Fair. A live holder renews its lease every third of the TTL: one that is marked late
has crashed, is stopped or cut off, or nears its MaxLifetime, and its lease expires.
Leases without RENEWED are not renewed by design.

Privileges: SELECT on lockstep_locks, lockstep_centers and lockstep_leases. The number of
waiters needs those of waits.`,
		RunE: a.with(func(ctx context.Context, _ []string) error {
			p, err := a.look(ctx)
			if err != nil {
				return err
			}
			gaps := p.GapsOf("lockstep_leases")
			if len(p.Leases) > 0 { // which may have waiters that can't be seen
				gaps = p.Hiding()
			}
			if done, err := a.found(leasesForm{p.Leases, gaps}, len(p.Leases), gaps, "no leases are held"); done {
				return err
			}
			table(a.out, leaseHead, leaseRows(p.Leases))
			return nil
		}),
	}
}

const leaseHead = "KEY KIND HELD LEFT RENEWED WAITERS OWNER LABEL TOKEN"

func leaseRows(leases []ops.Lease) (rows [][]string) {
	for _, l := range leases {
		if l.Kind == "waiter" {
			rows = append(rows, []string{ops.Shown(l.Key), "waits", l.Held.String(), "", "", l.Waiters.String(), l.Owner, l.Label, ""})
			continue
		}
		kind := l.Kind
		if l.Leads {
			kind = "leader"
		}
		if l.Asked != "" || !l.AskedAt.IsZero() {
			kind += ", asked: " + l.Asked
		}
		rows = append(rows, []string{ops.Shown(l.Key), kind, l.Held.String(), l.Left.String(), l.Renewal(), l.Waiters.String(), l.Owner, l.Label, strconv.FormatUint(l.Token, 10)})
	}
	return rows
}

func (a *app) waits() *cobra.Command {
	cmd := &cobra.Command{
		Use: "waits", Args: cobra.NoArgs,
		Short: "Show lock waits as a tree",
		Long: `Show lock waits as a tree, over locks, leases and rows of other tables. Ending a root
session unblocks those below it.

Waiters for a lease without Fair poll, and can't be seen.

Privileges: SELECT on lockstep_locks, lockstep_centers and lockstep_leases, and PROCESS; on
MySQL SELECT on performance_schema.* as well.`,
		RunE: a.with(func(ctx context.Context, _ []string) error {
			p, err := a.look(ctx)
			if err != nil {
				return err
			}
			if done, err := a.found(waitsForm{p.Tree(), p.Sessions, p.Gaps}, len(p.Waits), p.Gaps, "no session waits"); done {
				return err
			}
			drawing{a.out, p}.forest(p.Tree())
			return nil
		}),
	}
	cmd.Flags().StringVar(&a.keys, "keys", "", keysHelp)
	return cmd
}
