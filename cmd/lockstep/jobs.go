package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
)

func (a *app) jobs() *cobra.Command {
	cmd := &cobra.Command{
		Use: "jobs", Args: cobra.NoArgs,
		Short: "List the jobs, and what is wrong with them",
		Long: `List the jobs of package txlock/job. DONE has the scheduled time that was done last, NEXT
the next one. TROUBLE says which are overdue, take too long, fail, are paused, or are run by
different schedules. A job that died was begun by a process that holds its lease no more,
and hasn't said how it ended.

Privileges: SELECT on lockstep_jobs and lockstep_leases.`,
		RunE: a.with(func(ctx context.Context, _ []string) error {
			jobs, err := ops.New(a.db).Jobs(ctx)
			if err != nil {
				return err
			}
			if done, err := a.found(jobs, len(jobs.Jobs), nil, "there are no jobs"); done {
				return err
			}
			a.say("It is %s UTC, by the server's clock.", when(jobs.Now))
			jobTable(a.out, jobs)
			return nil
		}),
	}
	cmd.AddCommand(a.showJob(), a.pauseJob(), a.resumeJob(), a.runJob())
	return cmd
}

// tableWidth is how wide the table of jobs is at most.
const tableWidth = 80

// jobTable writes jobs. It clips their names and what is wrong with them: jobs show NAME has all.
func jobTable(w io.Writer, jobs ops.Jobs) {
	const head = "JOB STATE DONE TOOK NEXT TROUBLE"
	var rows [][]string
	for _, j := range jobs.Jobs {
		rows = append(rows, []string{clipped(ops.Shown(j.Key), 20), j.State, apart(jobs.Now, j.Done), j.Took.String(), apart(jobs.Now, j.Next), strings.Join(j.Trouble(jobs.Now), ", ")})
	}
	last := strings.Count(head, " ")
	left := tableWidth
	for i, name := range strings.Fields(head)[:last] {
		wide := len(name)
		for _, row := range rows {
			wide = max(wide, utf8.RuneCountInString(cell(row[i])))
		}
		left -= wide + 2
	}
	for _, row := range rows {
		row[last] = clipped(cell(row[last]), max(left, 16))
	}
	table(w, head, rows)
}

// apart says how long ago a time was, or in what time it will be.
func apart(now, t time.Time) string {
	switch d := ops.Seconds(now.Sub(t).Seconds()); {
	case t.IsZero():
		return ""
	case d < 0:
		return "in " + (-d).String()
	default:
		return d.String() + " ago"
	}
}

func (a *app) showJob() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Args: cobra.ExactArgs(1),
		Short: "Show a job and its last runs",
		Long: `Show what is wrong with a job, and its last runs, with their errors and how long they took.

Privileges: SELECT on lockstep_jobs and lockstep_leases.`,
		RunE: a.with(func(ctx context.Context, args []string) error {
			jobs, j, err := a.job(ctx, args[0])
			if err != nil {
				return err
			}
			runs, err := ops.New(a.db).JobRuns(ctx, j.Key)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(jobForm{jobs.Now, j, runs})
			}
			a.say("It is %s UTC, by the server's clock.", when(jobs.Now))
			a.say("State: %s", j.State)
			for _, text := range j.Trouble(jobs.Now) {
				a.say("Trouble: %s", cell(text))
			}
			if j.Schedule != "" {
				a.say("Schedule: %s, next %s, %s", j.Schedule, when(j.Next), apart(jobs.Now, j.Next))
			}
			if !j.Done.IsZero() {
				a.say("Last done: %s, %s", when(j.Done), apart(jobs.Now, j.Done))
			}
			var rows [][]string
			for _, r := range runs {
				rows = append(rows, []string{when(r.At), when(r.Started), r.Took.String(), r.Outcome, r.By, r.Err})
			}
			a.say("")
			table(a.out, "TICK STARTED TOOK OUTCOME BY ERROR", rows)
			return nil
		}),
	}
}

// job returns the job of an argument, and when it was read.
func (a *app) job(ctx context.Context, arg string) (ops.Jobs, ops.JobStatus, error) {
	key, err := programKeyOf(arg)
	if err != nil {
		return ops.Jobs{}, ops.JobStatus{}, err
	}
	jobs, err := ops.New(a.db).Jobs(ctx)
	if err != nil {
		return jobs, ops.JobStatus{}, err
	}
	j, has := jobs.Job(key)
	if !has {
		return jobs, j, failed(nothing, "there is no job %q: lockstep jobs lists them", key)
	}
	return jobs, j, nil
}

// control is a command that changes a job. Ask says what it does.
func (a *app) control(cmd *cobra.Command, did string, ask func(j ops.JobStatus, now time.Time) string, do func(ctx context.Context, jobs *job.Jobs, key txlock.Key) (bool, error)) *cobra.Command {
	verb, _, _ := strings.Cut(cmd.Use, " ")
	cmd.Args = cobra.ExactArgs(1)
	cmd.Long += "\n\nPrivileges: SELECT and UPDATE on lockstep_jobs, and SELECT on lockstep_leases."
	cmd.RunE = a.with(func(ctx context.Context, args []string) error {
		jobs, j, err := a.job(ctx, args[0])
		if err != nil {
			return err
		}
		if err := j.Refusal(ops.Change(verb), jobs.Now); err != nil {
			return failure{nothing, err}
		}
		if err := a.sure(ctx, ask(j, jobs.Now)); err != nil {
			return err
		}
		m, err := a.manager()
		if err != nil {
			return err
		}
		runner, err := job.New(a.db, m)
		if err != nil {
			return errors.Join(err, m.Close(ctx))
		}
		changed, err := do(ctx, runner, txlock.ParseKey(j.Key))
		if err := errors.Join(err, runner.Close(ctx), m.Close(ctx)); err != nil {
			return coded(err)
		}
		if !changed {
			return failed(nothing, "another operator was faster: nothing was done")
		}
		if a.json {
			return a.printJSON(changedForm{j.Key, verb})
		}
		a.say("%s", did)
		return nil
	})
	return a.changes(cmd)
}

func (a *app) pauseJob() *cobra.Command {
	by := caller()
	cmd := &cobra.Command{Use: "pause NAME", Short: "Pause a job in all processes", Long: `Pause a job: no process starts a tick until it is resumed, except those that jobs run
requests. A running tick is not interrupted.`}
	cmd.Flags().StringVar(&by, "by", by, "who pauses it, or why")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if len(by) == 0 || len(by) > 255 {
			return failed(usage, "--by %q: it must have 1 to 255 bytes", by)
		}
		return nil
	}
	return a.control(cmd, "Paused.", func(j ops.JobStatus, _ time.Time) string {
		return fmt.Sprintf("Pause the job %q in all processes: after at most 10 seconds no process starts another tick. A running tick is not interrupted.", j.Key)
	}, func(ctx context.Context, jobs *job.Jobs, key txlock.Key) (bool, error) {
		return jobs.Pause(ctx, key, by)
	})
}

// caller names who calls the command, as far as the system knows.
func caller() string {
	name := "an operator"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

func (a *app) resumeJob() *cobra.Command {
	cmd := &cobra.Command{Use: "resume NAME", Short: "End the pause of a job", Long: `End the pause of a job. The program's option Missed determines whether missed
ticks are run now: by default the latest one is.`}
	return a.control(cmd, "Resumed.", func(j ops.JobStatus, now time.Time) string {
		return fmt.Sprintf("Resume the job %q, which was paused by %s %s. Missed ticks may run now.", j.Key, cell(j.PausedBy), apart(now, j.Paused))
	}, func(ctx context.Context, jobs *job.Jobs, key txlock.Key) (bool, error) { return jobs.Resume(ctx, key) })
}

func (a *app) runJob() *cobra.Command {
	cmd := &cobra.Command{Use: "run NAME", Short: "Run a job once, now", Long: `Request a run of a job for now, even while it is paused: one of the processes that run it
starts within 10 seconds, or after a running tick has ended.`}
	return a.control(cmd, "Requested.", func(j ops.JobStatus, _ time.Time) string {
		return fmt.Sprintf("Run the job %q once, now, by one of the processes that run it.", j.Key)
	}, func(ctx context.Context, jobs *job.Jobs, key txlock.Key) (bool, error) { return jobs.RunNow(ctx, key) })
}
