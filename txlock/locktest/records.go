package locktest

import (
	"context"
	"database/sql/driver"
	"slices"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/lease/store"
)

// This file executes the statements of Once and of jobs.

// once makes the row of a key, or keeps it shared and is refused.
func once(ctx context.Context, q *statement) (reply, error) {
	if q.tx.level.readOnly {
		return reply{}, errReadOnly
	}
	s, id := q.kit.server, q.id(onces, 0)
	if fault := q.kit.faults.atLock(q, id); fault != nil {
		return reply{}, fault
	}
	if err := s.lock(ctx, q.tx, id, false, q.limit); err != nil {
		return reply{}, err
	}
	_, there := s.current(q.tx, id)
	q.kit.log.add(q.tx, Event{What: "once " + id.name}, q.open)
	if _, own := q.tx.written[id]; there && !own {
		s.share(q.tx, id)
	}
	if there {
		return reply{}, answer(1062, "23000", "Duplicate entry for key 'PRIMARY'")
	}
	q.tx.put(id, row{fingerprint: []byte(q.text(1)), result: []byte("-"), doneUs: clock(), keepUs: q.number(2)})
	return reply{changed: 1}, nil
}

func onceAgain(ctx context.Context, q *statement) (reply, error) {
	r, there, err := q.locked(ctx, 1, true)
	if err != nil || !there {
		return reply{columns: 3}, err
	}
	expired := int64(0)
	if r.doneUs+r.keepUs <= clock()-q.number(0) {
		expired = 1
	}
	return one(expired, slices.Clone(r.fingerprint), r.doneUs), nil
}

// locked locks the row of a key of Once.
func (q *statement) locked(ctx context.Context, name int, shared bool) (r row, there bool, err error) {
	id := q.id(onces, name)
	if err := q.kit.server.lock(ctx, q.tx, id, shared, q.limit); err != nil {
		return row{}, false, err
	}
	r, there = q.kit.server.current(q.tx, id)
	return r, there, nil
}

// rewrite writes the row of a key of Once, if it is there and as it should be.
func (q *statement) rewrite(ctx context.Context, name int, change func(r *row) bool) (reply, error) {
	r, there, err := q.locked(ctx, name, false)
	if err != nil || !there || !change(&r) {
		return reply{}, err
	}
	q.tx.put(q.id(onces, name), r)
	return reply{changed: 1}, nil
}

func onceAnew(ctx context.Context, q *statement) (reply, error) {
	return q.rewrite(ctx, 2, func(r *row) bool {
		if r.doneUs != q.number(3) {
			return false
		}
		r.fingerprint, r.result, r.keepUs, r.doneUs = []byte(q.text(0)), []byte("-"), q.number(1), max(r.doneUs+1, clock())
		return true
	})
}

func answerOnce(ctx context.Context, q *statement) (reply, error) {
	return q.rewrite(ctx, 1, func(r *row) bool {
		r.result, r.doneUs = []byte(q.text(0)), max(r.doneUs+1, clock())
		return true
	})
}

func prolongOnce(ctx context.Context, q *statement) (reply, error) {
	return q.rewrite(ctx, 0, func(r *row) bool {
		r.doneUs = clock()
		return true
	})
}

func onceResult(ctx context.Context, q *statement) (reply, error) {
	r, there, err := q.locked(ctx, 0, true)
	if err != nil || !there {
		return reply{columns: 1}, err
	}
	return one(slices.Clone(r.result)), nil
}

func jobColumns(j gen.ListJobsRow) []driver.Value {
	return []driver.Value{
		j.TickUs, j.DoneUs, int64(j.Token), slices.Clone(j.Owner), j.StartedUs, j.EndedUs, j.TookUs, j.Failures, slices.Clone(j.Error), j.NextUs,
		j.LimitUs, slices.Clone(j.Schedule), j.PausedUs, slices.Clone(j.PausedBy), j.RunUs, clock(),
	}
}

func lookJob(_ context.Context, q *statement) (reply, error) {
	r, there := q.kit.server.shown(q.tx, q.id(jobs, 0))
	if !there {
		return reply{columns: 17}, nil
	}
	return one(append(jobColumns(r.job.ListJobsRow), "")...), nil
}

func listJobs(ctx context.Context, q *statement) (reply, error) {
	found := reply{columns: 21}
	for _, id := range q.kit.server.all(q.tx, jobs) {
		r, there := q.kit.server.shown(q.tx, id)
		if !there {
			continue
		}
		var runs []byte
		if r.job.TickUs > r.job.DoneUs {
			runs = slices.Clone(r.job.runs)
		}
		lease, err := q.kit.leases.Look(ctx, store.Row{Key: id.name})
		if err != nil {
			return reply{}, err
		}
		columns := append([]driver.Value{[]byte(id.name)}, jobColumns(r.job.ListJobsRow)...)
		last := len(columns) - 1 // the clock
		found.rows = append(found.rows, append(columns[:last:last], slices.Clone(r.job.Differs), r.job.DiffersUs, runs, lease.Held(), columns[last]))
	}
	return found, nil
}

func jobRuns(_ context.Context, q *statement) (reply, error) {
	r, there := q.kit.server.shown(q.tx, q.id(jobs, 0))
	if !there {
		return reply{columns: 2}, nil
	}
	return one(slices.Clone(r.job.runs), clock()), nil
}

// jobRow is the row of a job.
type jobRow struct {
	gen.ListJobsRow
	runs []byte
}

// keep keeps a run, as the arguments of the statement from i on say.
func (j *jobRow) keep(q *statement, i int) {
	j.runs = jobrow.Push(j.runs, []byte(q.text(i)), int(q.number(i+1)))
}

// job writes the row of a job, if it is there and as it should be.
func (q *statement) job(ctx context.Context, name int, change func(j *jobRow) bool) (reply, error) {
	id := q.id(jobs, name)
	if err := q.kit.server.lock(ctx, q.tx, id, false, q.limit); err != nil {
		return reply{}, err
	}
	r, there := q.kit.server.current(q.tx, id)
	if !there || !change(&r.job) {
		return reply{}, nil
	}
	q.tx.put(id, r)
	return reply{changed: 1}, nil
}

func makeJob(ctx context.Context, q *statement) (reply, error) {
	id := q.id(jobs, 0)
	if err := q.kit.server.lock(ctx, q.tx, id, false, q.limit); err != nil {
		return reply{}, err
	}
	if _, there := q.kit.server.current(q.tx, id); !there {
		q.tx.put(id, row{job: jobRow{ListJobsRow: gen.ListJobsRow{
			Name: []byte(id.name), TickUs: q.number(1), DoneUs: q.number(2), Owner: []byte("-"), Error: []byte("-"), NextUs: q.number(3), Schedule: []byte(q.text(4)),
		}}})
	}
	return reply{changed: 1}, nil
}

func planJob(ctx context.Context, q *statement) (reply, error) {
	return q.job(ctx, 2, func(j *jobRow) bool {
		if j.TickUs != q.number(3) {
			return false
		}
		j.NextUs, j.Schedule = q.number(0), []byte(q.text(1))
		return true
	})
}

func noteSchedule(ctx context.Context, q *statement) (reply, error) {
	return q.job(ctx, 1, func(j *jobRow) bool {
		if string(j.Schedule) == q.text(0) {
			return false
		}
		j.Differs, j.DiffersUs = []byte(q.text(0)), clock()
		return true
	})
}

func beginJob(ctx context.Context, q *statement) (reply, error) {
	return q.job(ctx, 10, func(j *jobRow) bool {
		at, token := q.number(3), uint64(q.number(9))
		if j.DoneUs >= at || j.TickUs > at || j.Token >= token || j.PausedUs != 0 && j.RunUs != at {
			return false
		}
		if j.Token > 0 && j.Token == uint64(q.number(0)) {
			j.keep(q, 1)
		}
		if j.TickUs != at {
			j.Failures = 0
		}
		j.TickUs, j.Owner, j.NextUs, j.EndedUs, j.StartedUs = at, []byte(q.text(5)), q.number(6), 0, clock()
		j.LimitUs, j.Schedule, j.Token = q.number(7), []byte(q.text(8)), token
		return true
	})
}

func jobDone(ctx context.Context, q *statement) (reply, error) {
	return q.job(ctx, 2, func(j *jobRow) bool {
		if !ended(j, q.number(3), q.number(4)) {
			return false
		}
		j.keep(q, 0)
		j.DoneUs, j.Failures, j.Error = j.TickUs, 0, []byte("-")
		return true
	})
}

func jobFailed(ctx context.Context, q *statement) (reply, error) {
	return q.job(ctx, 3, func(j *jobRow) bool {
		if !ended(j, q.number(4), q.number(5)) {
			return false
		}
		j.keep(q, 0)
		j.Failures, j.Error = j.Failures+1, []byte(q.text(2))
		return true
	})
}

// ended ends the tick that was begun under a token.
func ended(j *jobRow, at, token int64) bool {
	if j.TickUs != at || j.Token != uint64(token) || j.EndedUs != 0 {
		return false
	}
	j.TookUs, j.EndedUs = max(0, clock()-j.StartedUs), clock()
	return true
}

func pauseJob(ctx context.Context, q *statement) (reply, error) {
	return q.job(ctx, 1, func(j *jobRow) bool {
		if j.PausedUs != 0 {
			return false
		}
		j.PausedUs, j.PausedBy = clock(), []byte(q.text(0))
		return true
	})
}

func resumeJob(ctx context.Context, q *statement) (reply, error) {
	return q.job(ctx, 0, func(j *jobRow) bool {
		paused := j.PausedUs != 0
		j.PausedUs, j.PausedBy = 0, nil
		return paused
	})
}

func requestJob(ctx context.Context, q *statement) (reply, error) {
	return q.job(ctx, 0, func(j *jobRow) bool {
		if j.RunUs > j.TickUs {
			return false
		}
		j.RunUs = max(clock(), j.TickUs+1)
		return true
	})
}

func purgeJob(ctx context.Context, q *statement) (reply, error) {
	id := q.id(jobs, 0)
	if err := q.kit.server.lock(ctx, q.tx, id, false, q.limit); err != nil {
		return reply{}, err
	}
	r, there := q.kit.server.current(q.tx, id)
	if j := r.job; !there || j.Token != uint64(q.number(1)) || j.TickUs != q.number(2) || j.NextUs != q.number(3) || j.RunUs != q.number(4) || j.PausedUs != 0 {
		return reply{}, nil
	}
	q.tx.written[id] = nil
	return reply{changed: 1}, nil
}
