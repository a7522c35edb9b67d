package ops

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// Jobs are the jobs of the table at one moment.
type Jobs struct {
	Now  time.Time   `json:"now"` // when they were read, by the server's clock
	Jobs []JobStatus `json:"jobs"`
}

// JobStatus is what the table says of a job.
type JobStatus struct {
	Key       string    `json:"key"`
	State     string    `json:"state"` // running, died, paused, failed, done, new: the first that is true
	Tick      time.Time `json:"tick,omitzero"`
	Done      time.Time `json:"done,omitzero"` // the instant that was done last
	By        string    `json:"by,omitempty"`
	Token     uint64    `json:"token,omitempty"`
	Started   time.Time `json:"started,omitzero"`
	Ended     time.Time `json:"ended,omitzero"`
	Took      Seconds   `json:"took_s"`   // of a tick that runs so far
	Failures  int       `json:"failures"` // of the tick that was begun last
	Err       string    `json:"error,omitempty"`
	Schedule  string    `json:"schedule,omitempty"`
	Next      time.Time `json:"next,omitzero"`
	Requested time.Time `json:"requested,omitzero"` // a run that was requested, and not begun yet
	Paused    time.Time `json:"paused,omitzero"`
	PausedBy  string    `json:"paused_by,omitempty"`
	// Overdue is for how long no process has begun a tick that is due, and TooLong by how much the
	// one that runs takes longer than it should. Both are 0 within the first minute.
	Overdue Seconds `json:"overdue_s,omitempty"`
	TooLong Seconds `json:"too_long_s,omitempty"`
	// Failing is how many runs in a row were not done, as far as the table keeps them, and Since
	// when the first of them was begun.
	Failing int       `json:"failing,omitempty"`
	Since   time.Time `json:"failing_since,omitzero"`
	// Differs is the schedule by which another process runs the job, if that is another one.
	Differs string `json:"other_schedule,omitempty"`
}

// JobRun is one of the last runs of a job.
type JobRun struct {
	At      time.Time `json:"at"` // the scheduled time
	Started time.Time `json:"started"`
	Took    Seconds   `json:"took_s"`
	Outcome string    `json:"outcome"` // done, failed, interrupted
	By      string    `json:"by"`
	Err     string    `json:"error,omitempty"`
}

// Jobs returns all jobs, by their keys, in one read.
func (r *Room) Jobs(ctx context.Context) (Jobs, error) {
	rows, err := queries.ListJobs(ctx, rawsql.Looking(r.db))
	if err != nil {
		return Jobs{}, explained("look at the jobs", "lockstep_jobs or lockstep_leases", err)
	}
	all := Jobs{Jobs: make([]JobStatus, len(rows))}
	if len(rows) == 0 { // which would say when they were read
		facts, err := session.Ask(ctx, r.db)
		if err != nil {
			return Jobs{}, fault.Explain("look at the jobs", err)
		}
		all.Now = moment(facts.ClockUs)
	}
	for i, row := range rows {
		all.Now, all.Jobs[i] = moment(row.NowUs), jobOf(row)
	}
	return all, nil
}

// Job returns one of the jobs, or false.
func (j Jobs) Job(key string) (JobStatus, bool) {
	for _, s := range j.Jobs {
		if s.Key == key {
			return s, true
		}
	}
	return JobStatus{}, false
}

func jobOf(row gen.ListJobsRow) JobStatus {
	h := jobrow.Of(row, row.NowUs)
	s := JobStatus{
		Key: string(row.Name), State: "done", Done: moment(row.DoneUs), Next: moment(row.NextUs), Failures: int(row.Failures), Took: micros(row.TookUs),
		Schedule: string(row.Schedule), Paused: moment(row.PausedUs), PausedBy: string(row.PausedBy),
		Overdue: seconds(h.Overdue), TooLong: seconds(h.TooLong), Failing: h.Failing, Differs: h.Differs,
	}
	if h.Failing > 0 {
		s.Since = h.Since.UTC()
	}
	if string(row.Error) != "-" {
		s.Err = string(row.Error)
	}
	if row.RunUs > row.TickUs {
		s.Requested = moment(row.RunUs)
	}
	begun := row.Token > 0 // by a process
	if begun {
		s.Tick, s.By, s.Token, s.Started, s.Ended = moment(row.TickUs), string(row.Owner), row.Token, moment(row.StartedUs), moment(row.EndedUs)
	} else {
		s.Done, s.Took = time.Time{}, unknown
	}
	switch {
	case h.Running && row.Held:
		s.State, s.Took = "running", seconds(h.For)
	case h.Running: // no process holds its lease, so it doesn't run
		s.State, s.Took, s.TooLong, s.Overdue = "died", unknown, 0, seconds(h.Late)
	case !s.Paused.IsZero():
		s.State = "paused"
	case !begun:
		s.State = "new"
	case row.DoneUs < row.TickUs:
		s.State = "failed"
	}
	return s
}

// Change is what an operator does to a job.
type Change string

// The changes.
const (
	Pause  Change = "pause"
	Resume Change = "resume"
	RunNow Change = "run"
)

// Refusal says why a change would make no difference to the job, at a moment of the server's clock,
// or returns nil.
func (s JobStatus) Refusal(c Change, now time.Time) error {
	switch {
	case c == Pause && !s.Paused.IsZero():
		return fmt.Errorf("the job %q is paused already, by %q %s ago", s.Key, s.PausedBy, seconds(now.Sub(s.Paused)))
	case c == Resume && s.Paused.IsZero():
		return fmt.Errorf("the job %q is not paused", s.Key)
	case c == RunNow && !s.Requested.IsZero():
		return fmt.Errorf("a run of the job %q was requested already, %s ago", s.Key, seconds(now.Sub(s.Requested)))
	case c == RunNow && s.Schedule == "":
		return fmt.Errorf("no process runs the job %q by a schedule, so none would see the request", s.Key)
	}
	return nil
}

// Trouble says in a few words what a person should know of the job, what is most urgent first, at
// a moment of the server's clock. It is empty if there is nothing.
func (s JobStatus) Trouble(now time.Time) (all []string) {
	add := func(is bool, format string, args ...any) {
		if is {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	add(s.Overdue > 0, "overdue by %s", s.Overdue)
	add(s.TooLong > 0, "too long by %s", s.TooLong)
	why := cmp.Or(s.Err, "interrupted")
	add(s.Failing == 1, "failed %s ago: %s", seconds(now.Sub(s.Since)), why)
	add(s.Failing > 1, "failed %d times in %s: %s", s.Failing, seconds(now.Sub(s.Since)), why)
	add(s.State == "died", "it lost its lease without a result")
	add(!s.Paused.IsZero(), "paused by %s %s ago", s.PausedBy, seconds(now.Sub(s.Paused)))
	add(s.Differs != "", "another process runs it by %s", s.Differs)
	add(!s.Requested.IsZero(), "a run was requested %s ago", seconds(now.Sub(s.Requested)))
	return all
}

// JobRuns returns the last runs of a job that the table keeps, the latest first. There are none of
// a job that has no row.
func (r *Room) JobRuns(ctx context.Context, key string) ([]JobRun, error) {
	kept, err := queries.JobRuns(ctx, rawsql.Looking(r.db), []byte(key))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, explained(fmt.Sprintf("look at the runs of job %q", key), "lockstep_jobs", err)
	}
	runs := []JobRun{}
	for _, run := range jobrow.Runs(kept.Runs) {
		runs = append(runs, JobRun{run.At.UTC(), run.Started.UTC(), seconds(run.Took), run.Outcome, run.Instance, run.Err})
	}
	return runs, nil
}

// moment is a time of a table, which has 0 and less for none.
func moment(us int64) time.Time {
	if us <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
