package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// sure asks whether to go on, unless --yes says so.
func (a *app) sure(ctx context.Context, what string) error {
	_, _ = fmt.Fprintln(a.err, printable(what))
	if a.yes {
		return nil
	}
	_, _ = fmt.Fprint(a.err, "Go on? Type yes: ")
	var line string
	var err error
	answered := make(chan struct{})
	go func() { // which the end of the process ends, if nobody answers
		line, err = a.lines().ReadString('\n')
		close(answered)
	}()
	select {
	case <-answered:
	case <-ctx.Done():
		_, _ = fmt.Fprintln(a.err)
		return failed(declined, "nothing was done: %w", context.Cause(ctx))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return failed(declined, "read the answer: %w", err)
	}
	if strings.TrimSpace(line) != "yes" {
		return failed(declined, "nothing was done")
	}
	return nil
}

func (a *app) changes(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVarP(&a.yes, "yes", "y", false, "don't ask")
	return cmd
}

// manager makes a manager of leases that does nothing by itself.
func (a *app) manager() (*lease.Manager, error) {
	return lease.NewManager(a.db, lease.PurgeEvery(0, 7*24*time.Hour))
}

func (a *app) ask() *cobra.Command {
	reason := ""
	cmd := &cobra.Command{
		Use: "ask KEY", Args: cobra.ExactArgs(1),
		Short: "Ask the holders of a lease to release it",
		Long: `Ask the holders of a key's lease, including readers and permits, to release it. They see
the request at their next renewal, and decide. Holders of transaction locks can't be asked.

Privileges: SELECT, INSERT and UPDATE on lockstep_leases, and SELECT on lockstep_locks and
lockstep_centers.`,
		RunE: a.with(func(ctx context.Context, args []string) error {
			key, err := programKeyOf(args[0])
			if err != nil {
				return err
			}
			p, err := a.look(ctx)
			if err != nil {
				return err
			}
			holders, _ := toRelease(p, key, false, nil)
			if holders = slices.DeleteFunc(holders, ops.Lease.Kept); len(holders) == 0 {
				gaps := p.GapsOf("lockstep_leases")
				a.gaps(gaps)
				return failed(unseen(gaps), "the lease %q is not held", key)
			}
			for _, l := range holders {
				a.say("%s", cell(l.Describe()))
				a.say("%s", l.IfAsked())
			}
			if err := a.sure(ctx, fmt.Sprintf("Ask %d holder(s) of %q to give it up: %q.", len(holders), key, reason)); err != nil {
				return err
			}
			m, err := a.manager()
			if err != nil {
				return err
			}
			if err := errors.Join(lease.Internal(bridge.Pass{}).RequestRelease(ctx, m, txlock.ParseKey(key), reason, p.Taken), m.Close(ctx)); err != nil {
				return coded(err)
			}
			if a.json {
				return a.printJSON(askedForm{key, reason, holders})
			}
			a.say("Asked.")
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "an operator asks for it", "what the holders are asked")
	return a.changes(cmd)
}

// coded gives an error of the library its exit code.
func coded(err error) error {
	switch {
	case errors.Is(err, txlock.ErrNotHeld):
		return failure{nothing, err}
	case errors.Is(err, txlock.ErrInvalidKey), errors.Is(err, txlock.ErrInvalidOption):
		return failure{usage, err}
	}
	return err
}

func (a *app) release() *cobra.Command {
	hashed := false
	var slots []int64
	cmd := &cobra.Command{
		Use: "release KEY", Args: cobra.ExactArgs(1),
		Short: "Take a lease from its holder, or end the transaction that holds a lock",
		Long: `Take the lease of a key from its holders, or end the transactions that hold the lock of
the key with KILL of their sessions, which rolls them back. The slot of a hashed key may
be held for another key: confirm with --hashed.

Privileges: for a lease those of ask; for a lock SELECT on the same three tables, PROCESS,
and, unless the holder has the same user, CONNECTION ADMIN on MariaDB, CONNECTION_ADMIN on
MySQL.`,
		RunE: a.with(func(ctx context.Context, args []string) error {
			key, err := programKeyOf(args[0])
			if err != nil {
				return err
			}
			p, err := a.look(ctx)
			if err != nil {
				return err
			}
			leases, locks := toRelease(p, key, hashed, slots)
			if len(leases)+len(locks) == 0 {
				a.gaps(p.Gaps)
				why, visible := notEndable(p, key, hashed, slots)
				if visible {
					return failed(nothing, "%s", why)
				}
				return failed(unseen(p.Gaps), "%s", why)
			}
			for _, l := range leases {
				a.say("%s", cell(l.Describe()))
				a.say("%s", l.IfReleased())
			}
			for _, l := range locks {
				a.say("%s", strings.Join([]string{l.String(), l.How(), "held " + l.Held.String(), drawing{a.out, p}.session(l.Session)}, ", "))
				a.say("Session %d is ended: its whole transaction is rolled back, with all its locks, and its program gets an error from the next statement.", l.Session)
			}
			if err := a.sure(ctx, fmt.Sprintf("Release %q.", key)); err != nil {
				return err
			}
			released := releasedForm{key, []ops.Lease{}, []ops.Lock{}}
			if released.Locks, err = a.end(ctx, locks); err == nil {
				released.Leases, err = a.force(ctx, key, leases, p.MayKill())
			}
			return a.answer(released, err)
		}),
	}
	cmd.Flags().BoolVar(&hashed, "hashed", false, "the key is one of a hashed family: end the holder of its slot")
	cmd.Flags().Int64SliceVar(&slots, "slot", nil, "only this reader or permit of a lease: its slot in leases --json")
	return a.changes(cmd)
}

// toRelease returns what is held under a key.
func toRelease(p *ops.Picture, key string, hashed bool, slots []int64) (leases []ops.Lease, locks []ops.Lock) {
	for _, l := range p.Leases {
		if l.Key == key && l.Kind != "waiter" && (len(slots) == 0 || slices.Contains(slots, l.Slot)) {
			leases = append(leases, l)
		}
	}
	for _, l := range p.Locks {
		if (l.Kind == ops.Named || l.Kind == ops.Hashed) && of(l, key, hashed) && len(slots) == 0 && l.Endable() {
			locks = append(locks, l)
		}
	}
	return leases, locks
}

// of reports whether a lock is that of the key: of its slot, if it is hashed.
func of(l ops.Lock, key string, hashed bool) bool {
	if hashed {
		return l.Kind == ops.Hashed && l.Slot == ops.SlotOf(key)
	}
	return l.Kind != ops.Hashed && l.Key == key
}

// notEndable says why there is nothing to release under a key, and whether its holder is visible.
func notEndable(p *ops.Picture, key string, hashed bool, slots []int64) (why string, visible bool) {
	if leases, locks := toRelease(p, key, false, nil); len(slots) > 0 && len(leases)+len(locks) > 0 {
		return fmt.Sprintf("%q is held, but not in slot %s: see leases --json", key, strings.Trim(fmt.Sprint(slots), "[]")), true
	}
	var maybe []string
	for _, l := range p.Locks {
		switch {
		case !of(l, key, hashed):
		case l.Detached:
			return fmt.Sprintf("%q is held by a transaction without a session: %s", key, ops.EndDetached), true
		case l.Unsure:
			maybe = append(maybe, ops.Number(l.Session))
		default: // of a key of Once, of a transaction that acquires the lease
			return fmt.Sprintf("%s is held by session %d, which release doesn't end: KILL %d does, and rolls its transaction back", l, l.Session, l.Session), true
		}
	}
	if maybe != nil {
		return fmt.Sprintf("%q is held by one or more of the sessions %s, the server doesn't say which: end the right one by KILL", key, strings.Join(maybe, ", ")), true
	}
	if slot := ops.SlotOf(key); !hashed && slices.ContainsFunc(p.Locks, func(l ops.Lock) bool { return of(l, key, true) }) {
		return fmt.Sprintf("%q is held only if it is of a hashed family, whose slot %d is held, for this key or another: see show, and confirm with --hashed", key, slot), true
	}
	return fmt.Sprintf("no holder of %q is visible to this user", key), false
}

// answer says what was released, also where an error came afterwards.
func (a *app) answer(released releasedForm, err error) error {
	if err == nil && len(released.Leases)+len(released.Locks) == 0 {
		err = failed(nothing, "those who held it hold it no more: nothing was done")
	}
	if a.json {
		err = errors.Join(a.printJSON(released), err)
	}
	return err
}

// force takes the leases that were shown and are still held, and returns them. The grant is what this
// user may lack to end the session of a transaction that guards one.
func (a *app) force(ctx context.Context, key string, shown []ops.Lease, grant string) ([]ops.Lease, error) {
	taken := []ops.Lease{}
	if len(shown) == 0 {
		return taken, nil
	}
	m, err := a.manager()
	if err != nil {
		return taken, err
	}
	tokens := make(map[int64]uint64)
	for _, l := range shown {
		tokens[l.Slot] = l.Token
	}
	slots, err := lease.Internal(bridge.Pass{}).ForceRelease(ctx, m, txlock.ParseKey(key), tokens)
	switch {
	case errors.Is(err, txlock.ErrNotHeld):
		err = nil // answer says so
	case fault.Is(err, 1095): // ER_KILL_DENIED_ERROR
		err = failed(declined, "%w: %s", err, grant)
	}
	for _, l := range shown {
		if slices.Contains(slots, l.Slot) {
			taken = append(taken, l)
		}
	}
	switch len(taken) {
	case 0:
	case len(shown):
		a.say("Released.")
	default:
		a.say("Released %d of %d: the others were released before.", len(taken), len(shown))
	}
	return taken, errors.Join(coded(err), m.Close(ctx))
}

// end ends the sessions that still hold what was shown, and returns what they have held.
func (a *app) end(ctx context.Context, shown []ops.Lock) ([]ops.Lock, error) {
	if len(shown) == 0 {
		return []ops.Lock{}, nil
	}
	ended, err := ops.New(a.db).End(ctx, func(l ops.Lock) bool {
		return slices.ContainsFunc(shown, func(was ops.Lock) bool {
			return was.Row == l.Row && was.Session == l.Session && was.Token == l.Token
		})
	})
	for _, l := range ended {
		a.say("Session %d is ended.", l.Session)
	}
	var denied *ops.DeniedError
	switch {
	case errors.As(err, &denied):
		err = failure{declined, err}
	case errors.Is(err, ops.ErrDetached), errors.Is(err, ops.ErrUnknown):
		err = failure{nothing, err}
	}
	return append([]ops.Lock{}, ended...), err
}

func (a *app) purge() *cobra.Command {
	older := 30 * 24 * time.Hour
	cmd := &cobra.Command{
		Use: "purge", Args: cobra.NoArgs,
		Short: "Delete unused rows",
		Long: `Delete the rows of named keys that were last locked longer ago than --older-than, of
leases that were not used for that time, of expired keys of Once, and of jobs that no
process has run for that time, at least an hour. It skips what is held and paused jobs,
and tokens never decrease.

It reports its progress, and continues as long as it deletes rows: --timeout limits a part
in which it deletes none.

Privileges: SELECT and DELETE on lockstep_locks, lockstep_leases, lockstep_once and
lockstep_jobs.`,
		RunE: a.opened(func(ctx context.Context, _ []string) error {
			if older < time.Second {
				return failed(usage, "--older-than %v: it must be at least a second", older)
			}
			ofJobs := max(older, time.Hour)
			if err := a.sure(ctx, fmt.Sprintf("Delete the rows of locks and leases that were not used for %v, of expired keys of Once, and of jobs that were not run for %v. No holder notices.", older, ofJobs)); err != nil {
				return err
			}
			m, err := lease.NewManager(a.db, lease.PurgeEvery(0, older))
			if err != nil {
				return coded(err)
			}
			removed := make(map[string]int)
			for _, step := range []struct {
				name string
				do   func(ctx context.Context) (int, error)
			}{
				{"locks", func(ctx context.Context) (int, error) { return txlock.Purge(ctx, a.db, older) }},
				{"leases", func(ctx context.Context) (int, error) { return m.Purge(ctx) }},
				{"once", func(ctx context.Context) (int, error) { return txlock.PurgeOnce(ctx, a.db) }},
				{"jobs", func(ctx context.Context) (int, error) { return job.Purge(ctx, a.db, ofJobs) }},
			} {
				var n int
				n, err = a.inParts(ctx, step.name, step.do)
				if err == nil || n > 0 {
					removed[step.name] = n
				}
				if err != nil {
					break
				}
			}
			return a.removed(removed, errors.Join(err, m.Close(ctx)))
		}),
	}
	cmd.Flags().DurationVar(&older, "older-than", older, "how long a row must not have been used")
	return a.changes(cmd)
}

// removed says how many rows of each kind were removed, also where an error came afterwards.
func (a *app) removed(rows map[string]int, err error) error {
	all := 0
	for _, n := range rows {
		all += n
	}
	switch {
	case len(rows) == 0: // the first step has failed
		return err
	case all == 0 && err == nil:
		err = failed(nothing, "there was nothing to remove")
	}
	if a.json {
		return errors.Join(a.printJSON(removedForm{rows}), err)
	}
	a.say("Removed %d rows of locks, %d of leases, %d of Once, %d of jobs.", rows["locks"], rows["leases"], rows["once"], rows["jobs"])
	return err
}

// inParts removes rows in parts of some seconds, and says how many it has removed. It gives up
// when a part that lasts for the time of --timeout has removed none.
func (a *app) inParts(ctx context.Context, name string, remove func(ctx context.Context) (int, error)) (total int, err error) {
	for last := time.Now(); ; {
		part, end := context.WithTimeout(ctx, min(5*time.Second, a.timeout))
		n, err := remove(part)
		end()
		total += n
		switch {
		case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
			return total, err
		case n > 0:
			last = time.Now()
		case time.Since(last) >= a.timeout:
			return total, err
		}
		_, _ = fmt.Fprintf(a.err, "%d rows of %s were removed so far.\n", total, name)
	}
}
