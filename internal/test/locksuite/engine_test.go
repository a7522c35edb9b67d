package locksuite_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	jobs "github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// writes finds statements that lock or write.
var writes = regexp.MustCompile(`(?i)\b(insert|update|delete|replace|call|create|drop|alter|truncate|for update|for share|share mode|begin not)\b`)

// foreign is a pool of a server that answers as another engine, and a manager of leases over it.
type foreign struct {
	*sql.DB
	leases *lease.Manager
	nodes  []*lease.Manager // for a majority
	held   *lease.Lease     // of the real server
	key    txlock.Key
}

// begun calls f in a transaction.
func (on foreign) begun(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := on.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	return errors.Join(f(tx), tx.Rollback())
}

// connected calls f with a connection.
func (on foreign) connected(ctx context.Context, f func(conn *sql.Conn) error) error {
	conn, err := on.Conn(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f(conn), conn.Close())
}

func (on foreign) runner() *jobs.Jobs {
	runner, err := jobs.New(on.DB, on.leases)
	if err != nil {
		panic(err)
	}
	return runner
}

var errRan = errors.New("the function was called")

func ran(*sql.Tx) error { return errRan }

// firstCalls are the calls by which a program may begin.
var firstCalls = map[string]func(ctx context.Context, on foreign) error{
	"Join": func(ctx context.Context, on foreign) error {
		return on.begun(ctx, func(tx *sql.Tx) error { return cmp.Or(testdb.Err(txlock.Join(ctx, tx)), errRan) })
	},
	"Join of a *sql.Conn": func(ctx context.Context, on foreign) error {
		return on.connected(ctx, func(conn *sql.Conn) error {
			tx, err := conn.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			return errors.Join(testdb.Err(txlock.Join(ctx, tx, txlock.NothingRead())), tx.Rollback())
		})
	},
	"Join of none": func(ctx context.Context, on foreign) error {
		return on.connected(ctx, func(conn *sql.Conn) error { return testdb.Err(txlock.Join(ctx, noTx{conn})) })
	},
	"Run": func(ctx context.Context, on foreign) error {
		return locksqlc.Run(ctx, on.DB, []txlock.Key{on.key}, ran)
	},
	"Run of several keys": func(ctx context.Context, on foreign) error {
		return locksqlc.Run(ctx, on.DB, []txlock.Key{on.key, txlock.NewFamily[string]("engine", txlock.Hashed(), txlock.Exact()).Key("1")}, ran)
	},
	"Run at READ COMMITTED": func(ctx context.Context, on foreign) error {
		return locksqlc.Run(ctx, on.DB, []txlock.Key{on.key}, ran, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	},
	"Once":       func(ctx context.Context, on foreign) error { return testdb.Err(locksqlc.Once(ctx, on.DB, on.key, ran)) },
	"Optimistic": func(ctx context.Context, on foreign) error { return locksqlc.Optimistic(ctx, on.DB, on.key, ran) },
	"locksqlc.Do": func(ctx context.Context, on foreign) error {
		return locksqlc.Do(ctx, on.DB, on.key, func(context.Context) error { return errRan })
	},
	"Holders": func(ctx context.Context, on foreign) error { return testdb.Err(txlock.Holders(ctx, on.DB, on.key)) },
	"Ensure":  func(ctx context.Context, on foreign) error { return txlock.Ensure(ctx, on.DB, on.key) },
	"Acquire": func(ctx context.Context, on foreign) error { return testdb.Err(on.leases.Acquire(ctx, on.key)) },
	"Acquire, fair": func(ctx context.Context, on foreign) error {
		return testdb.Err(on.leases.Acquire(ctx, on.key, lease.Fair()))
	},
	"TryAcquire":    func(ctx context.Context, on foreign) error { return testdb.Err(on.leases.TryAcquire(ctx, on.key)) },
	"AcquireShared": func(ctx context.Context, on foreign) error { return testdb.Err(on.leases.AcquireShared(ctx, on.key)) },
	"AcquireTx": func(ctx context.Context, on foreign) error {
		return on.begun(ctx, func(tx *sql.Tx) error { return testdb.Err(on.leases.AcquireTx(ctx, tx, on.key)) })
	},
	"Semaphore": func(ctx context.Context, on foreign) error {
		s, err := on.leases.Semaphore(on.key, 2)
		if err == nil {
			_, err = s.TryAcquire(ctx)
		}
		return err
	},
	"ForceRelease": func(ctx context.Context, on foreign) error { return on.leases.ForceRelease(ctx, on.key) },
	"Purge":        func(ctx context.Context, on foreign) error { return testdb.Err(on.leases.Purge(ctx)) },
	"Guard": func(ctx context.Context, on foreign) error {
		return on.begun(ctx, func(tx *sql.Tx) error { return on.held.Guard(ctx, tx) })
	},
	"Do": func(ctx context.Context, on foreign) error {
		return on.leases.Do(ctx, on.key, func(context.Context, *lease.Lease) error { return errRan })
	},
	"Tick": func(ctx context.Context, on foreign) error {
		return testdb.Err(on.runner().Tick(ctx, on.key, time.Now().Add(-time.Minute), ranTick))
	},
	"job.Run": func(ctx context.Context, on foreign) error {
		return on.runner().Run(ctx, on.key, jobs.Every(time.Second), ranTick)
	},
	"job.RunTx of a job that is known": func(ctx context.Context, on foreign) error {
		return on.runner().RunTx(ctx, txlock.Named(known), jobs.Every(time.Second), func(context.Context, *sql.Tx, time.Time) error { return errRan })
	},
	"elect.Run": func(ctx context.Context, on foreign) error {
		e, err := elect.New(on.leases, on.key)
		if err != nil {
			return err
		}
		return e.Run(ctx, func(context.Context, *elect.Term) error { return errRan })
	},
	"a majority": func(ctx context.Context, on foreign) error {
		m, err := quorum.New(on.nodes, quorum.NodeTimeout(10*time.Second))
		if err != nil {
			return err
		}
		return errors.Join(testdb.Err(m.TryAcquire(ctx, on.key)), m.Close(ctx))
	},
	"Install": func(ctx context.Context, on foreign) error { return schema.Install(ctx, on.DB) },
	"Check":   func(ctx context.Context, on foreign) error { return schema.Check(ctx, on.DB) },
}

func ranTick(context.Context, time.Time) error { return errRan }

// known is the name of a job that has a row.
const known = "test:engine:known"

// noTx is a connection without a transaction.
type noTx struct{ *sql.Conn }

func (noTx) Commit() error   { return nil }
func (noTx) Rollback() error { return nil }

// onAnother calls f with pools of a server that answers as the function rewrites what it is
// asked, and with what they have sent.
func onAnother(t *testing.T, db *testdb.DB, guarded bool, rewrite func(string) string) (open func(t *testing.T) *sql.DB, wire *testdb.Wire) {
	t.Helper()
	wire, mutate := testdb.Rewritten(t, rewrite)
	return func(t *testing.T) *sql.DB { return leasetest.Pool(t, db, guarded, mutate) }, wire
}

func manage(t *testing.T, pool *sql.DB) *lease.Manager {
	t.Helper()
	m := testdb.Got(lease.NewManager(pool, lease.PurgeEvery(0, time.Hour)))(t)
	t.Cleanup(func() { _ = m.Close(context.WithoutCancel(t.Context())) })
	return m
}

// lockingCalls are those of firstCalls that take locks on TiDB and Vitess, on a guarded pool, and what they return.
var lockingCalls = map[string]error{
	"Join": errRan, "Join of a *sql.Conn": nil, "Run": errRan, "Run of several keys": errRan, "Run at READ COMMITTED": errRan, "Once": errRan, "Optimistic": errRan,
	"AcquireTx": nil,
}

// leaseCalls are those that acquire leases on TiDB and Vitess, on any pool, and what they return.
var leaseCalls = map[string]error{
	"Acquire": nil, "TryAcquire": nil, "ForceRelease": txlock.ErrNotHeld, "Purge": nil, "Do": errRan, "Tick": errRan, "elect.Run": errRan,
}

// TestOtherEngine: on TiDB and Vitess, and on a server that answers as TiDB and Vitess do, the first call of
// each kind is refused, and sends nothing that locks or writes.
func TestOtherEngine(t *testing.T) {
	t.Parallel()
	onPools(t, "", func(t *testing.T, db *testdb.DB, guarded bool) {
		db.Exec(t, "INSERT IGNORE INTO lockstep_jobs (name, tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us) VALUES ('"+known+"', 2, 2, 1, '-', 0, 0, 0, 0, '-', 0)")
		calls, rewrite, on := maps.Clone(firstCalls), locksuite.AsAnotherEngine, foreign{}
		if db.Engine().Guarded() {
			for _, name := range []string{"Guard", "Install", "Check", "job.Run", "job.RunTx of a job that is known", "a majority"} { // their packages test them
				delete(calls, name)
			}
			works, pool := maps.Clone(leaseCalls), db.Connect(t)
			if guarded {
				maps.Copy(works, lockingCalls)
				if db.Engine() == testdb.Vitess {
					delete(works, "Run at READ COMMITTED") // it may ignore that
				}
				pool = poolOf(t, db, true)
			}
			for name, want := range works {
				wants(t, name, calls[name](t.Context(), foreign{DB: pool, leases: manage(t, pool), key: unused()}), want)
				delete(calls, name)
			}
			rewrite = func(text string) string { return text }
		} else {
			on.held = testdb.Got(manage(t, db.Connect(t)).Acquire(t.Context(), unused()))(t)
		}
		open, wire := onAnother(t, db, guarded, rewrite)
		on.DB = open(t)
		for _, pool := range []*sql.DB{on.DB, open(t), open(t)} {
			on.nodes = append(on.nodes, manage(t, pool))
		}
		ctx := leasetest.Limited(t, 2*time.Minute) // of a Run that goes on
		for name, call := range calls {
			on.leases, on.key = manage(t, on.DB), unused()
			before := len(wire.Sent())
			err := call(ctx, on)
			testdb.ErrorIf(t, !errors.Is(err, schema.ErrEngine) || errors.Is(err, errRan), "%s: %v, want ErrEngine", name, err)
			for _, text := range wire.Sent()[before:] {
				testdb.ErrorIf(t, writes.MatchString(text), "%s has sent %s", name, text)
			}
			for _, table := range []string{"locks", "leases", "once", "jobs"} {
				rows := count(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_"+table+" WHERE name = ?", on.key.String())
				testdb.Equal(t, name+": rows of the key in "+table, rows, 0)
			}
		}
	})
}

// onPools runs a test on each engine with a guarded pool and with a plain one.
func onPools(t *testing.T, name string, test func(t *testing.T, db *testdb.DB, guarded bool)) {
	for _, engine := range testdb.Engines() {
		for pool, guarded := range map[string]bool{"plain": false, "guarded": true} {
			t.Run(name+string(engine)+"/"+pool, func(t *testing.T) {
				t.Parallel()
				test(t, testdb.Open(t, engine), guarded)
			})
		}
	}
}

// TestOddEngines: so is a server that answers what locks rely on, but not all as MySQL and
// MariaDB do. Only Check finds out all of it.
func TestOddEngines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text, instead string
		join, runs    bool // whether Join of a plain pool and Install find it; a guarded pool finds what Install does
	}{
		"a transaction is not seen":     {rawsql.Probe, "DO 0", true, false},
		"a transaction is always seen":  {rawsql.Probe, "SIGNAL SQLSTATE '25001' SET MYSQL_ERRNO = 1568", false, false},
		"the snapshot is that of BEGIN": {"START TRANSACTION", "START TRANSACTION WITH CONSISTENT SNAPSHOT", false, false},
		"the question isn't understood": {"(SELECT MIN(", "(SELECT MIN[", true, true},
	} {
		onPools(t, name+"/", func(t *testing.T, db *testdb.DB, guarded bool) {
			open, wire := onAnother(t, db, guarded, func(text string) string { return strings.Replace(text, c.text, c.instead, 1) })
			pool := open(t)
			wants(t, "Check", schema.Check(t.Context(), pool), schema.ErrEngine)
			if err := schema.Install(t.Context(), pool); errors.Is(err, schema.ErrEngine) != c.runs {
				t.Errorf("Install: %v", err)
			}
			switch {
			case !c.join:
				return
			case guarded && !c.runs:
				contradicted(t, pool)
				return
			}
			before := len(wire.Sent())
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{unused()}, ran)
			testdb.ErrorIf(t, !errors.Is(err, schema.ErrEngine) || slices.ContainsFunc(wire.Sent()[before:], writes.MatchString),
				"Run: %v, sent %q", err, wire.Sent()[before:])
		})
	}
}

// contradicted ends a statement by an error after which a guarded pool asks whether the
// transaction is still open. A success that says itself that it is can't be believed.
func contradicted(t *testing.T, pool *sql.DB) {
	t.Helper()
	tx := testdb.Got(pool.BeginTx(t.Context(), nil))(t)
	defer func() { _ = tx.Rollback() }()
	check(t, testdb.Err(txlock.Join(t.Context(), tx)))
	wants(t, "a statement that fails", testdb.Err(tx.ExecContext(t.Context(), "CREATE TABLE lockstep_broken (")), schema.ErrEngine)
	wants(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
}

// TestEngineBecomesAnother: a job ends when the server does not answer any more as it did, which
// a failover to another engine brings.
func TestEngineBecomesAnother(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		var another atomic.Bool
		open, _ := onAnother(t, testdb.Open(t, engine), false, func(text string) string {
			if another.Load() {
				return locksuite.AsAnotherEngine(text)
			}
			return text
		})
		on := foreign{DB: open(t)}
		on.leases = manage(t, on.DB)
		err := on.runner().Run(leasetest.Limited(t, 2*time.Minute), unused(), jobs.Every(time.Second), func(context.Context, time.Time) error {
			another.Store(true)
			return nil
		})
		testdb.ErrorIf(t, !errors.Is(err, schema.ErrEngine) || !another.Load(), "Run: %v after its first tick (%t), want ErrEngine", err, another.Load())
	})
}

// modes are the modes of sql_mode. A server refuses those of the other and of other versions.
const modes = "ALLOW_INVALID_DATES,ANSI,ANSI_QUOTES,DB2,EMPTY_STRING_IS_NULL,ERROR_FOR_DIVISION_BY_ZERO,HIGH_NOT_PRECEDENCE,IGNORE_BAD_TABLE_OPTIONS," +
	"IGNORE_SPACE,MAXDB,MSSQL,MYSQL323,MYSQL40,NO_AUTO_CREATE_USER,NO_AUTO_VALUE_ON_ZERO,NO_BACKSLASH_ESCAPES,NO_DIR_IN_CREATE,NO_ENGINE_SUBSTITUTION," +
	"NO_FIELD_OPTIONS,NO_KEY_OPTIONS,NO_TABLE_OPTIONS,NO_UNSIGNED_SUBTRACTION,NO_ZERO_DATE,NO_ZERO_IN_DATE,ONLY_FULL_GROUP_BY,ORACLE," +
	"PAD_CHAR_TO_FULL_LENGTH,PIPES_AS_CONCAT,POSTGRESQL,REAL_AS_FLOAT,SIMULTANEOUS_ASSIGNMENT,STRICT_ALL_TABLES,STRICT_TRANS_TABLES," +
	"TIME_ROUND_FRACTIONAL,TIME_TRUNCATE_FRACTIONAL,TRADITIONAL"

// querier is a *sql.Conn or *sql.Tx.
type querier interface {
	gen.DBTX
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// harmless asks what a session says about itself, as a text and prepared, and fails unless the
// server is known by each answer, and LAST_INSERT_ID() is what it was.
func harmless(t *testing.T, what string, db querier, name string) {
	t.Helper()
	for _, was := range []uint64{0, math.MaxUint64} {
		var set, is uint64
		check(t, db.QueryRowContext(t.Context(), fmt.Sprintf("SELECT LAST_INSERT_ID(%d)", was)).Scan(&set))
		for _, d := range []gen.DBTX{db, &rawsql.Text{DBTX: db, Inline: true}} {
			job, jobErr := gen.New().LookJob(t.Context(), d, []byte(name))
			facts, factsErr := session.Ask(t.Context(), d)
			wants(t, what, errors.Join(jobErr, factsErr, session.Fit(job.Words), facts.Unfit), nil)
		}
		check(t, db.QueryRowContext(t.Context(), "SELECT LAST_INSERT_ID()").Scan(&is))
		testdb.Equal(t, what+": LAST_INSERT_ID()", is, was)
	}
}

// TestEngineIsKnown: MySQL and MariaDB are known in every sql_mode, at every isolation level, in transactions and
// outside. Who is asked keeps the LAST_INSERT_ID() of the session, and a transaction takes no snapshot for it.
func TestEngineIsKnown(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db, name := testdb.Open(t, engine), unused().String()
		check(t, gen.New().MakeJob(t.Context(), db.Admin(), gen.MakeJobParams{Name: []byte(name)}))
		conn, _ := connection(t, db.Connect(t))
		harmless(t, "default", conn, name)
		tried := 0
		for mode := range strings.SplitSeq(","+modes, ",") {
			_, err := conn.ExecContext(t.Context(), "SET SESSION sql_mode = '"+mode+"'")
			if refused := new(mysql.MySQLError); errors.As(err, &refused) && (refused.Number == 1231 || refused.Number == 3899) {
				continue // ER_WRONG_VALUE_FOR_VAR, ER_UNSUPPORTED_SQL_MODE
			}
			check(t, err)
			tried++
			harmless(t, "sql_mode "+mode, conn, name)
		}
		testdb.ErrorIf(t, tried < 15, "only %d modes were tried", tried)
		for _, setting := range []string{"sql_mode = DEFAULT", "sql_select_limit = 1", "sql_safe_updates = 1", "big_tables = 1", "optimizer_switch = 'derived_merge=off'"} {
			exec(t, conn, "SET SESSION "+setting)
			harmless(t, setting, conn, name)
		}
		for _, level := range append(levels, sql.LevelReadUncommitted) {
			for _, readOnly := range []bool{false, true} {
				options := sql.TxOptions{Isolation: level, ReadOnly: readOnly}
				tx := testdb.Got(conn.BeginTx(t.Context(), &options))(t)
				const token = "SELECT token FROM lockstep_jobs WHERE name = ?"
				check(t, testdb.Err(session.Ask(t.Context(), tx))) // the one that is asked in transactions
				before := count(t, db.Admin(), token, name)
				db.Exec(t, "UPDATE lockstep_jobs SET token = token + 1 WHERE name = '"+name+"'")
				testdb.Equal(t, fmt.Sprintf("%+v: what the transaction reads", options), count(t, tx, token, name), before+1)
				harmless(t, fmt.Sprintf("%+v", options), tx, name)
				check(t, tx.Rollback())
			}
		}
	})
}
