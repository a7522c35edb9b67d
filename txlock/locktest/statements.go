package locktest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/jobrow/memtable"
	"github.com/dca00107/lockstep/internal/memdb"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/sqltext"
	"github.com/dca00107/lockstep/schema"
)

// version is that of the server which a Kit stands in for: a MariaDB refuses a row that is
// newer than the snapshot, and limits each wait by itself.
const version = "11.8.3-MariaDB-locktest"

// statement is one of lockstep's own while it is executed, under Kit.rows.Mu.
type statement struct {
	kit  *Kit
	tx   *tx
	open bool // in a transaction of the program
	args memdb.Args

	moved bool // the session has sent USE
	variables
	taken  []rowID // of keys, which the transaction holds if the statement succeeds
	shared bool    // they are locked so
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
	gen.LockNamed:              raise(named, 0, 1, 2),
	gen.LockCenter:             raise(centers, 2, 1, 0),
	gen.CompareAndBumpNamed:    raise(named, 0, 2, 3, 1),
	gen.CompareAndBumpCenter:   raise(centers, 3, 2, 0, 1),
	gen.EnsureNamed:            ensure,
	gen.NamedForShare:          forShare(named),
	gen.CenterForShare:         forShare(centers),
	gen.NamedToken:             list(named, tokenOf),
	gen.CenterToken:            list(centers, tokenOf),
	gen.NamedVersion:           list(named, versionOf),
	gen.CenterVersion:          list(centers, versionOf),
	listing(gen.NamedPresent):  list(named, nameOf),
	listing(gen.NamedHolders):  list(named, holderOf),
	listing(gen.CenterHolders): list(centers, holderOf),
	rawsql.Big(gen.IdleNamed):  batch(named, 2, isIdle),
	gen.DeleteNamed:            update(named, 0, remove),

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
	rawsql.Big(gen.ListJobs): listJobs,
	gen.JobRuns:              list(jobs, jobRuns),

	rawsql.Facts:                 facts,
	rawsql.Probe:                 unless(true, errInProgress),
	rawsql.ProbeSavepoint:        nothing,
	rawsql.ReleaseProbeSavepoint: unless(false, errNoSavepoint("lockstep")),
	rawsql.Galera:                nothing,
	schema.ClusterQuery:          nothing,
	rawsql.Uptime:                constant("Uptime", "-2"), // as after a restart: no session is left to be killed
	rawsql.MaxPacket:             constant(int64(1 << 24)),
}

// listing is a statement with a list that has one argument.
func listing(text string) string {
	before, list, _ := strings.Cut(text, "/*SLICE:")
	_, after, _ := strings.Cut(list, "*/")
	return before + after
}

// find returns the handler of one of lockstep's own statements, or nil.
func find(text string) handler {
	switch keys := max(1, strings.Count(text, "?")/2); text {
	case rawsql.Named.LockManyReturning(keys):
		return raiseMany(named)
	case rawsql.Centers.LockManyReturning(keys):
		return raiseMany(centers)
	}
	if job, found := memtable.Statements[text]; found {
		return update(jobs, job.Name, changeJob(job))
	}
	return handlers[strings.ReplaceAll(text, ",?", "")] // a list may have more arguments
}

// parse returns the handler of one of lockstep's own statements and what its variables ask for. It
// returns neither a handler nor an error for a statement of the program.
func (k *Kit) parse(text string) (handler, variables, error) {
	text, v, err := under(text)
	if h := find(text); h != nil {
		return h, v, err
	}
	if sqltext.Mentions(text, tables) != "" {
		err = fmt.Errorf("locktest: the kit doesn't know the statement %q of lockstep: it answers those of locks, Once, versions, leases and jobs, and none of package schema or of commands", clipped(text))
		k.t.Errorf("%v", err)
		return nil, v, err
	}
	return nil, v, nil
}

// tables are those of lockstep: whoever names one sends a statement of lockstep's own.
var tables = map[string]bool{named: true, centers: true, onces: true, jobs: true, leaseRows: true}

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
		case variable != rawsql.AllowStale && !strings.HasPrefix(variable, rawsql.InCase):
			err = fmt.Errorf("locktest: the variable %q isn't known", variable)
		}
	}
	return rest, v, err
}

// id is the row of an argument.
func (q *statement) id(table string, i int) rowID {
	if table == centers {
		return rowID{table, strconv.FormatInt(q.args.Number(i), 10)}
	}
	return rowID{table, q.args.Text(i)}
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

// stale reports whether a row is newer than the snapshot, and refused for that. While a transaction
// has written the row, this isn't known: a server waits for it first.
func (q *statement) stale(id rowID) bool {
	if !q.refuseStale || q.tx.Snapshot == nil {
		return false
	}
	for t := range q.kit.rows.Open {
		if _, written := t.Written[id]; written {
			return false
		}
	}
	r, there := q.kit.rows.Committed[id]
	seen, before := q.tx.Snapshot[id]
	return there != before || r.token != seen.token
}

// acquire locks the row of a key. It notes an error by the words.
func (q *statement) acquire(ctx context.Context, words string, id rowID, shared bool) (r row, there bool, err error) {
	if err = q.kit.faultAtLock(q, id); err == nil && !q.stale(id) {
		r, there, err = q.locked(ctx, id, shared)
	}
	if err == nil && q.stale(id) {
		err = errStale
		q.kit.end(q.tx, false)
	}
	if err != nil {
		q.kit.note(q.tx, Event{What: words, Err: err})
	}
	return r, there, err
}

// take locks the row of a key.
func (q *statement) take(ctx context.Context, id rowID, shared bool) (row, error) {
	r, _, err := q.acquire(ctx, "lock "+lockName(shared, id), id, shared)
	q.taken, q.shared = append(q.taken, id), shared
	return r, err
}

// hold notes that the transaction holds what the statement has taken.
func (q *statement) hold() {
	for _, id := range q.taken {
		if shared, again := q.tx.holds[id]; !again || shared && !q.shared {
			q.tx.holds[id] = q.shared
			q.kit.note(q.tx, Event{What: "lock " + lockName(q.shared, id)})
		}
	}
}

func clock() int64 { return time.Now().UnixMicro() }

// list reads columns of the rows whose names are the arguments. At SERIALIZABLE it locks them.
func list(table string, columns func(name driver.Value, r row) []driver.Value) handler {
	return func(ctx context.Context, q *statement) (found reply, err error) {
		for i, name := range q.args {
			id := q.id(table, i)
			if q.tx.at(sql.LevelSerializable) {
				if _, _, err := q.locked(ctx, id, true); err != nil {
					return reply{}, err
				}
			}
			if r, there := q.kit.shown(q.tx, id); there {
				found.rows = append(found.rows, columns(name, r))
			}
		}
		return found, nil
	}
}

// batch locks rows, from the name that is the first argument on, which nobody has locked.
func batch(table string, most int, is func(q *statement, r row) bool) handler {
	return func(_ context.Context, q *statement) (found reply, err error) {
		for _, id := range q.kit.all(q.tx, table) {
			r, there := q.tx.current(id)
			if there && id.name >= q.args.Text(0) && is(q, r) && len(found.rows) < int(q.args.Number(most)) && q.tx.TryLock(id, false) {
				found.rows = append(found.rows, []driver.Value{[]byte(id.name)})
			}
		}
		return found, nil
	}
}

func facts(_ context.Context, q *statement) (reply, error) {
	name := q.kit.name
	if q.moved {
		name += ".other"
	}
	row := session.Reply(version, name)
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

// one is a reply of one row.
func one(values ...driver.Value) reply { return reply{rows: [][]driver.Value{values}} }

// A reply is a driver.Result and driver.Rows.

func (r *reply) LastInsertId() (int64, error) { return r.id, nil }
func (r *reply) RowsAffected() (int64, error) { return r.changed, nil }
func (r *reply) Close() error                 { return nil }

// Columns returns a name for each column, which nothing needs.
func (r *reply) Columns() []string {
	if len(r.rows) == 0 {
		return nil
	}
	return make([]string, len(r.rows[0]))
}

func (r *reply) Next(into []driver.Value) error {
	if len(r.rows) == 0 {
		return io.EOF
	}
	copy(into, r.rows[0])
	r.rows = r.rows[1:]
	return nil
}
