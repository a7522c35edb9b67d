package locktest

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
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
	kit     *Kit
	tx      *tx
	session uint64
	open    bool // in a transaction of the program
	args    []driver.Value
	limit   limit
	stale   bool // a row that is newer than the snapshot is refused
}

// limit is how long a statement waits for a lock.
type limit struct {
	noWait bool
	atMost time.Duration // 0 for innodb_lock_wait_timeout
}

// reply is what a statement is answered.
type reply struct {
	id, changed int64
	columns     int
	rows        [][]driver.Value
}

// handler executes a statement.
type handler func(ctx context.Context, q *statement) (reply, error)

// handlers has the statements of lockstep's own by their texts, so that one which has changed
// since is unknown here. Statements of leases aren't among them: see leases.go.
var handlers = map[string]handler{
	gen.LockNamed:             raise(named, 0, 1, 2),
	gen.LockCenter:            raise(centers, 2, 1, 0),
	gen.CompareAndBumpNamed:   bump(named, 0, 1, 2, 3),
	gen.CompareAndBumpCenter:  bump(centers, 3, 1, 2, 0),
	gen.EnsureNamed:           ensure,
	gen.NamedForShare:         forShare(named),
	gen.CenterForShare:        forShare(centers),
	gen.NamedToken:            token(named),
	gen.CenterToken:           token(centers),
	gen.NamedVersion:          token(named, ofSession),
	gen.CenterVersion:         token(centers, ofSession),
	rawsql.Big(gen.IdleNamed): idle,
	gen.DeleteNamed:           remove(named),

	gen.Once:                    once,
	gen.OnceAgain:               onceAgain,
	gen.OnceAnew:                onceAnew,
	gen.AnswerOnce:              answerOnce,
	gen.ProlongOnce:             prolongOnce,
	gen.OnceResult:              onceResult,
	gen.SealOnce:                nothing,
	rawsql.Big(gen.ExpiredOnce): expiredOnce,
	gen.DeleteOnce:              remove(onces),

	gen.LookJob:              lookJob,
	gen.MakeJob:              makeJob,
	gen.PlanJob:              planJob,
	gen.NoteSchedule:         noteSchedule,
	gen.BeginJob:             beginJob,
	gen.JobDone:              jobDone,
	gen.JobFailed:            jobFailed,
	rawsql.Big(gen.ListJobs): listJobs,
	gen.JobRuns:              jobRuns,
	gen.PauseJob:             pauseJob,
	gen.ResumeJob:            resumeJob,
	gen.RequestJob:           requestJob,
	gen.PurgeJob:             purgeJob,

	rawsql.Facts:                 facts,
	rawsql.Probe:                 probe,
	rawsql.ProbeSavepoint:        nothing,
	rawsql.ReleaseProbeSavepoint: releaseProbeSavepoint,
	rawsql.Galera:                none,
	schema.ClusterQuery:          none,
	rawsql.Uptime:                uptime,
	rawsql.MaxPacket:             number(1 << 24),
}

// sliced are the statements with a list of any length, by what is before that.
var sliced = map[string]handler{
	before(gen.NamedPresent):  present,
	before(gen.NamedHolders):  holders(named),
	before(gen.CenterHolders): holders(centers),
}

func before(text string) string {
	text, _, _ = strings.Cut(text, "/*SLICE")
	return text
}

// find returns the handler of one of lockstep's own statements, or nil.
func find(text string, args int) handler {
	if h := handlers[text]; h != nil {
		return h
	}
	for before, h := range sliced {
		if strings.HasPrefix(text, before) {
			return h
		}
	}
	switch {
	case args == 0 || args%2 > 0:
	case text == rawsql.Named.LockManyReturning(args/2):
		return raiseMany(named)
	case text == rawsql.Centers.LockManyReturning(args/2):
		return raiseMany(centers)
	}
	if strings.HasPrefix(text, rawsql.Kill(0)[:5]) {
		return func(context.Context, *statement) (reply, error) {
			return reply{}, answer(1094, "HY000", "Unknown thread id") // it has ended with its connection
		}
	}
	return nil
}

// under takes the variables off a statement, and returns what they ask for.
func under(text string) (rest string, l limit, stale bool, err error) {
	variables, rest, ok := strings.Cut(strings.TrimPrefix(text, "SET STATEMENT "), " FOR ")
	if !ok || !strings.HasPrefix(text, "SET STATEMENT ") {
		return text, limit{}, false, nil
	}
	for v := range strings.SplitSeq(variables, ", ") {
		seconds, timed := strings.CutPrefix(v, "max_statement_time=")
		switch {
		case timed:
			f, err := strconv.ParseFloat(seconds, 64)
			if err != nil {
				return text, l, false, err
			}
			l.atMost = time.Duration(f * float64(time.Second))
		case v == rawsql.NoWait:
			l.noWait = true
		case v == rawsql.RefuseStale:
			stale = true
		case v != rawsql.AllowStale:
			return text, l, false, fmt.Errorf("locktest: the variable %q isn't known", v)
		}
	}
	return rest, l, stale, nil
}

func (q *statement) text(i int) string {
	switch v := q.args[i].(type) {
	case []byte:
		return string(v)
	case string:
		return v
	case nil: // NULL
		return ""
	}
	panic(fmt.Sprintf("locktest: argument %d of a statement of lockstep's is a %T, not text", i, q.args[i]))
}

func (q *statement) number(i int) int64 {
	switch v := q.args[i].(type) {
	case int64:
		return v
	case uint64:
		return int64(v)
	case uint32:
		return int64(v)
	case int32:
		return int64(v)
	case int:
		return int64(v)
	}
	panic(fmt.Sprintf("locktest: argument %d of a statement of lockstep's is a %T, not a number", i, q.args[i]))
}

// id is the row of an argument.
func (q *statement) id(table string, i int) rowID {
	if table == centers {
		return rowID{table, strconv.FormatInt(q.number(i), 10)}
	}
	return rowID{table, q.text(i)}
}

// take locks the row of a key, and returns it.
func (q *statement) take(ctx context.Context, id rowID, shared bool) (row, error) {
	s := q.kit.server
	if fault := q.kit.faults.atLock(q, id); fault != nil {
		return row{}, fault
	}
	if err := s.lock(ctx, q.tx, id, shared, q.limit); err != nil {
		q.kit.log.add(q.tx, Event{What: lockWords(shared, id), Err: err}, q.open)
		return row{}, err
	}
	r, _ := s.current(q.tx, id)
	_, own := q.tx.written[id]
	if old := q.tx.snapshot[id]; q.stale && q.tx.snapshot != nil && !own && old.token != r.token {
		s.end(q.tx, false)
		err := errStale()
		q.kit.log.add(q.tx, Event{What: lockWords(shared, id), Err: err}, q.open)
		return row{}, err
	}
	if _, held := q.tx.holds[id]; q.open && (!held || q.tx.holds[id] && !shared) {
		q.tx.holds[id] = shared
		q.kit.log.add(q.tx, Event{What: lockWords(shared, id), lock: &id, shared: shared}, true)
	}
	return r, nil
}

func (q *statement) write(id rowID, r row, token uint64, owner string) {
	r.token, r.owner, r.conn, r.lockedUs = token, []byte(owner), q.session, clock()
	q.tx.put(id, r)
}

func clock() int64 { return time.Now().UnixMicro() }

// exists makes the row of a key if it is missing, at once and for good: as production does
// where a lock begins its transaction.
func (q *statement) exists(id rowID) {
	if _, there := q.kit.server.rows[id]; !there && id.table == named {
		q.kit.server.rows[id] = row{owner: []byte("-"), lockedUs: clock()}
	}
}

// change locks the row of a key exclusively, to write it.
func (q *statement) change(ctx context.Context, id rowID) (row, error) {
	if q.tx.level.readOnly {
		return row{}, errReadOnly
	}
	q.exists(id)
	return q.take(ctx, id, false)
}

// raise locks a row exclusively, and raises its token.
func raise(table string, name, owner, held int) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		id := q.id(table, name)
		r, err := q.change(ctx, id)
		if err != nil {
			return reply{}, err
		}
		token := r.token
		if token != uint64(q.number(held)) {
			token = q.kit.server.next(id, token)
		}
		q.write(id, r, token, q.text(owner))
		return reply{id: int64(token), changed: 2}, nil
	}
}

// bump does so if the row has a version.
func bump(table string, name, version, owner, held int) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		id := q.id(table, name)
		r, err := q.change(ctx, id)
		switch {
		case err != nil:
			return reply{}, err
		case r.token == uint64(q.number(held)):
			return reply{id: int64(r.token), changed: 1}, nil
		case r.token != uint64(q.number(version)):
			return reply{}, nil
		}
		token := q.kit.server.next(id, r.token)
		q.write(id, r, token, q.text(owner))
		return reply{id: int64(token), changed: 2}, nil
	}
}

// raiseMany does what raise does, for a list of keys and owners.
func raiseMany(table string) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		all := reply{columns: 2}
		for i := 0; i < len(q.args); i += 2 {
			id := q.id(table, i)
			r, err := q.change(ctx, id)
			if err != nil {
				return reply{}, err
			}
			token := q.kit.server.next(id, r.token)
			q.write(id, r, token, q.text(i+1))
			all.rows = append(all.rows, []driver.Value{q.args[i], int64(token)})
		}
		return all, nil
	}
}

func ensure(ctx context.Context, q *statement) (reply, error) {
	if q.tx.level.readOnly {
		return reply{}, errReadOnly
	}
	id := q.id(named, 0)
	q.exists(id)
	if !q.open {
		return reply{}, nil
	}
	_, err := q.take(ctx, id, true)
	return reply{}, err
}

func forShare(table string) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		id := q.id(table, 0)
		if _, there := q.kit.server.current(q.tx, id); !there {
			return reply{columns: 1}, nil
		}
		r, err := q.take(ctx, id, true)
		return one(int64(r.token)), err
	}
}

// token is a plain read, of more than the token for some, which is a locking one at SERIALIZABLE.
func token(table string, more ...driver.Value) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		id := q.id(table, 0)
		if q.tx.level.serializable {
			return forShare(table)(ctx, q)
		}
		r, there := q.kit.server.shown(q.tx, id)
		if !there {
			return reply{columns: 1 + len(more)}, nil
		}
		return one(append([]driver.Value{int64(r.token)}, more...)...), nil
	}
}

func present(_ context.Context, q *statement) (reply, error) {
	found := reply{columns: 1}
	for i := range q.args {
		if _, there := q.kit.server.shown(q.tx, q.id(named, i)); there {
			found.rows = append(found.rows, []driver.Value{q.args[i]})
		}
	}
	return found, nil
}

func holders(table string) handler {
	return func(_ context.Context, q *statement) (reply, error) {
		found := reply{columns: 5}
		for i := range q.args {
			if r, there := q.kit.server.shown(q.tx, q.id(table, i)); there {
				found.rows = append(found.rows, []driver.Value{q.args[i], int64(r.token), slices.Clone(r.owner), int64(r.conn), r.lockedUs})
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
func (q *statement) batch(table string, most int64, is func(r row) bool) (reply, error) {
	s, found := q.kit.server, reply{columns: 1}
	for _, id := range s.all(q.tx, table) {
		r, there := s.current(q.tx, id)
		if there && id.name >= q.text(0) && is(r) && int64(len(found.rows)) < most && s.lock(context.Background(), q.tx, id, false, limit{noWait: true}) == nil {
			found.rows = append(found.rows, []driver.Value{[]byte(id.name)})
		}
	}
	return found, nil
}

func remove(table string) handler {
	return func(ctx context.Context, q *statement) (reply, error) {
		id := q.id(table, 0)
		err := q.kit.server.lock(ctx, q.tx, id, false, q.limit)
		if err == nil {
			q.tx.written[id] = nil
		}
		return reply{changed: 1}, err
	}
}

// ofSession is the isolation level of each session, as it answers it.
const ofSession = rawsql.LevelBegin + "REPEATABLE-READ"

func facts(_ context.Context, q *statement) (reply, error) {
	row := session.Reply(version, q.kit.name)
	row[1] = strconv.FormatUint(q.session, 10)
	return reply{columns: len(row), rows: [][]driver.Value{row}}, nil
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

func none(context.Context, *statement) (reply, error) { return reply{columns: 2}, nil }

// one is a reply of one row.
func one(values ...driver.Value) reply {
	return reply{columns: len(values), rows: [][]driver.Value{values}}
}
