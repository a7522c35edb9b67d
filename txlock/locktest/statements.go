package locktest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/schema"
)

// version is that of the server which a Kit stands in for: a MariaDB refuses a row that is
// newer than the snapshot, and limits each wait by itself.
const version = "11.8.3-MariaDB-locktest"

// statement is one of lockstep's own while it is executed, under server.Mu.
type statement struct {
	kit  *Kit
	tx   *tx
	open bool // in a transaction of the program
	args []any
	variables
}

// variables are what a statement says of the rows that it locks.
type variables struct {
	noWait      bool
	atMost      time.Duration // for how long it waits, 0 for innodb_lock_wait_timeout
	refuseStale bool          // a row that is newer than the snapshot is refused
}

// reply is what a statement is answered. Without rows it has no columns either.
type reply struct {
	id, changed int64
	rows        [][]driver.Value
}

// handler executes a statement.
type handler func(ctx context.Context, q *statement) (reply, error)

// handlers has the statements of lockstep's own by their texts, so that one which has changed
// since is unknown here. Statements of leases aren't among them: see leases.go.
var handlers = map[string]handler{
	gen.LockNamed:             raise(named, 0, 1, 2, anyVersion),
	gen.LockCenter:            raise(centers, 2, 1, 0, anyVersion),
	gen.CompareAndBumpNamed:   raise(named, 0, 2, 3, 1),
	gen.CompareAndBumpCenter:  raise(centers, 3, 2, 0, 1),
	gen.EnsureNamed:           ensure,
	gen.NamedForShare:         forShare(named),
	gen.CenterForShare:        forShare(centers),
	gen.NamedToken:            token(named),
	gen.CenterToken:           token(centers),
	gen.NamedVersion:          list(named, versionOf),
	gen.CenterVersion:         list(centers, versionOf),
	rawsql.Big(gen.IdleNamed): batch(named, 2, isIdle),
	gen.DeleteNamed:           update(named, 0, remove),

	gen.Once:                    once,
	gen.OnceAgain:               onceAgain,
	gen.OnceAnew:                update(onces, 2, onceAnew),
	gen.AnswerOnce:              update(onces, 1, answerOnce),
	gen.ProlongOnce:             update(onces, 0, prolongOnce),
	gen.OnceResult:              onceResult,
	gen.SealOnce:                nothing,
	rawsql.Big(gen.ExpiredOnce): batch(onces, 1, isExpired),
	gen.DeleteOnce:              update(onces, 0, remove),

	gen.LookJob:              list(jobs, lookJob),
	gen.MakeJob:              makeJob,
	gen.PlanJob:              update(jobs, 2, planJob),
	gen.NoteSchedule:         update(jobs, 1, noteSchedule),
	gen.BeginJob:             update(jobs, 10, beginJob),
	gen.JobDone:              update(jobs, 2, jobDone),
	gen.JobFailed:            update(jobs, 3, jobFailed),
	rawsql.Big(gen.ListJobs): listJobs,
	gen.JobRuns:              list(jobs, jobRuns),
	gen.PauseJob:             update(jobs, 1, pauseJob),
	gen.ResumeJob:            update(jobs, 0, resumeJob),
	gen.RequestJob:           update(jobs, 0, requestJob),
	gen.PurgeJob:             update(jobs, 0, purgeJob),

	rawsql.Facts:                 facts,
	rawsql.Probe:                 unless(true, errInProgress),
	rawsql.ProbeSavepoint:        nothing,
	rawsql.ReleaseProbeSavepoint: unless(false, errNoSavepoint("lockstep")),
	rawsql.Galera:                nothing,
	schema.ClusterQuery:          nothing,
	rawsql.Uptime:                constant("Uptime", "1"),
	rawsql.MaxPacket:             constant(int64(1 << 24)),
}

// beginnings are what statements of any length begin with.
var beginnings = map[string]handler{
	before(gen.NamedPresent):  list(named, nameOf),
	before(gen.NamedHolders):  list(named, holderOf),
	before(gen.CenterHolders): list(centers, holderOf),
	rawsql.Kill(0)[:5]:        kill,
}

// before is what is before the list of a statement.
func before(text string) string {
	text, _, _ = strings.Cut(text, "/*SLICE")
	return text
}

// find returns the handler of one of lockstep's own statements, or nil.
func find(text string) handler {
	if h := handlers[text]; h != nil {
		return h
	}
	for beginning, h := range beginnings {
		if strings.HasPrefix(text, beginning) {
			return h
		}
	}
	switch keys := max(1, strings.Count(text, "?")/2); text {
	case rawsql.Named.LockManyReturning(keys):
		return raiseMany(named)
	case rawsql.Centers.LockManyReturning(keys):
		return raiseMany(centers)
	}
	return nil
}

// parse returns the handler of one of lockstep's own statements and what its variables ask for. It
// returns neither a handler nor an error for a statement of the program.
func (k *Kit) parse(text string) (handler, variables, error) {
	text, v, err := under(text)
	h := find(text)
	switch {
	case h != nil:
		return h, v, err
	case strings.Contains(strings.ToLower(text), "lockstep_"):
		return nil, v, k.unknown(text)
	}
	return nil, v, nil
}

// under takes the variables off a statement, and returns what they ask for.
func under(text string) (rest string, v variables, err error) {
	list, ok := strings.CutPrefix(text, "SET STATEMENT ")
	list, rest, found := strings.Cut(list, " FOR ")
	if !ok || !found {
		return text, v, nil
	}
	for variable := range strings.SplitSeq(list, ", ") {
		seconds, timed := strings.CutPrefix(variable, "max_statement_time=")
		switch {
		case timed:
			v.atMost, err = time.ParseDuration(seconds + "s")
		case variable == rawsql.NoWait:
			v.noWait = true
		case variable == rawsql.RefuseStale:
			v.refuseStale = true
		case variable != rawsql.AllowStale:
			err = fmt.Errorf("locktest: the variable %q isn't known", variable)
		}
	}
	return rest, v, err
}

// argument returns an argument, converted as database/sql does.
func argument[T int64 | []byte](q *statement, i int) T {
	v, err := driver.DefaultParameterConverter.ConvertValue(q.args[i])
	t, ok := v.(T)
	if !ok {
		panic(fmt.Sprintf("locktest: argument %d of a statement of lockstep's is a %T: %v", i, q.args[i], err))
	}
	return t
}

func (q *statement) text(i int) string  { return string(argument[[]byte](q, i)) }
func (q *statement) number(i int) int64 { return argument[int64](q, i) }

// id is the row of an argument.
func (q *statement) id(table string, i int) rowID {
	if table == centers {
		return rowID{table, strconv.FormatInt(q.number(i), 10)}
	}
	return rowID{table, q.text(i)}
}

// note notes an event of the program's transaction.
func (q *statement) note(e Event) {
	if q.open {
		q.kit.log.add(q.tx, e)
	}
}

// locked locks a row, there or not, and returns it.
func (q *statement) locked(ctx context.Context, id rowID, shared bool) (r row, there bool, err error) {
	switch {
	case q.tx.TryLock(id, shared):
	case q.noWait:
		err = errTimeout
	case q.atMost > 0:
		err = q.tx.Lock(ctx, id, shared, q.atMost, errStatementTime)
	default:
		err = q.tx.Lock(ctx, id, shared, lockWait, errTimeout)
	}
	if err == nil {
		r, there = q.tx.current(id)
	}
	return r, there, err
}

// acquire locks the row of a key. It notes an error by the words.
func (q *statement) acquire(ctx context.Context, words string, id rowID, shared bool) (r row, there bool, err error) {
	if q.open {
		err = q.kit.faults.atLock(q, id)
	}
	if err == nil {
		r, there, err = q.locked(ctx, id, shared)
	}
	_, own := q.tx.Written[id]
	if err == nil && q.refuseStale && q.tx.Snapshot != nil && !own && q.tx.Snapshot[id].token != r.token {
		err = errStale
		q.kit.server.end(q.tx, false)
	}
	if err != nil {
		q.note(Event{What: words, Err: err})
	}
	return r, there, err
}

// take locks the row of a key, and notes that.
func (q *statement) take(ctx context.Context, id rowID, shared bool) (row, error) {
	words := "lock " + lockName(shared, id)
	r, _, err := q.acquire(ctx, words, id, shared)
	if held, again := q.tx.holds[id]; err == nil && (!again || held && !shared) {
		q.tx.holds[id] = shared
		q.note(Event{What: words, lock: &id})
	}
	return r, err
}

func clock() int64 { return time.Now().UnixMicro() }

// insert makes the row of a key if it is missing, at once and for good, as production does where a
// lock begins its transaction. Then it locks the row.
func (q *statement) insert(ctx context.Context, id rowID, shared bool) (row, error) {
	if q.tx.options.ReadOnly {
		return row{}, errReadOnly
	}
	rows := q.kit.server.Committed
	if r, found := rows[id]; id.table == named && (!found || r.gone) {
		rows[id] = row{owner: []byte("-"), lockedUs: clock()}
	}
	return q.take(ctx, id, shared)
}

// grant writes the row of a key, with a token that rises unless it is the one held.
func (q *statement) grant(id rowID, r row, held int64, owner string) (token int64) {
	if int64(r.token) != held {
		r.token = q.kit.server.next(id, r.token)
	}
	r.owner, r.conn, r.lockedUs = []byte(owner), q.tx.Session, clock()
	q.tx.Written[id] = r
	return int64(r.token)
}

// Values of arguments that a statement doesn't have.
const (
	anyVersion = -1 // in place of which one is the version
	notHeld    = 1  // as a token that is held: no token is so low
)

// raise locks a row exclusively, and raises its token if that is the version, or any version will do.
func raise(table string, name, owner, held, version int) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		id := q.id(table, name)
		r, err := q.insert(ctx, id, false)
		if err != nil {
			return reply{}, err
		}
		if token := int64(r.token); version != anyVersion && token != q.number(held) && token != q.number(version) {
			return reply{}, nil
		}
		return reply{id: q.grant(id, r, q.number(held), q.text(owner)), changed: 2}, nil
	}
}

// raiseMany does what raise does, for a list of keys and owners.
func raiseMany(table string) handler {
	return func(ctx context.Context, q *statement) (all reply, err error) {
		for i := 0; i < len(q.args); i += 2 {
			id := q.id(table, i)
			r, err := q.insert(ctx, id, false)
			if err != nil {
				return reply{}, err
			}
			all.rows = append(all.rows, []driver.Value{q.args[i], q.grant(id, r, notHeld, q.text(i+1))})
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

// token is a plain read, which is a locking one at SERIALIZABLE.
func token(table string) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		if q.tx.at(sql.LevelSerializable) {
			return forShare(table)(ctx, q)
		}
		return list(table, func(_ driver.Value, r row) []driver.Value { return []driver.Value{int64(r.token)} })(ctx, q)
	}
}

// list reads columns of the rows whose names are the arguments.
func list(table string, columns func(name driver.Value, r row) []driver.Value) handler {
	return func(_ context.Context, q *statement) (found reply, err error) {
		for i, name := range q.args {
			if r, there := q.kit.server.shown(q.tx, q.id(table, i)); there {
				found.rows = append(found.rows, columns(name, r))
			}
		}
		return found, nil
	}
}

func nameOf(name driver.Value, _ row) []driver.Value { return []driver.Value{name} }

func holderOf(name driver.Value, r row) []driver.Value {
	return []driver.Value{name, int64(r.token), r.owner, int64(r.conn), r.lockedUs}
}

// versionOf has the isolation level of the session, too.
func versionOf(_ driver.Value, r row) []driver.Value {
	return []driver.Value{int64(r.token), rawsql.LevelBegin + "REPEATABLE-READ"}
}

// batch locks rows, from the name that is the first argument on, which nobody has locked.
func batch(table string, most int, is func(q *statement, r row) bool) handler {
	return func(_ context.Context, q *statement) (found reply, err error) {
		for _, id := range q.kit.server.all(q.tx, table) {
			r, there := q.tx.current(id)
			if there && id.name >= q.text(0) && is(q, r) && len(found.rows) < int(q.number(most)) && q.tx.TryLock(id, false) {
				found.rows = append(found.rows, []driver.Value{[]byte(id.name)})
			}
		}
		return found, nil
	}
}

func isIdle(q *statement, r row) bool {
	return r.lockedUs < clock()-q.number(1) && int64(r.token) < clock()
}

// update locks a row and writes what a function makes of it, if it is there and the function returns
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

func facts(_ context.Context, q *statement) (reply, error) {
	row := session.Reply(version, q.kit.name)
	row[1] = strconv.FormatUint(q.tx.Session, 10)
	return one(row...), nil
}

// unless refuses a statement in a transaction, or outside of one, and does nothing else.
func unless(open bool, err error) handler {
	return func(_ context.Context, q *statement) (reply, error) {
		if q.open == open {
			return reply{}, err
		}
		return reply{}, nil
	}
}

func constant(values ...driver.Value) handler {
	return func(context.Context, *statement) (reply, error) { return one(values...), nil }
}

func nothing(context.Context, *statement) (reply, error) { return reply{}, nil }

// kill finds no session: each has ended with its connection.
func kill(context.Context, *statement) (reply, error) {
	return reply{}, answer(1094, "HY000", "Unknown thread id")
}

// one is a reply of one row.
func one(values ...driver.Value) reply {
	return reply{rows: [][]driver.Value{values}}
}
