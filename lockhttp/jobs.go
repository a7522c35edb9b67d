package lockhttp

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
)

func (c *call) showJobs() ([]section, any) {
	found := keep(c.jobs.Jobs, func(j ops.JobStatus) bool { return c.matches(j.Key, j.By) })
	return []section{{ID: "jobs", Text: c.jobsOlder(), Table: c.jobTable(found)}}, struct {
		seenForm
		Now  time.Time       `json:"now,omitzero"` // zero if they have never been read
		Jobs []ops.JobStatus `json:"jobs"`
	}{c.seen(), c.jobs.Now, found}
}

// jobsOlder says how old the list of jobs is, if it is older than the rest of the page.
func (c *call) jobsOlder() string {
	if old := c.Taken.Sub(c.jobs.Now); !c.jobs.Now.IsZero() && old >= time.Second {
		return "The jobs were read " + ago(old) + "; they can't be read now."
	}
	return ""
}

func (c *call) jobTable(jobs []ops.JobStatus) *table {
	names := "Job, State, Trouble, Done, Started, Took, Next, Schedule, By"
	if c.authorize != nil {
		names += ", Change"
	}
	return c.newTable("jobs", "Jobs, and what is wrong with them", asSeen("There are no jobs.", c.GapsOf("jobs")), names, len(jobs), func(i int) row {
		j := jobs[i]
		at := row{ID: idOf("job", j.Key), Cells: []cell{keyCell(j.Key), text(j.State), text(clipped(strings.Join(j.Trouble(c.jobs.Now), "; "), 200)), c.at(j.Done), c.at(j.Started),
			text(j.Took.String()), c.at(j.Next), text(j.Schedule), text(j.By)}}
		if j.Overdue > 0 || j.TooLong > 0 || j.Failing > 0 || j.State == "died" {
			at.Class = "late"
		}
		if c.authorize != nil {
			at.Cells = append(at.Cells, cell{Text: "–", Forms: c.formsOfJob(j)})
		}
		return at
	})
}

func (c *call) runTable(runs []ops.JobRun) *table {
	return c.newTable("runs", "The last runs, the latest first", "", "Tick, Started, Took, Outcome, By, Error", len(runs), func(i int) row {
		r := runs[i]
		tick := c.at(r.At)
		tick.Head = true
		at := row{ID: idOf("run", r.At.UnixMicro(), r.Started.UnixMicro()), Cells: []cell{tick, c.at(r.Started), text(r.Took.String()), text(r.Outcome), text(r.By), text(r.Err)}}
		if r.Outcome == "failed" {
			at.Class = "late"
		}
		return at
	})
}

// troubledJobs returns the jobs that are overdue, fail or take too long.
func (c *call) troubledJobs() (all []trouble) {
	for _, j := range c.jobs.Jobs {
		t := trouble{Row: ops.Row{Kind: ops.Job, Key: j.Key}, Text: strings.Join(j.Trouble(c.jobs.Now), "; ")}
		switch {
		case j.Overdue > 0:
			t.What, t.For = "overdue job", j.Overdue
		case j.TooLong > 0:
			t.What, t.For = "long job", j.Took
		case j.Failing > 0:
			t.What, t.For = "failing job", ops.Seconds(c.jobs.Now.Sub(j.Since).Seconds())
		default:
			continue
		}
		all = append(all, t)
	}
	return all
}

// pausedAt identifies the pause of a job, 0 for none.
func pausedAt(j ops.JobStatus) uint64 {
	if j.Paused.IsZero() {
		return 0
	}
	return uint64(j.Paused.UnixMicro())
}

// formsOfJob returns what the viewer may do about a job, whose key is masked.
func (c *call) formsOfJob(j ops.JobStatus) (forms []form) {
	t, _ := c.targetOf(c.content, j.Key, "")
	offer := func(verb Verb, summary, text string) {
		if j.Refusal(ops.Change(verb), c.jobs.Now) != nil {
			return
		}
		if f, may := c.form(t, Action{Verb: verb, Key: t.key}, pausedAt(j), summary, text); may {
			f.ID = idOf(verb, t.shown)
			forms = append(forms, f)
		}
	}
	offer(Pause, "Pause", "After at most 10 seconds no process starts a tick of this job. A running tick is not interrupted.")
	offer(Resume, "Resume", "The job runs again by its schedule. Missed ticks may run now.")
	offer(RunNow, "Run now", "Within 10 seconds, or after a running tick has ended, one of the processes that run this job starts a tick.")
	return forms
}

// control changes a job, if it is as the viewer has seen it.
func (h *Handler) control(ctx context.Context, a Action, paused uint64, who string) (err error) {
	all, err := h.room.Jobs(ctx)
	if err != nil {
		return err
	}
	j, has := all.Job(a.Key)
	switch {
	case !has:
		return refusal{http.StatusConflict, "This job does not exist: nothing was done."}
	case pausedAt(j) != paused:
		return errOvertaken
	case j.Refusal(ops.Change(a.Verb), all.Now) != nil:
		return refusal{http.StatusConflict, "A run was requested already, or no process would see the request: nothing was done."}
	}
	m, err := h.manager()
	if err != nil {
		return err
	}
	jobs, err := job.New(h.db, m)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, jobs.Close(context.WithoutCancel(ctx)), m.Close(context.WithoutCancel(ctx)))
	}()
	changed := false
	switch key := txlock.ParseKey(a.Key); a.Verb {
	case Pause:
		by := cmp.Or(who, "a viewer of lockhttp")
		changed, err = jobs.Pause(ctx, key, by[:min(len(by), 255)])
	case Resume:
		changed, err = jobs.Resume(ctx, key)
	default:
		changed, err = jobs.RunNow(ctx, key)
	}
	if err == nil && !changed {
		err = errOvertaken
	}
	return err
}

var errOvertaken = refusal{http.StatusConflict, "The job was paused, resumed or requested meanwhile: nothing was done."}
