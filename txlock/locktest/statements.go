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

// statement is one of lockstep's own while it is executed, under server.mu.
type statement struct {
	kit  *Kit
	tx   *tx
	open bool // in a transaction of the program
	args []driver.Value
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
	gen.NamedVersion:          token(named, ofSession),
	gen.CenterVersion:         token(centers, ofSession),
	rawsql.Big(gen.IdleNamed): idle,
	gen.DeleteNamed:           update(named, 0, remove),

	gen.Once:                    once,
	gen.OnceAgain:               onceAgain,
	gen.OnceAnew:                update(onces, 2, onceAnew),
	gen.AnswerOnce:              update(onces, 1, answerOnce),
	gen.ProlongOnce:             update(onces, 0, prolongOnce),
	gen.OnceResult:              onceResult,
	gen.SealOnce:                nothing,
	rawsql.Big(gen.ExpiredOnce): expiredOnce,
	gen.DeleteOnce:              update(onces, 0, remove),

	gen.LookJob:              lookJob,
	gen.MakeJob:              makeJob,
	gen.PlanJob:              update(jobs, 2, planJob),
	gen.NoteSchedule:         update(jobs, 1, noteSchedule),
	gen.BeginJob:             update(jobs, 10, beginJob),
	gen.JobDone:              update(jobs, 2, jobDone),
	gen.JobFailed:            update(jobs, 3, jobFailed),
	rawsql.Big(gen.ListJobs): listJobs,
	gen.JobRuns:              jobRuns,
	gen.PauseJob:             update(jobs, 1, pauseJob),
	gen.ResumeJob:            update(jobs, 0, resumeJob),
	gen.RequestJob:           update(jobs, 0, requestJob),
	gen.PurgeJob:             update(jobs, 0, purgeJob),

	rawsql.Facts:                 facts,
	rawsql.Probe:                 probe,
	rawsql.ProbeSavepoint:        nothing,
	rawsql.ReleaseProbeSavepoint: releaseProbeSavepoint,
	rawsql.Galera:                nothing,
	schema.ClusterQuery:          nothing,
	rawsql.Uptime:                uptime,
	rawsql.MaxPacket:             number(1 << 24),
}

// beginnings are what statements of any length begin with.
var beginnings = map[string]handler{
	before(gen.NamedPresent):  present,
	before(gen.NamedHolders):  holders(named),
	before(gen.CenterHolders): holders(centers),
	rawsql.Kill(0)[:5]:        kill,
}

// before is what is before the list of a statement.
func before(text string) string {
	text, _, _ = strings.Cut(text, "/*SLICE")
	return text
}

// find returns the handler of one of lockstep's own statements, or nil.
func find(text string, args int) handler {
	if h := handlers[text]; h != nil {
		return h
	}
	for beginning, h := range beginnings {
		if strings.HasPrefix(text, beginning) {
			return h
		}
	}
	switch keys := max(1, args/2); text {
	case rawsql.Named.LockManyReturning(keys):
		return raiseMany(named)
	case rawsql.Centers.LockManyReturning(keys):
		return raiseMany(centers)
	}
	return nil
}

// parse returns the handler of one of lockstep's own statements and what its variables ask for. It
// returns neither a handler nor an error for a statement of the program.
func (k *Kit) parse(text string, args int) (handler, variables, error) {
	text, v, err := under(text)
	h := find(text, args)
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

// argument returns an argument, as driver.DefaultParameterConverter has left it.
func argument[T int64 | []byte](q *statement, i int) T {
	v, ok := q.args[i].(T)
	if !ok {
		panic(fmt.Sprintf("locktest: argument %d of a statement of lockstep's is a %T", i, q.args[i]))
	}
	return v
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
	if err := q.kit.server.lock(ctx, q.tx, id, shared, q.variables); err != nil {
		return row{}, false, err
	}
	r, there = q.kit.server.current(q.tx, id)
	return r, there, nil
}

// acquire locks the row of a key. It notes an error by the words.
func (q *statement) acquire(ctx context.Context, words string, id rowID, shared bool) (r row, there bool, err error) {
	if q.open {
		err = q.kit.faults.atLock(q, id)
	}
	if err == nil {
		r, there, err = q.locked(ctx, id, shared)
	}
	_, own := q.tx.written[id]
	if err == nil && q.refuseStale && q.tx.snapshot != nil && !own && q.tx.snapshot[id].token != r.token {
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
	rows := q.kit.server.rows
	if _, there := rows[id]; !there && id.table == named {
		rows[id] = row{owner: []byte("-"), lockedUs: clock()}
	}
	return q.take(ctx, id, shared)
}

// grant writes the row of a key, with a token that rises unless it is the one held.
func (q *statement) grant(id rowID, r row, held int64, owner string) (token int64) {
	if int64(r.token) != held {
		r.token = q.kit.server.next(id, r.token)
	}
	r.owner, r.conn, r.lockedUs = []byte(owner), q.tx.session, clock()
	q.tx.written[id] = r
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
		if _, there := q.kit.server.current(q.tx, id); !there {
			return reply{}, nil
		}
		r, err := q.take(ctx, id, true)
		return one(int64(r.token)), err
	}
}

// token is a plain read, of more than the token for some, which is a locking one at SERIALIZABLE.
func token(table string, more ...driver.Value) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		id := q.id(table, 0)
		if q.tx.at(sql.LevelSerializable) {
			return forShare(table)(ctx, q)
		}
		r, there := q.kit.server.shown(q.tx, id)
		if !there {
			return reply{}, nil
		}
		return one(append([]driver.Value{int64(r.token)}, more...)...), nil
	}
}

func present(_ context.Context, q *statement) (found reply, err error) {
	for i := range q.args {
		if _, there := q.kit.server.shown(q.tx, q.id(named, i)); there {
			found.rows = append(found.rows, []driver.Value{q.args[i]})
		}
	}
	return found, nil
}

func holders(table string) handler {
	return func(_ context.Context, q *statement) (found reply, err error) {
		for i := range q.args {
			if r, there := q.kit.server.shown(q.tx, q.id(table, i)); there {
				found.rows = append(found.rows, []driver.Value{q.args[i], int64(r.token), r.owner, int64(r.conn), r.lockedUs})
			}
		}
		return found, nil
	}
}

// idle locks the rows that were not used for long and that nobody has locked.
func idle(_ context.Context, q *statement) (reply, error) {
	return q.batch(named, q.number(2), func(r row) bool {
		return r.lockedUs < clock()-q.number(1) && int64(r.token) < clock()
	})
}

func expiredOnce(_ context.Context, q *statement) (reply, error) {
	return q.batch(onces, q.number(1), func(r row) bool { return r.doneUs+r.keepUs <= clock() })
}

// batch locks rows, from the name that is the first argument on.
func (q *statement) batch(table string, most int64, is func(r row) bool) (found reply, err error) {
	s := q.kit.server
	for _, id := range s.all(q.tx, table) {
		r, there := s.current(q.tx, id)
		if there && id.name >= q.text(0) && is(r) && int64(len(found.rows)) < most && s.lock(context.Background(), q.tx, id, false, variables{noWait: true}) == nil {
			found.rows = append(found.rows, []driver.Value{[]byte(id.name)})
		}
	}
	return found, nil
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
		q.tx.written[id] = r
		return reply{changed: 1}, nil
	}
}

func remove(_ *statement, r *row) bool {
	r.gone = true
	return true
}

// ofSession is the isolation level of each session, as it answers it.
const ofSession = rawsql.LevelBegin + "REPEATABLE-READ"

func facts(_ context.Context, q *statement) (reply, error) {
	row := session.Reply(version, q.kit.name)
	row[1] = strconv.FormatUint(q.tx.session, 10)
	return one(row...), nil
}

// probe tells whether a transaction is open.
func probe(_ context.Context, q *statement) (reply, error) {
	if q.open {
		return reply{}, answer(1568, "25001", "Transaction characteristics can't be changed while a transaction is in progress")
	}
	return reply{}, nil
}

func releaseProbeSavepoint(_ context.Context, q *statement) (reply, error) {
	if !q.open {
		return reply{}, errNoSavepoint("lockstep")
	}
	return reply{}, nil
}

func uptime(_ context.Context, q *statement) (reply, error) {
	return one("Uptime", strconv.Itoa(int(time.Since(q.kit.started).Seconds())+1)), nil
}

func number(n int64) handler {
	return func(context.Context, *statement) (reply, error) { return one(n), nil }
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
