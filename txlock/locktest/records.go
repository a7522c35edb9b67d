package locktest

import (
	"context"
	"database/sql/driver"
	"maps"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// This file executes the statements of locks, of Once and of jobs.

// insert makes the row of a key if it is missing, at once and for good, as production does where a
// lock begins its transaction. Then it locks the row.
func (q *statement) insert(ctx context.Context, id rowID, shared bool) (row, error) {
	if q.tx.options.ReadOnly {
		return row{}, errReadOnly
	}
	rows := q.kit.rows.Committed
	if r, found := rows[id]; id.table == named && (!found || r.gone) {
		rows[id] = row{owner: []byte("-"), lockedUs: clock()}
		if q.tx.Snapshot != nil { // which shows what the transaction itself has made
			q.tx.Snapshot[id] = rows[id]
		}
	}
	return q.take(ctx, id, shared)
}

// raise locks a row exclusively, and raises its token, unless that is the one held. If a version is an argument
// and the token isn't that either, the row stays, and the lock isn't granted.
func raise(table string, name, owner, held int, version ...int) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		id := q.id(table, name)
		r, err := q.insert(ctx, id, false)
		if err != nil {
			return reply{}, err
		}
		switch token := int64(r.token); {
		case token == q.number(held):
		case len(version) > 0 && token != q.number(version[0]):
			q.taken = nil
			return reply{}, nil
		default:
			r.token = q.kit.next(id, r.token)
		}
		r.owner, r.conn, r.lockedUs = []byte(q.text(owner)), q.tx.Session, clock()
		q.tx.Written[id] = r
		return reply{id: int64(r.token), changed: 2}, nil
	}
}

// raiseMany does what raise does, for a list of keys and owners. If one fails it writes none, though
// those before it stay locked.
func raiseMany(table string) handler {
	raise := raise(table, 0, 1, 2)
	return func(ctx context.Context, q *statement) (all reply, err error) {
		before := maps.Clone(q.tx.Written)
		for i := 0; i < len(q.args); i += 2 {
			one := *q
			one.args = []any{q.args[i], q.args[i+1], 1} // no token is so low that it could be held
			r, err := raise(ctx, &one)
			if q.taken = one.taken; err != nil {
				q.tx.Written = before
				return reply{}, err
			}
			all.rows = append(all.rows, []driver.Value{q.args[i], r.id})
		}
		return all, nil
	}
}

func ensure(ctx context.Context, q *statement) (reply, error) {
	_, err := q.insert(ctx, q.id(named, 0), true)
	return reply{}, err
}

func forShare(table string) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		id := q.id(table, 0)
		if _, there := q.tx.current(id); !there {
			return reply{}, nil
		}
		r, err := q.take(ctx, id, true)
		return one(int64(r.token)), err
	}
}

func nameOf(name driver.Value, _ row) []driver.Value { return []driver.Value{name} }
func tokenOf(_ driver.Value, r row) []driver.Value   { return []driver.Value{int64(r.token)} }

func holderOf(name driver.Value, r row) []driver.Value {
	return []driver.Value{name, int64(r.token), r.owner, int64(r.conn), r.lockedUs}
}

// versionOf has the isolation level of the session, too.
func versionOf(_ driver.Value, r row) []driver.Value {
	return []driver.Value{int64(r.token), rawsql.LevelBegin + "REPEATABLE-READ"}
}

func isIdle(q *statement, r row) bool {
	return r.lockedUs < clock()-q.number(1) && int64(r.token) < clock()
}

// update locks a row and writes what a function makes of it, if the row is there and the function returns
// true.
func update(table string, name int, change func(q *statement, r *row) bool) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		id := q.id(table, name)
		r, there, err := q.locked(ctx, id, false)
		if err != nil || !there || !change(q, &r) {
			return reply{}, err
		}
		q.tx.Written[id] = r
		return reply{changed: 1}, nil
	}
}

func remove(_ *statement, r *row) bool {
	r.gone = true
	return true
}

// once makes the row of a key, or keeps it shared and is refused.
func once(ctx context.Context, q *statement) (reply, error) {
	if q.tx.options.ReadOnly {
		return reply{}, errReadOnly
	}
	id := q.id(onces, 0)
	words := "once " + id.name
	_, there, err := q.acquire(ctx, words, id, false)
	if err != nil {
		return reply{}, err
	}
	q.kit.note(q.tx, Event{What: words})
	if _, own := q.tx.Written[id]; there && !own {
		q.tx.Share(id)
	}
	if there {
		return reply{}, answer(1062, "23000", "Duplicate entry for key 'PRIMARY'")
	}
	q.tx.Written[id] = row{fingerprint: []byte(q.text(1)), result: []byte("-"), doneUs: clock(), keepUs: q.number(2)}
	return reply{changed: 1}, nil
}

func onceAgain(ctx context.Context, q *statement) (reply, error) {
	r, there, err := q.locked(ctx, q.id(onces, 1), true)
	if err != nil || !there {
		return reply{}, err
	}
	expired := int64(0)
	if r.doneUs+r.keepUs <= clock()-q.number(0) {
		expired = 1
	}
	return one(expired, r.fingerprint, r.doneUs), nil
}

func onceResult(ctx context.Context, q *statement) (reply, error) {
	r, there, err := q.locked(ctx, q.id(onces, 0), true)
	if err != nil || !there {
		return reply{}, err
	}
	return one(r.result), nil
}

func isExpired(_ *statement, r row) bool { return r.doneUs+r.keepUs <= clock() }

func onceAnew(q *statement, r *row) bool {
	unchanged := r.doneUs == q.number(3)
	r.fingerprint, r.result, r.keepUs, r.doneUs = []byte(q.text(0)), []byte("-"), q.number(1), max(r.doneUs+1, clock())
	return unchanged
}

func answerOnce(q *statement, r *row) bool {
	r.result, r.doneUs = []byte(q.text(0)), max(r.doneUs+1, clock())
	return true
}

func prolongOnce(_ *statement, r *row) bool {
	r.doneUs = clock()
	return true
}

// jobColumns are those that LookJob and ListJobs have in common.
func jobColumns(j gen.ListJobsRow) []driver.Value {
	return []driver.Value{
		j.TickUs, j.DoneUs, int64(j.Token), j.Owner, j.StartedUs, j.EndedUs, j.TookUs, j.Failures, j.Error, j.NextUs,
		j.LimitUs, j.Schedule, j.PausedUs, j.PausedBy, j.RunUs,
	}
}

func lookJob(_ driver.Value, r row) []driver.Value { return append(jobColumns(r.job), clock(), "") }
func jobRuns(_ driver.Value, r row) []driver.Value {
	return []driver.Value{[]byte(r.job.Runs), clock()}
}

func listJobs(ctx context.Context, q *statement) (found reply, err error) {
	for _, id := range q.kit.all(q.tx, jobs) {
		r, there := q.kit.shown(q.tx, id)
		if !there {
			continue
		}
		if r.job.TickUs <= r.job.DoneUs {
			r.job.Runs = ""
		}
		lease, err := q.kit.leases.Look(ctx, store.Row{Key: id.name})
		if err != nil {
			return reply{}, err
		}
		columns := append([]driver.Value{[]byte(id.name)}, jobColumns(r.job)...)
		found.rows = append(found.rows, append(columns, r.job.Differs, r.job.DiffersUs, r.job.Runs, lease.Held(), clock()))
	}
	return found, nil
}

// keep keeps a run, as the arguments of the statement from i on say.
func keep(q *statement, i int, j *gen.ListJobsRow) {
	j.Runs = string(jobrow.Push([]byte(j.Runs), []byte(q.text(i)), int(q.number(i+1))))
}

func makeJob(ctx context.Context, q *statement) (reply, error) {
	id := q.id(jobs, 0)
	_, there, err := q.locked(ctx, id, false)
	if err == nil && !there {
		q.tx.Written[id] = row{job: gen.ListJobsRow{
			Name: []byte(id.name), TickUs: q.number(1), DoneUs: q.number(2), Owner: []byte("-"), Error: []byte("-"), NextUs: q.number(3), Schedule: []byte(q.text(4)),
		}}
	}
	return reply{changed: 1}, err
}

func planJob(q *statement, r *row) bool {
	r.job.NextUs, r.job.Schedule = q.number(0), []byte(q.text(1))
	return r.job.TickUs == q.number(3)
}

func noteSchedule(q *statement, r *row) bool {
	r.job.Differs, r.job.DiffersUs = []byte(q.text(0)), clock()
	return string(r.job.Schedule) != q.text(0)
}

func beginJob(q *statement, r *row) bool {
	j, at, token := &r.job, q.number(3), uint64(q.number(9))
	if j.DoneUs >= at || j.TickUs > at || j.Token >= token || j.PausedUs != 0 && j.RunUs != at {
		return false
	}
	if j.Token > 0 && j.Token == uint64(q.number(0)) {
		keep(q, 1, j)
	}
	if j.TickUs != at {
		j.Failures = 0
	}
	if j.Token == 0 {
		j.DoneUs = -1
	}
	j.TickUs, j.Owner, j.NextUs, j.EndedUs, j.StartedUs = at, []byte(q.text(5)), q.number(6), 0, clock()
	j.LimitUs, j.Schedule, j.Token = q.number(7), []byte(q.text(8)), token
	return true
}

func jobDone(q *statement, r *row) bool {
	r.job.DoneUs, r.job.Failures, r.job.Error = r.job.TickUs, 0, []byte("-")
	return ended(q, 3, &r.job)
}

func jobFailed(q *statement, r *row) bool {
	r.job.Failures, r.job.Error = r.job.Failures+1, []byte(q.text(2))
	return ended(q, 4, &r.job)
}

// ended ends the tick that was begun under a token, as the arguments from i on say, and keeps the run.
func ended(q *statement, i int, j *gen.ListJobsRow) bool {
	if j.TickUs != q.number(i) || j.Token != uint64(q.number(i+1)) || j.EndedUs != 0 {
		return false
	}
	j.TookUs, j.EndedUs = max(0, clock()-j.StartedUs), clock()
	keep(q, 0, j)
	return true
}

func pauseJob(q *statement, r *row) bool {
	paused := r.job.PausedUs != 0
	r.job.PausedUs, r.job.PausedBy = clock(), []byte(q.text(0))
	return !paused
}

func resumeJob(_ *statement, r *row) bool {
	paused := r.job.PausedUs != 0
	r.job.PausedUs, r.job.PausedBy = 0, nil
	return paused
}

func requestJob(_ *statement, r *row) bool {
	requested := r.job.RunUs > max(r.job.TickUs, 0)
	r.job.RunUs = max(clock(), r.job.TickUs+1)
	return !requested
}

func purgeJob(q *statement, r *row) bool {
	j := r.job
	r.gone = j.Token == uint64(q.number(1)) && j.TickUs == q.number(2) && j.NextUs == q.number(3) && j.RunUs == q.number(4) && j.PausedUs == 0
	return r.gone
}
