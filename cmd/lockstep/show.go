package main

import (
	"context"
	"errors"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/spf13/cobra"

	"github.com/dca00107/lockstep/internal/ops"
)

// shown is what is known of a key.
type shown struct {
	Key      string                 `json:"key"`
	Slot     int64                  `json:"slot"` // that it would have in a hashed family
	Locks    []ops.Lock             `json:"locks"`
	Leases   []ops.Lease            `json:"leases"`
	Waits    []*ops.Node            `json:"waits"`
	Once     []ops.OnceRecord       `json:"once"`
	Jobs     []ops.JobStatus        `json:"jobs"`
	Sessions map[uint64]ops.Session `json:"sessions"`
	Gaps     []ops.Gap              `json:"gaps"`
}

func (a *app) show() *cobra.Command {
	return &cobra.Command{
		Use: "show KEY", Args: cobra.ExactArgs(1),
		Short: "Show everything about a key: locks, leases, waiters, Once, job",
		Long: `Show the holders and waiters of a key: as a lock, by its slot if its family is hashed, as
a lease, as a key of Once or as a job.

Privileges: as for locks, and SELECT on lockstep_once and lockstep_jobs.`,
		RunE: a.with(func(ctx context.Context, args []string) error {
			key, err := keyOf(args[0])
			if err != nil {
				return err
			}
			s, p, err := a.about(ctx, key)
			if err != nil {
				return err
			}
			if done, err := a.found(s, len(s.Locks)+len(s.Leases)+len(s.Waits)+len(s.Once)+len(s.Jobs), s.Gaps, "no holder of %q and no waiter for it", key); done {
				return err
			}
			a.print(s, p)
			return nil
		}),
	}
}

// about gathers what is known of a key.
func (a *app) about(ctx context.Context, key string) (shown, *ops.Picture, error) {
	s := shown{Key: key, Slot: ops.SlotOf(key), Locks: []ops.Lock{}, Leases: []ops.Lease{}, Waits: []*ops.Node{}, Once: []ops.OnceRecord{}, Jobs: []ops.JobStatus{}}
	p, err := a.look(ctx, key)
	if err != nil {
		return s, nil, err
	}
	s.Gaps, s.Sessions = p.Gaps, make(map[uint64]ops.Session)
	keep := func(session uint64) {
		if known, ok := p.Sessions[session]; ok {
			s.Sessions[session] = known
		}
	}
	mine := func(r ops.Row) bool {
		return r.Key == key && r.Kind != ops.Between || r.Kind == ops.Hashed && r.Slot == s.Slot
	}
	for _, l := range p.Locks {
		if mine(l.Row) {
			s.Locks = append(s.Locks, l)
			keep(l.Session)
		}
	}
	for _, l := range p.Leases {
		if l.Key == key {
			s.Leases = append(s.Leases, l)
			keep(l.Session)
		}
	}
	only := p.Around(mine)
	for _, w := range only.Waits {
		keep(w.Session)
		for _, blocker := range w.Blockers {
			keep(blocker)
		}
	}
	s.Waits = only.Tree()
	room := ops.New(a.db)
	once, err := room.OnceOf(ctx, key)
	if err := a.unread(&s, "keys of Once are not known", err); err != nil {
		return s, nil, err
	}
	s.Once = append(s.Once, once...)
	jobs, err := room.Jobs(ctx)
	if err := a.unread(&s, "jobs are not known", err); err != nil {
		return s, nil, err
	}
	if job, has := jobs.Job(key); has {
		s.Jobs = append(s.Jobs, job)
	}
	return s, only, nil
}

// unread makes an error a gap, if it is of a table alone: the rest is shown.
func (a *app) unread(s *shown, what string, err error) error {
	var server *mysql.MySQLError
	if !ops.Unread(err) || !errors.As(err, &server) {
		return err
	}
	gap := ops.Gap{What: what, Fix: err.Error(), Hides: true}
	if missing := missingGrant(server, a.given.DBName); missing != "" {
		gap.Fix, gap.Denied = "GRANT "+missing+" TO "+a.grantee(), true
	}
	s.Gaps = append(s.Gaps, gap)
	return nil
}

func (a *app) print(s shown, p *ops.Picture) {
	sections := 0
	section := func(name string, some int, write func()) {
		if some == 0 {
			return
		}
		if sections++; sections > 1 {
			a.say("")
		}
		a.say("%s", name)
		write()
	}
	section("Locks:", len(s.Locks), func() { table(a.out, lockHead, lockRows(p, s.Locks)) })
	section("Leases:", len(s.Leases), func() { table(a.out, leaseHead, leaseRows(s.Leases)) })
	section("Waits:", len(s.Waits), func() { drawing{a.out, p}.forest(s.Waits) })
	section("Once:", len(s.Once), func() { table(a.out, onceHead, onceRows(s.Once)) })
	section("Job:", len(s.Jobs), func() { jobTable(a.out, ops.Jobs{Now: p.Taken, Jobs: s.Jobs}) })
}

func (a *app) once() *cobra.Command {
	most := 100
	cmd := &cobra.Command{
		Use: "once [PREFIX]", Args: cobra.MaximumNArgs(1),
		Short: "List the keys of Once",
		Long: `List the keys of Once that begin with the prefix. The answers that are stored with
them are not shown.

Privileges: SELECT on lockstep_once.`,
		RunE: a.with(func(ctx context.Context, args []string) error {
			if most < 1 || most > 100_000 {
				return failed(usage, "--most %d: it must be from 1 to 100000", most)
			}
			prefix, err := unquoted(strings.Join(args, ""))
			if err != nil {
				return err
			}
			all, err := ops.New(a.db).OnceRecords(ctx, prefix, most+1)
			if err != nil {
				return err
			}
			more := len(all) > most
			all = all[:min(len(all), most)]
			if done, err := a.found(onceForm{all, more}, len(all), nil, "there are no such keys of Once"); done {
				return err
			}
			table(a.out, onceHead, onceRows(all))
			if more {
				a.say("There are more: see --most and the prefix.")
			}
			return nil
		}),
	}
	cmd.Flags().IntVar(&most, "most", most, "how many at most")
	return cmd
}

const onceHead = "KEY STATE DONE LEFT ANSWER FINGERPRINT"

func onceRows(all []ops.OnceRecord) (rows [][]string) {
	for _, o := range all {
		state := "done"
		switch {
		case o.Open:
			state = "open"
		case o.Left < 0:
			state = "over"
		}
		rows = append(rows, []string{ops.Shown(o.Key), state, when(o.Done), o.Left.String(), number(o.Result) + " bytes", clipped(o.Fingerprint, 12)})
	}
	return rows
}

func (a *app) leaders() *cobra.Command {
	return &cobra.Command{
		Use: "leaders", Args: cobra.NoArgs,
		Short: "List leaders and standby processes",
		Long: `List the leaders of package txlock/elect. An election that never had a standby
process is listed only by leases, and at most four standby processes are known.

Privileges: as for leases.`,
		RunE: a.with(func(ctx context.Context, _ []string) error {
			p, err := a.look(ctx)
			if err != nil {
				return err
			}
			leaders := p.Leaders()
			if done, err := a.found(leadersForm{leaders}, len(leaders), p.GapsOf("lockstep_leases"), "no process leads"); done {
				return err
			}
			var rows [][]string
			for _, l := range leaders {
				rows = append(rows, []string{ops.Shown(l.Key), l.By, when(l.Since), l.Left.String(), strings.Join(l.Standby, ", ")})
			}
			table(a.out, "ELECTION LEADER SINCE LEFT STANDBY", rows)
			return nil
		}),
	}
}
