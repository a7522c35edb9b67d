// Package mistakes makes the mistakes of newcomers, and reads what the errors say: what was
// wrong, what has become of the transaction, and what to do.
package mistakes

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// page has the table for people.
const page = "README.md"

var (
	update = flag.Bool("update", false, "write README.md")
	show   = flag.Bool("show", false, "show the texts of all errors")
)

// state is what has become of the transaction in which a mistake is made.
type state string

const (
	none   state = "there is none"
	goesOn state = "stays open"
	// mustNot continue, since it reads old data; MySQL would commit it.
	mustNot state = "must not continue: roll back"
	isOver  state = "has ended: roll back"
	// What has come to its end before the mistake was noticed.
	rolledBack state = "has ended, rolled back"
	committed  state = "has ended, committed by that statement"
)

// mistake is one, and what its error must say.
type mistake struct {
	what string
	do   func(s *shop) error
	is   error // nil: there is no sentinel
	says []string
	tx   state
}

// TestMistakes makes each of them on each server.
func TestMistakes(t *testing.T) {
	t.Parallel()
	all := slices.Concat(ofKeys, ofTransactions, ofServers, ofLeases, ofJobs, ofGORM)
	testdb.ErrorIf(t, len(all) < 55, "there are %d mistakes, newcomers make 55", len(all))
	compare(t, all)
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).OpenLeases(t)
		db.Exec(t, "CREATE TABLE notes (text VARCHAR(200) NOT NULL PRIMARY KEY)")
		db.Exec(t, "CREATE TABLE articles (id BIGINT NOT NULL PRIMARY KEY, text VARCHAR(100) NOT NULL, version BIGINT NOT NULL)")
		db.Exec(t, "CREATE TABLE parcels (id BIGINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL)")
		db.Exec(t, "CREATE TABLE users (name VARCHAR(50) NOT NULL PRIMARY KEY, n BIGINT NOT NULL) DEFAULT CHARACTER SET utf8mb4")
		for i, m := range all {
			t.Run(m.what, func(t *testing.T) { newShop(t, db, i).makes(m) })
		}
	})
}

// shop is a program that makes a mistake.
type shop struct {
	*testing.T
	ctx   context.Context
	db    *testdb.DB
	pool  *sql.DB
	order txlock.Key // of no other mistake
	id    int64

	tx    *sql.Tx // in which it is made
	reads bool    // which has no table to write to, or may not write
}

func newShop(t *testing.T, db *testdb.DB, i int) *shop {
	s := &shop{T: t, ctx: t.Context(), db: db, id: int64(i + 1)}
	s.pool = s.open(db.AdminDSN())
	s.order = txlock.NewFamily[int64]("order").Key(s.id)
	return s
}

// open opens a guarded pool.
func (s *shop) open(dsn string) *sql.DB {
	s.Helper()
	pool := testdb.Got(locksqlc.Open(dsn))(s)
	s.Cleanup(func() { _ = pool.Close() })
	return pool
}

func (s *shop) must(err error) { s.Helper(); testdb.Must(s, err) }

// makes makes a mistake, and looks at its error and at the transaction.
func (s *shop) makes(m mistake) {
	s.Helper()
	err := m.do(s)
	if *show {
		s.Logf("%v", err)
	}
	testdb.FatalIf(s, err == nil || m.is != nil && !errors.Is(err, m.is), "%v, want %v", err, m.is)
	for _, want := range m.says {
		testdb.ErrorIf(s, !strings.Contains(err.Error(), want), "%q doesn't say %q", err, want)
	}
	switch m.tx {
	case goesOn:
		if s.reads {
			s.must(testdb.Err(s.tx.ExecContext(s.ctx, "DO 1")))
			s.must(s.tx.Commit())
			return
		}
		s.must(testdb.Err(s.tx.ExecContext(s.ctx, "INSERT INTO notes VALUES (?)", m.what)))
		s.must(s.tx.Commit())
		var found int
		s.must(s.pool.QueryRowContext(s.ctx, "SELECT COUNT(*) FROM notes WHERE text = ?", m.what).Scan(&found))
		testdb.ErrorIf(s, found != 1, "the transaction has not gone on")
	case isOver:
		err := s.tx.Commit()
		testdb.ErrorIf(s, err == nil, "the transaction was committed")
	}
}

// begin begins the transaction of the mistake, and joins it.
func (s *shop) begin() *txlock.Scope {
	s.Helper()
	s.tx = s.beginOn(s.pool)
	return testdb.Got(locksqlc.Join(s.ctx, s.tx))(s)
}

func (s *shop) beginOn(pool *sql.DB) *sql.Tx {
	s.Helper()
	tx := testdb.Got(pool.BeginTx(s.ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead}))(s)
	s.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// other is a transaction of somebody else, who has a lock.
func (s *shop) other(key txlock.Key) (*sql.Tx, *txlock.Scope) {
	s.Helper()
	s.must(txlock.Ensure(s.ctx, s.pool, key))
	tx := s.beginOn(s.pool)
	scope := testdb.Got(locksqlc.Join(s.ctx, tx))(s)
	s.must(testdb.Err(scope.Lock(s.ctx, key)))
	return tx, scope
}

// manager makes a manager of leases.
func (s *shop) manager(options ...lease.ManagerOption) *lease.Manager {
	s.Helper()
	m := testdb.Got(lease.NewManager(s.pool, append([]lease.ManagerOption{lease.PurgeEvery(0, time.Hour)}, options...)...))(s)
	s.Cleanup(func() { _ = m.Close(context.WithoutCancel(s.ctx)) })
	return m
}

// gorm opens GORM with the plugin on the pool.
func (s *shop) gorm() *gorm.DB {
	s.Helper()
	db := testdb.Got(gorm.Open(gormmysql.New(gormmysql.Config{Conn: s.pool}), &gorm.Config{Logger: logger.Discard}))(s)
	s.must(db.Use(lockgorm.New()))
	return db.WithContext(s.ctx)
}

// elsewhere is another database, with the tables of lockstep; its hashed keys have no rows.
func (s *shop) elsewhere() *testdb.DB {
	s.Helper()
	db := testdb.Fresh(s, s.db.Engine())
	statements := testdb.Got(schema.Statements())(s)
	for _, statement := range statements {
		if !strings.HasPrefix(statement, "INSERT") {
			db.Exec(s, statement)
		}
	}
	return db
}

// dsn is the pool's, changed.
func (s *shop) dsn(change func(*mysql.Config)) string { return s.db.AdminDSN(change) }

// compare compares the page with the table.
func compare(t *testing.T, all []mistake) {
	t.Helper()
	text, err := os.ReadFile(page)
	testdb.FatalIf(t, err != nil && !*update, "%v", err)
	const begin, end = "<!-- mistakes -->\n", "<!-- end -->\n"
	before, rest, _ := strings.Cut(string(text), begin)
	_, after, _ := strings.Cut(rest, end)
	var b strings.Builder
	b.WriteString("\n| mistake | the error says | the transaction |\n|---|---|---|\n")
	for _, m := range all {
		var says []string
		for _, s := range m.says {
			says = append(says, "`"+s+"`")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", m.what, strings.Join(says, ", "), m.tx)
	}
	b.WriteString("\n")
	if *update {
		text := before + begin + b.String() + end + after
		err := os.WriteFile(page, []byte(text), 0o644)
		testdb.FatalIf(t, err != nil, "%v", err)
	} else if !strings.Contains(string(text), begin+b.String()+end) {
		t.Errorf("%s has another table: run go test ./mistakes -update in the directory tests", page)
	}
}

// noContext is what is handed over by mistake.
var noContext context.Context

// TestNoContext calls every verb without a context: it is refused, or panics, before
// anything is taken, so that the one connection of the pool serves the next caller.
func TestNoContext(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).OpenLeases(t)
		for i, verbs := range append(ofLocks, onPools, others) {
			for name, verb := range verbs {
				s := newShop(t, db, 1_000_000+i)
				s.pool.SetMaxOpenConns(1)
				s.order = txlock.Named(fmt.Sprintf("no context/%d/%s", i, name))
				survives(s, name, verb)
			}
		}
	})
}

// survives calls a verb, and uses the pool afterwards. If the verb has left a mutex of the
// pool locked, idle of the pool returns.
func survives(s *shop, name string, verb func(s *shop) error) {
	s.Helper()
	inTime := func(call func() error) error {
		s.Helper()
		done := make(chan error, 1)
		go func() { done <- call() }()
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			panic(name + " without a context leaves the pool hung") // as would to close it, at the end of the test
		}
	}
	if err := inTime(func() (err error) {
		defer func() {
			if recover() != nil {
				err = nil
			}
		}()
		if verb(s) == nil {
			return errors.New("it succeeds")
		}
		return nil
	}); err != nil {
		s.Errorf("%s without a context: %v", name, err)
	}
	if s.tx != nil {
		_ = s.tx.Rollback()
	}
	s.must(inTime(func() error { return s.pool.PingContext(s.ctx) }))
}

// keys are those of a shop.
func (s *shop) keys() []txlock.Key { return []txlock.Key{s.order} }

var onPools = calls(
	locksqlc.Run, locksqlc.Optimistic, locksqlc.Do, locksqlc.TryDo, locksqlc.Once, locksqlc.OnceValue[int], job.Tick, job.TickTx,
	txlock.Purge, txlock.Ensure, txlock.CheckGuarded, txlock.Holders, txlock.PurgeOnce, txlock.ReadVersion,
	schema.Check, schema.CheckCluster, schema.Install, schema.InstallViews,
	txlock.Join, txlock.AssertLocked, txlock.AssertRLocked, // in transactions
)

var others = map[string]func(s *shop) error{
	"CheckColumns": func(s *shop) error {
		return txlock.NewFamily[int]("f").CheckColumns(noContext, s.pool, "lockstep_locks", "name")
	},
	"JoinConn": func(s *shop) error {
		conn := testdb.Got(s.pool.Conn(s.ctx))(s)
		defer func() { s.must(conn.Close()) }()
		return testdb.Err(locksqlc.JoinConn(noContext, conn))
	},
	"WaitAtMost": func(s *shop) error { return testdb.Err(s.begin().WaitAtMost(time.Second).Lock(noContext, s.order)) },
	"CommitWith": func(s *shop) error {
		scope := s.begin()
		return testdb.Err(s.tx.ExecContext(scope.CommitWith(noContext, txlock.AnyRows), "DELETE FROM lockstep_once"))
	},
	"LockWith": func(s *shop) error {
		scope := s.begin()
		rows, err := s.tx.QueryContext(scope.LockWith(noContext, s.order), "SELECT 1")
		if err == nil {
			s.must(rows.Close())
		}
		return err
	},
}

// calls returns the calls of functions that take a context and return an error, by their names.
func calls(verbs ...any) map[string]func(s *shop) error {
	all := make(map[string]func(s *shop) error)
	for _, verb := range verbs {
		f := reflect.ValueOf(verb)
		all[path.Base(runtime.FuncForPC(f.Pointer()).Name())] = func(s *shop) error { return s.call(f) }
	}
	return all
}

// methods returns the calls of all methods of T that take a context and return an error.
func methods[T any](of func(s *shop) T) map[string]func(s *shop) error {
	all, t := make(map[string]func(s *shop) error), reflect.TypeFor[T]()
	for i := range t.NumMethod() {
		verb := t.Method(i).Type
		if verb.NumIn() < 2 || verb.In(1) != reflect.TypeFor[context.Context]() || verb.Out(verb.NumOut()-1) != reflect.TypeFor[error]() {
			continue
		}
		all[fmt.Sprintf("%v.%s", t, t.Method(i).Name)] = func(s *shop) error { return s.call(t.Method(i).Func, reflect.ValueOf(of(s))) }
	}
	return all
}

// call calls a function, or a method of a receiver, without a context.
func (s *shop) call(f reflect.Value, args ...reflect.Value) error {
	s.Helper()
	of := f.Type()
	args = append(args, reflect.Zero(reflect.TypeFor[context.Context]()))
	for j := len(args); j < of.NumIn(); j++ {
		if arg := s.argument(of.In(j)); !of.IsVariadic() || j < of.NumIn()-1 {
			args = append(args, arg)
		} else if of.In(j) == reflect.TypeFor[[]txlock.Key]() { // others are options
			args = append(args, arg.Index(0))
		}
	}
	results := f.Call(args)
	err, _ := results[len(results)-1].Interface().(error)
	return err
}

// argument returns a value of a type that a verb takes, behind its context.
func (s *shop) argument(of reflect.Type) reflect.Value {
	s.Helper()
	switch of {
	case reflect.TypeFor[txlock.Key]():
		return reflect.ValueOf(s.order)
	case reflect.TypeFor[[]txlock.Key]():
		return reflect.ValueOf(s.keys())
	case reflect.TypeFor[txlock.Tx]():
		s.begin()
		return reflect.ValueOf(s.tx)
	case reflect.TypeFor[time.Time]():
		return reflect.ValueOf(time.Now())
	case reflect.TypeFor[time.Duration]():
		return reflect.ValueOf(1000 * time.Hour)
	case reflect.TypeFor[job.Schedule]():
		return reflect.ValueOf(job.Every(time.Hour))
	}
	if of.Kind() == reflect.Func {
		return reflect.MakeFunc(of, func([]reflect.Value) (results []reflect.Value) {
			for i := range of.NumOut() {
				results = append(results, reflect.Zero(of.Out(i)))
			}
			return results
		})
	}
	if pool := reflect.ValueOf(s.pool); pool.Type().AssignableTo(of) {
		return pool
	}
	return reflect.Zero(of)
}

var ofLocks = []map[string]func(s *shop) error{
	methods((*shop).begin),
	methods(func(s *shop) *lease.Manager { return s.manager() }),
	methods(func(s *shop) *lease.Semaphore { return s.permit(2) }),
	methods(func(s *shop) *lease.Lease {
		return testdb.Got(s.manager().Acquire(s.ctx, s.order))(s)
	}),
	methods((*shop).jobs),
	methods((*shop).election),
	methods(func(s *shop) *quorum.Manager {
		managers := []*lease.Manager{s.manager()}
		for range 2 {
			node := testdb.Got(lease.NewManager(s.open(s.db.AdminDSN()), lease.PurgeEvery(0, time.Hour)))(s)
			managers = append(managers, node)
		}
		return testdb.Got(quorum.New(managers))(s)
	}),
	{"Observe": func(s *shop) error {
		for _, err := range s.election().Observe(noContext) {
			return err
		}
		return errors.New("Observe has ended")
	}},
}

func (s *shop) election() *elect.Election {
	s.Helper()
	return testdb.Got(elect.New(s.manager(), s.order))(s)
}
