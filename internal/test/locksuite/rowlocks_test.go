package locksuite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	jobs "github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// trial is a transaction of a caller's in which a verb is called, with others' rows before and
// behind those of its keys.
type trial struct {
	testing.TB
	db       *testdb.DB
	pool     *sql.DB
	recorder *recorder
	level    sql.IsolationLevel
	base     string

	conn  *sql.Conn
	id    int64 // of the connection
	tx    *sql.Tx
	scope *txlock.Scope

	leases *lease.Manager // of a verb that acquires
	held   *lease.Lease   // of one that has acquired
}

// key and second are the keys of the verb.
func (r *trial) key() txlock.Key    { return txlock.Named(r.base + "k") }
func (r *trial) second() txlock.Key { return txlock.Named(r.base + "kk") }

// hashed is a family of hashed keys, whose rows always exist.
var hashed = txlock.NewFamily[string]("hashed", txlock.Hashed(), txlock.Exact())

func (r *trial) hashed() txlock.Key { return hashed.Key("k") }

// owns tells whether a record is one of the verb's.
func (r *trial) owns(l testdb.Lock) bool {
	if l.Table == "lockstep_centers" {
		return l.Name == "" && (l.Slot == int64(r.hashed().Slot()) || l.Slot == int64(hashed.Key("kk").Slot()))
	}
	return l.Name == r.key().String() || l.Name == r.second().String()
}

// exec sends a statement of a stranger's.
func (r *trial) exec(query string, args ...any) {
	r.Helper()
	check(r, second(r.db.Admin().ExecContext(context.WithoutCancel(r.Context()), query, args...)))
}

// neighbours makes the rows of others, beside those of the verb's keys.
func (r *trial) neighbours() {
	r.Helper()
	names := []any{r.base + "j", r.base + "k0", r.base + "l"}
	const three = "(SELECT ? AS name UNION ALL SELECT ? UNION ALL SELECT ?) n"
	r.exec("INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us) SELECT name, 1, '-', 0, 0 FROM "+three, names...)
	r.exec("INSERT INTO lockstep_once (name, fingerprint, result, done_us, keep_us) SELECT name, '-', '-', 1, 1 FROM "+three, names...)
	r.exec("INSERT INTO lockstep_jobs (name, tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us) SELECT name, 0, 0, 0, '-', 0, 0, 0, 0, '-', 0 FROM "+three, names...)
	r.exec("INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) SELECT name, slot, '-', '', 1, 0, 0, 1, 0 FROM "+three+" JOIN (SELECT -1 AS slot UNION ALL SELECT 0 UNION ALL SELECT 1) s", names...)
}

// lease makes a row of a lease that is free.
func (r *trial) lease(name string, slot, usedFor int) {
	r.Helper()
	r.exec("INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) VALUES (?, ?, '-', '', 1, 0, 0, ?, 0)", name, slot, usedFor)
}

// manager returns a manager of the pool, which removes no rows.
func (r *trial) manager() *lease.Manager {
	r.Helper()
	m := leasetest.Got(lease.NewManager(r.pool, lease.PurgeEvery(time.Hour, time.Hour*24)))(r)
	r.Cleanup(func() { _ = m.Close(context.WithoutCancel(r.Context())) }) // what it holds is of transactions that were rolled back
	return m
}

// begin begins the transaction. Nothing is sent in it on a guarded pool.
func (r *trial) begin() {
	r.Helper()
	r.conn, r.id = connection(r, r.pool)
	r.recorder.begin(r.id)
	r.tx, r.scope = begin(r, r.conn, r.level)
}

// beginBehind begins the transaction, and reads a table of the program's if it is to have a snapshot.
func (r *trial) beginBehind(reads bool) {
	r.Helper()
	r.begin()
	if reads {
		count(r, r.tx, "SELECT COUNT(*) FROM program")
	}
}

// seen is what one server shows of a verb: the names of the statements, and the locks by level.
type seen struct {
	statements []string
	locks      map[sql.IsolationLevel][]string
}

// finding is a row of the page.
type finding struct {
	verb, key string
	on        map[testdb.Engine]*seen
}

// findings collects what all trials have found.
type findings struct {
	mu     sync.Mutex
	rows   []*finding
	trials int
	gaps   []string // of the exceptions that were seen
}

func (f *findings) add(verb, key string, engine testdb.Engine, level sql.IsolationLevel, statements, locks []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trials++
	at := slices.IndexFunc(f.rows, func(row *finding) bool { return row.verb == verb && row.key == key })
	if at < 0 {
		at = len(f.rows)
		f.rows = append(f.rows, &finding{verb, key, make(map[testdb.Engine]*seen)})
	}
	s := f.rows[at].on[engine]
	if s == nil {
		s = &seen{locks: make(map[sql.IsolationLevel][]string)}
		f.rows[at].on[engine] = s
	}
	s.statements = sorted(s.statements, statements)
	s.locks[level] = sorted(s.locks[level], locks)
}

func sorted(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}

// levels are the isolation levels of the trials.
var levels = []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}

// tried are those that are tried: the servers' default alone, unless there is time for all, or
// the page is to be written.
func tried() []sql.IsolationLevel {
	if os.Getenv("LOCKSTEP_LONG") != "1" && !*updatePage {
		return levels[1:2]
	}
	return levels
}

// TestRowLocks asks the servers which locks every verb leaves in a caller's transaction: those of
// its own rows, without a gap, and no others. What it finds is on the page.
func TestRowLocks(t *testing.T) {
	t.Parallel()
	var all findings
	t.Run("on", func(t *testing.T) {
		testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
			db := testdb.Shared(t, engine).Open(t) // of its own: what others roll back leaves gaps
			db.Exec(t, "CREATE TABLE program (n INT PRIMARY KEY)")
			db.Grant(t, "program")
			db.ShowLocks(t)
			n := 0
			for _, v := range verbs {
				empty(t, db)
				for _, level := range tried() {
					for _, guards := range []bool{true, false} {
						n++
						base := fmt.Sprintf("%03d/", n)
						t.Run(fmt.Sprintf("%s/%v/guarded=%t", v, level, guards), func(t *testing.T) {
							all.try(&trial{TB: t, db: db, level: level, base: base}, v, guards)
						})
					}
				}
			}
		})
	})
	if engines := testdb.Engines(); all.trials == len(engines)*len(verbs)*len(levels)*2 {
		all.compare(t)
	}
}

// empty empties the tables, so that all rows have room in one page: from REPEATABLE READ on InnoDB
// also locks the end of the page before, if a row is the first of its page.
func empty(t *testing.T, db *testdb.DB) {
	t.Helper()
	for _, table := range []string{"locks", "once", "jobs", "leases"} {
		db.Exec(t, "TRUNCATE TABLE lockstep_"+table)
	}
}

// try calls a verb, and looks at the locks of its transaction.
func (f *findings) try(r *trial, v verb, guards bool) {
	var set func(*mysql.Config)
	r.recorder, set = record(r)
	r.pool = poolOf(r, r.db, guards, set, func(c *mysql.Config) {
		if c.Params == nil {
			c.Params = make(map[string]string)
		}
		c.Params[r.db.Engine().LevelVariable()] = "'" + strings.ReplaceAll(strings.ToUpper(r.level.String()), " ", "-") + "'"
	})
	r.neighbours()
	looked := false
	look := func(id int64, statements []string) {
		looked = true
		f.add(v.name, v.key, r.db.Engine(), r.level, statements, f.judge(r, v, r.db.Locks(r, id)))
	}
	if v.commits != "" {
		r.recorder.atCommit = func(id int64, sent []string) {
			if slices.Contains(sent, v.commits) {
				look(id, sent)
			}
		}
	}
	check(r, v.run(r))
	if r.tx != nil {
		look(r.id, r.recorder.of(r.id))
		check(r, errors.Join(r.tx.Rollback(), r.conn.Close()))
	}
	testdb.ErrorIf(r, !looked, "nobody has looked at the locks of the transaction")
}

// tickedAt is the tick of a job.
var tickedAt = time.Unix(1_700_000_000, 0)

// tick runs a tick in a transaction.
func (r *trial) tick() error {
	j, err := jobs.New(r.pool, r.manager())
	if err != nil {
		return err
	}
	ran, err := j.TickTx(r.Context(), r.key(), tickedAt, func(context.Context, *sql.Tx, time.Time) error { return nil })
	if err == nil && !ran {
		err = errors.New("the tick was not run")
	}
	return errors.Join(err, j.Close(r.Context()))
}
