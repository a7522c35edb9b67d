package locksuite_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/internal/test/tools/checkqueries"
	"github.com/dca00107/lockstep/locksqlc"
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
	check(r, testdb.Err(r.db.Admin().ExecContext(context.WithoutCancel(r.Context()), query, args...)))
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
	m := testdb.Got(lease.NewManager(r.pool, lease.PurgeEvery(time.Hour, time.Hour*24)))(r)
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

// verb is what a trial calls, or does until its COMMIT.
type verb struct {
	name, key string
	how       string // tells trials of one row of the page from each other
	run       func(r *trial) error
	commits   string // of a verb that commits: a statement that it has sent then
}

func (v verb) String() string { return strings.TrimSpace(v.name + ", " + v.key + " " + v.how) }

// exception is a verb that may lock a gap, at some levels.
type exception struct {
	verb, key string
	levels    []sql.IsolationLevel
	why       string
}

// gaps are all exceptions.
var gaps = []exception{
	{"Version", "new", levels[2:], missingRow},
	{"CompareAndBump", "new", levels[2:], missingRow},
	{"TryLock", "new", levels[2:], missingRow + ": on MySQL, on a pool that isn't guarded"},
	{"TryRLock", "new", levels[2:], missingRow + ": on MySQL, on a pool that isn't guarded"},
	{"WaitAtMost, Lock", "new", levels[2:], missingRow + ": on MySQL, on a pool that isn't guarded"},
	{"WaitAtMost, RLock", "new", levels[2:], missingRow + ": on MySQL, on a pool that isn't guarded"},
}

const missingRow = "a plain read of a row that is missing locks its place at SERIALIZABLE"

// judge returns the locks as the page shows them, and reports those that must not be.
func (f *findings) judge(r *trial, v verb, locks []testdb.Lock) (shown []string) {
	r.Helper()
	for _, l := range locks {
		table, ours := strings.CutPrefix(l.Table, "lockstep_")
		seal := strings.HasPrefix(l.Name, "\xFFlockstep:seal:") && !l.Gap // of SealOnce, on a server without a binary log
		if !ours || strings.HasPrefix(l.Mode, "I") || seal {              // the program's, or an intention
			continue
		}
		what := l.Mode + " `" + table + "`"
		switch {
		case l.Gap:
			what = l.Mode + "+gap `" + table + "`"
			at := slices.IndexFunc(gaps, func(g exception) bool {
				return g.verb == v.name && g.key == v.key && slices.Contains(g.levels, r.level)
			})
			if at < 0 {
				r.Errorf("%s at %v locks a gap: %+v", v, r.level, l)
			} else {
				f.mu.Lock()
				f.gaps = append(f.gaps, v.name+", "+v.key)
				f.mu.Unlock()
			}
		case !r.owns(l):
			what += " of another key"
			r.Errorf("%s at %v locks the row of another key: %+v", v, r.level, l)
		}
		shown = append(shown, what)
	}
	return sorted(shown)
}

// ofScope is a verb of a scope, with a key that is new, known to this process, or made by
// another, as the first of its transaction or behind a read.
func ofScope(name string, call func(r *trial, ctx context.Context) error) (all []verb) {
	for _, state := range []string{"new", "known", "unseen"} {
		key := map[bool]string{true: "new", false: "existing"}[state == "new"]
		all = append(all, twice(verb{name: name, key: key, how: state}, func(r *trial) { r.make(state) }, call)...)
	}
	return all
}

// twice is a verb as the first of its transaction, and behind a read.
func twice(v verb, prepare func(r *trial), call func(r *trial, ctx context.Context) error) (all []verb) {
	for _, reads := range []bool{false, true} {
		all = append(all, verb{name: v.name, key: v.key, how: fmt.Sprintf("%s after a read: %t", v.how, reads), run: func(r *trial) error {
			prepare(r)
			r.beginBehind(reads)
			return call(r, r.Context())
		}})
	}
	return all
}

// make makes the rows of the verb's keys.
func (r *trial) make(state string) {
	r.Helper()
	switch state {
	case "known":
		check(r, txlock.Ensure(r.Context(), r.db.Admin(), r.key(), r.second()))
	case "unseen":
		r.exec("INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us) VALUES (?, 0, '-', 0, 0), (?, 0, '-', 0, 0)", r.key().String(), r.second().String())
	}
}

// ofHashed is a verb of a scope with a hashed key.
func ofHashed(name string, call func(r *trial, ctx context.Context) error) []verb {
	return twice(verb{name: name, key: "hashed"}, func(*trial) {}, call)
}

// compare is CompareAndBump with the version that a row has.
func compare(ctx context.Context, r *trial, key txlock.Key) error {
	var version uint64
	err := r.db.Admin().QueryRowContext(ctx, "SELECT token FROM lockstep_centers WHERE slot = ?", key.Slot()).Scan(&version)
	if err != nil {
		return err
	}
	return r.scope.CompareAndBump(ctx, key, version)
}

// verbs are all that send statements in a caller's transaction.
var verbs = slices.Concat(
	ofScope("Lock", func(r *trial, ctx context.Context) error { return testdb.Err(r.scope.Lock(ctx, r.key())) }),
	ofScope("TryLock", func(r *trial, ctx context.Context) error { return testdb.Err(r.scope.TryLock(ctx, r.key())) }),
	ofScope("RLock", func(r *trial, ctx context.Context) error { return testdb.Err(r.scope.RLock(ctx, r.key())) }),
	ofScope("TryRLock", func(r *trial, ctx context.Context) error { return testdb.Err(r.scope.TryRLock(ctx, r.key())) }),
	ofScope("WaitAtMost, Lock", func(r *trial, ctx context.Context) error {
		return testdb.Err(r.scope.WaitAtMost(time.Minute).Lock(ctx, r.key()))
	}),
	ofScope("WaitAtMost, RLock", func(r *trial, ctx context.Context) error {
		return testdb.Err(r.scope.WaitAtMost(time.Minute).RLock(ctx, r.key()))
	}),
	ofScope("LockAll", func(r *trial, ctx context.Context) error {
		return testdb.Err(r.scope.LockAll(ctx, r.second(), r.key()))
	}),
	ofScope("RLockAll", func(r *trial, ctx context.Context) error {
		return testdb.Err(r.scope.RLockAll(ctx, r.second(), r.key()))
	}),
	ofScope("CompareAndBump", func(r *trial, ctx context.Context) error { return r.scope.CompareAndBump(ctx, r.key(), 0) }),
	ofScope("Version", func(r *trial, ctx context.Context) error { return testdb.Err(r.scope.Version(ctx, r.key())) }),
	ofHashed("Lock", func(r *trial, ctx context.Context) error { return testdb.Err(r.scope.Lock(ctx, r.hashed())) }),
	ofHashed("TryLock", func(r *trial, ctx context.Context) error { return testdb.Err(r.scope.TryLock(ctx, r.hashed())) }),
	ofHashed("RLock", func(r *trial, ctx context.Context) error { return testdb.Err(r.scope.RLock(ctx, r.hashed())) }),
	ofHashed("LockAll", func(r *trial, ctx context.Context) error {
		return testdb.Err(r.scope.LockAll(ctx, r.hashed(), hashed.Key("kk")))
	}),
	ofHashed("CompareAndBump", func(r *trial, ctx context.Context) error { return compare(ctx, r, r.hashed()) }),
	ofHashed("Version", func(r *trial, ctx context.Context) error { return testdb.Err(r.scope.Version(ctx, r.hashed())) }),
	onceVerbs, leaseVerbs,
	[]verb{{name: "job.TickTx", key: "existing", run: (*trial).tick, commits: "JobDone"}},
)

// onceVerbs are Once of a key that is new, that was asked for, and whose time is over, and OnceValue.
var onceVerbs = []verb{
	onceOf("new", 0), onceOf("existing", 3600e6), onceOf("expired", 1),
	{name: "OnceValue, to its COMMIT", key: "new", run: (*trial).onceValue, commits: "AnswerOnce"},
	{name: "OnceValue, to its COMMIT", key: "existing", commits: "SealOnce", run: func(r *trial) error {
		return errors.Join(r.onceValue(), r.onceValue())
	}},
	{name: "Once, to its COMMIT", key: "new, kept for a microsecond", commits: "ProlongOnce", run: func(r *trial) error {
		return testdb.Err(locksqlc.Once(r.Context(), r.pool, r.key(), func(*sql.Tx) error { return nil }, txlock.Keep(time.Microsecond)))
	}},
}

func (r *trial) onceValue() error {
	_, _, err := locksqlc.OnceValue(r.Context(), r.pool, r.key(), func(*sql.Tx) (int, error) { return 7, nil })
	return err
}

func onceOf(key string, keepUs int) verb {
	return verb{name: "Once", key: key, run: func(r *trial) error {
		if keepUs > 0 {
			r.exec("INSERT INTO lockstep_once (name, fingerprint, result, done_us, keep_us) VALUES (?, '-', '-', UNIX_TIMESTAMP() * 1000000 - 1000000, ?)", r.key().String(), keepUs)
		}
		r.begin()
		return testdb.Err(r.scope.Once(r.Context(), r.key()))
	}}
}

// leaseVerbs are Guard and AcquireTx of leases in several states.
var leaseVerbs = slices.Concat(
	twice(verb{name: "Lease.Guard", key: "held"}, func(r *trial) {
		r.held = testdb.Got(r.manager().TryAcquire(r.Context(), r.key()))(r)
	}, func(r *trial, ctx context.Context) error { return r.held.Guard(ctx, r.tx) }),
	acquireTx("new", func(*trial) {}),
	[]verb{{name: "AcquireTx", key: "acquired in this transaction", run: func(r *trial) error {
		m, ctx := r.manager(), lease.WithOwner(r.Context(), r.base)
		r.begin()
		_, err := m.AcquireTx(ctx, r.tx, r.key())
		return errors.Join(err, testdb.Err(m.AcquireTx(ctx, r.tx, r.key())))
	}}},
	acquireTx("free, no connection left", func(r *trial) {
		r.pool.SetMaxOpenConns(1)
		r.lease(r.key().String(), 0, 0)
	}),
	acquireTx("free", func(r *trial) { r.lease(r.key().String(), 0, 0) }),
	acquireTx("expired", func(r *trial) {
		r.lease(r.key().String(), 0, 0)
		r.exec("UPDATE lockstep_leases SET owner = 'other', holders = ';12345678', ttl_us = 1, expires_us = 1 WHERE name = ? AND slot = 0", r.key().String())
	}),
	acquireTx("formerly shared", func(r *trial) {
		for slot := range 3 {
			r.lease(r.key().String(), slot, 1)
		}
	}),
)

// acquireTx is AcquireTx of a lease whose rows prepare makes.
func acquireTx(key string, prepare func(r *trial)) []verb {
	return twice(verb{name: "AcquireTx", key: key}, func(r *trial) {
		prepare(r)
		r.leases = r.manager()
	}, func(r *trial, ctx context.Context) error { return testdb.Err(r.leases.AcquireTx(ctx, r.tx, r.key())) })
}

var updatePage = flag.Bool("update", false, "write what TestRowLocks finds into its page")

const (
	lockPage   = "../../../docs/reference/statements-in-your-transaction.md"
	tableBegin = "| verb | key | statements | locks on MariaDB | locks on MySQL |\n|---|---|---|---|---|\n"
)

// compare compares the page with what was found. A server of another version may send fewer
// statements than are on the page.
func (f *findings) compare(t *testing.T) {
	t.Helper()
	page := testdb.Got(os.ReadFile(lockPage))(t)
	head, table, found := strings.Cut(string(page), tableBegin)
	testdb.FatalIf(t, !found, "%s has no table", lockPage)
	table, rest, _ := strings.Cut(table, "\n\n")
	both := len(testdb.Engines()) == 2
	if *updatePage && both {
		var lines []string
		for _, row := range f.inOrder() {
			lines = append(lines, "| "+strings.Join(row.cells(), " | ")+" |")
		}
		check(t, os.WriteFile(lockPage, []byte(head+tableBegin+strings.Join(lines, "\n")+"\n\n"+rest), 0o644))
		return
	}
	lines := make(map[string][]string)
	for line := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		lines[strings.Join(cells[:min(2, len(cells))], ", ")] = cells
	}
	for _, row := range f.inOrder() {
		cells, name := row.cells(), row.verb+", "+row.key
		testdb.ErrorIf(t, len(lines[name]) != len(cells) || !row.isOn(lines[name]),
			"%s: the line of %s isn't true: write the page by -update. It was found:\n| %s |", lockPage, name, strings.Join(cells, " | "))
		delete(lines, name)
	}
	for name := range lines {
		t.Errorf("%s: nothing was found of %s: write the page by -update", lockPage, name)
	}
	if both && os.Getenv("LOCKSTEP_PROCEDURES") == "" {
		f.isComplete(t)
	}
}

// inOrder returns the findings in the order of the verbs.
func (f *findings) inOrder() []*finding {
	place := func(row *finding) int {
		return slices.IndexFunc(verbs, func(v verb) bool { return v.name == row.verb && v.key == row.key })
	}
	slices.SortFunc(f.rows, func(a, b *finding) int { return place(a) - place(b) })
	return f.rows
}

// statements are the names of the statements on all servers.
func (row *finding) statements() (names []string) {
	for _, s := range row.on {
		names = sorted(names, s.statements)
	}
	return names
}

// cells are the cells of a finding.
func (row *finding) cells() []string {
	statements := row.statements()
	for i, name := range statements {
		statements[i] = "`" + name + "`"
	}
	return []string{row.verb, row.key, strings.Join(statements, " "), row.on[testdb.MariaDB].text(), row.on[testdb.MySQL].text()}
}

// isOn tells whether the cells of the page are true of a finding.
func (row *finding) isOn(page []string) bool {
	cells, listed := row.cells(), strings.Fields(page[2])
	for _, name := range strings.Fields(cells[2]) {
		if !slices.Contains(listed, name) {
			return false
		}
	}
	return (row.on[testdb.MariaDB] == nil || cells[3] == page[3]) && (row.on[testdb.MySQL] == nil || cells[4] == page[4])
}

// text is the cell of the locks: those at every level, or where they differ by level.
func (s *seen) text() string {
	if s == nil {
		return ""
	}
	at := func(level sql.IsolationLevel) string {
		if len(s.locks[level]) == 0 {
			return "none"
		}
		return strings.Join(s.locks[level], ", ")
	}
	text, before := at(levels[0]), at(levels[0])
	for i, level := range levels {
		now, words := at(level), "from "
		if i == len(levels)-1 {
			words = "at "
		}
		if now != before {
			text, before = text+"; "+words+strings.ToUpper(level.String())+": "+now, now
		}
	}
	return text
}

// isComplete checks that every query that is said to run in callers' transactions was seen there,
// no other, and every exception.
func (f *findings) isComplete(t *testing.T) {
	t.Helper()
	queries := testdb.Got(checkqueries.Places("../../../queries"))(t)
	var sent []string
	for _, row := range f.rows {
		names := row.statements()
		sent = append(sent, names...)
		for _, name := range names {
			if query, ok := queries[name]; ok && !query.InCallers || strings.Contains(name, " ") {
				t.Errorf("%s, %s sends %s, which is said to run in no caller's transaction", row.verb, row.key, name)
			}
		}
	}
	for name, query := range queries {
		testdb.ErrorIf(t, query.InCallers && !slices.Contains(sent, name), "no verb has sent %s, which is said to run in callers' transactions", name)
	}
	for _, g := range gaps {
		testdb.ErrorIf(t, !slices.Contains(f.gaps, g.verb+", "+g.key), "%s, %s locks no gap: it needs no exception", g.verb, g.key)
	}
}
