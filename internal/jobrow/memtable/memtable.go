// Package memtable changes rows of lockstep_jobs in memory, as the statements of jobs do.
package memtable

import (
	"database/sql/driver"
	"slices"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/memdb"
)

// Row is a row of lockstep_jobs. One that isn't there has no Name.
type Row = gen.ListJobsRow

// A Statement changes the row of one job.
type Statement struct {
	// Name is the index of the argument that is the name of the job.
	Name   int
	makes  bool // the row, which isn't there
	change func(r *Row, args memdb.Args, nowUs int64) bool
}

// Statements has the statements by their texts.
var Statements = map[string]Statement{
	gen.MakeJob:      {0, true, makeJob},
	gen.PlanJob:      {2, false, planJob},
	gen.NoteSchedule: {1, false, noteSchedule},
	gen.BeginJob:     {10, false, beginJob},
	gen.JobDone:      {2, false, jobDone},
	gen.JobFailed:    {3, false, jobFailed},
	gen.PauseJob:     {1, false, pauseJob},
	gen.ResumeJob:    {0, false, resumeJob},
	gen.RequestJob:   {0, false, requestJob},
	gen.PurgeJob:     {0, false, purgeJob},
}

// Change changes a row at a time in microseconds, and reports whether the statement does.
func (s Statement) Change(r Row, args memdb.Args, nowUs int64) (Row, bool) {
	changed := s.makes == (r.Name == nil) && s.change(&r, args, nowUs)
	return r, changed
}

// Columns returns the columns of LookJob, without the time and the words of the session.
func Columns(r Row) []driver.Value {
	return []driver.Value{
		r.TickUs, r.DoneUs, int64(r.Token), r.Owner, r.StartedUs, r.EndedUs, r.TookUs, r.Failures, r.Error, r.NextUs,
		r.LimitUs, r.Schedule, r.PausedUs, r.PausedBy, r.RunUs,
	}
}

// Listed returns the columns of ListJobs, without whether the lease is held, and the time.
func Listed(r Row) []driver.Value {
	if r.TickUs <= r.DoneUs {
		r.Runs = ""
	}
	return slices.Concat([]driver.Value{r.Name}, Columns(r), []driver.Value{r.Differs, r.DiffersUs, r.Runs})
}

func makeJob(r *Row, args memdb.Args, _ int64) bool {
	*r = Row{
		Name: args.Bytes(0), TickUs: args.Number(1), DoneUs: args.Number(2), Owner: []byte("-"), Error: []byte("-"), NextUs: args.Number(3), Schedule: args.Bytes(4),
	}
	return true
}

func planJob(r *Row, args memdb.Args, _ int64) bool {
	r.NextUs, r.Schedule = args.Number(0), args.Bytes(1)
	return r.TickUs == args.Number(3)
}

func noteSchedule(r *Row, args memdb.Args, nowUs int64) bool {
	r.Differs, r.DiffersUs = args.Bytes(0), nowUs
	return string(r.Schedule) != args.Text(2)
}

func beginJob(r *Row, args memdb.Args, nowUs int64) bool {
	at, token := args.Number(3), uint64(args.Number(9))
	if r.DoneUs >= at || r.TickUs > at || r.Token >= token || r.PausedUs != 0 && r.RunUs != at {
		return false
	}
	if r.Token > 0 && r.Token == uint64(args.Number(0)) {
		keep(r, args, 1)
	}
	if r.TickUs != at {
		r.Failures = 0
	}
	if r.Token == 0 {
		r.DoneUs = -1
	}
	r.TickUs, r.Owner, r.NextUs, r.EndedUs, r.StartedUs = at, args.Bytes(5), args.Number(6), 0, nowUs
	r.LimitUs, r.Schedule, r.Token = args.Number(7), args.Bytes(8), token
	return true
}

func jobDone(r *Row, args memdb.Args, nowUs int64) bool {
	r.DoneUs, r.Failures, r.Error = r.TickUs, 0, []byte("-")
	return end(r, args, 3, nowUs)
}

func jobFailed(r *Row, args memdb.Args, nowUs int64) bool {
	r.Failures, r.Error = r.Failures+1, args.Bytes(2)
	return end(r, args, 4, nowUs)
}

// end ends the tick that was begun under a token, as the arguments from i on say, and keeps the run.
func end(r *Row, args memdb.Args, i int, nowUs int64) bool {
	if r.TickUs != args.Number(i) || r.Token != uint64(args.Number(i+1)) || r.EndedUs != 0 {
		return false
	}
	r.TookUs, r.EndedUs = max(0, nowUs-r.StartedUs), nowUs
	keep(r, args, 0)
	return true
}

// keep keeps a run, as the arguments from i on say.
func keep(r *Row, args memdb.Args, i int) {
	r.Runs = string(jobrow.Push([]byte(r.Runs), args.Bytes(i), int(args.Number(i+1))))
}

func pauseJob(r *Row, args memdb.Args, nowUs int64) bool {
	paused := r.PausedUs != 0
	r.PausedUs, r.PausedBy = nowUs, args.Bytes(0)
	return !paused
}

func resumeJob(r *Row, _ memdb.Args, _ int64) bool {
	paused := r.PausedUs != 0
	r.PausedUs, r.PausedBy = 0, nil
	return paused
}

func requestJob(r *Row, _ memdb.Args, nowUs int64) bool {
	requested := r.RunUs > max(r.TickUs, 0)
	r.RunUs = max(nowUs, r.TickUs+1)
	return !requested
}

func purgeJob(r *Row, args memdb.Args, _ int64) bool {
	unused := r.Token == uint64(args.Number(1)) && r.TickUs == args.Number(2) && r.NextUs == args.Number(3) && r.RunUs == args.Number(4) && r.PausedUs == 0
	*r = Row{}
	return unused
}
