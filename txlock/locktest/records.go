package locktest

import (
	"context"
	"database/sql/driver"
	"maps"

	"github.com/dca00107/lockstep/internal/jobrow/memtable"
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
		case token == q.args.Number(held):
		case len(version) > 0 && token != q.args.Number(version[0]):
			q.taken = nil
			return reply{}, nil
		default:
			r.token = q.kit.next(id, r.token)
		}
		r.owner, r.conn, r.lockedUs = q.args.Bytes(owner), q.tx.Session, clock()
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
	return r.lockedUs < clock()-q.args.Number(1) && int64(r.token) < clock()
}

// update locks a row and writes what a function makes of it, if the row is there, or of a job, and the
// function returns true.
func update(table string, name int, change func(q *statement, r *row) bool) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		id := q.id(table, name)
		r, there, err := q.locked(ctx, id, false)
		if err != nil || !there && table != jobs || !change(q, &r) {
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
	q.tx.Written[id] = row{fingerprint: q.args.Bytes(1), result: []byte("-"), doneUs: clock(), keepUs: q.args.Number(2)}
	return reply{changed: 1}, nil
}

func onceAgain(ctx context.Context, q *statement) (reply, error) {
	r, there, err := q.locked(ctx, q.id(onces, 1), true)
	if err != nil || !there {
		return reply{}, err
	}
	expired := int64(0)
	if r.doneUs+r.keepUs <= clock()-q.args.Number(0) {
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
	unchanged := r.doneUs == q.args.Number(3)
	r.fingerprint, r.result, r.keepUs, r.doneUs = q.args.Bytes(0), []byte("-"), q.args.Number(1), max(r.doneUs+1, clock())
	return unchanged
}

func answerOnce(q *statement, r *row) bool {
	r.result, r.doneUs = q.args.Bytes(0), max(r.doneUs+1, clock())
	return true
}

func prolongOnce(_ *statement, r *row) bool {
	r.doneUs = clock()
	return true
}

func lookJob(_ driver.Value, r row) []driver.Value {
	return append(memtable.Columns(r.job), clock(), "")
}
func jobRuns(_ driver.Value, r row) []driver.Value {
	return []driver.Value{[]byte(r.job.Runs), clock()}
}

func listJobs(ctx context.Context, q *statement) (found reply, err error) {
	for _, id := range q.kit.all(q.tx, jobs) {
		r, there := q.kit.shown(q.tx, id)
		if !there {
			continue
		}
		lease, err := q.kit.leases.Look(ctx, store.Row{Key: id.name})
		if err != nil {
			return reply{}, err
		}
		found.rows = append(found.rows, append(memtable.Listed(r.job), lease.Held(), clock()))
	}
	return found, nil
}

// changeJob is what a statement does to the row of a job, there or not.
func changeJob(job memtable.Statement) func(q *statement, r *row) bool {
	return func(q *statement, r *row) (changed bool) {
		r.job, changed = job.Change(r.job, q.args, clock())
		r.gone = r.job.Name == nil
		return changed
	}
}
