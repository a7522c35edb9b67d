package job

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// open returns jobs on a pool, with a short TTL.
func open(t testing.TB, pool *sql.DB, opts ...Option) *Jobs {
	t.Helper()
	leases := testdb.Got(lease.NewManager(pool, lease.TTL(time.Minute)))(t)
	jobs := testdb.Got(New(pool, leases, opts...))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		must(t, errors.Join(jobs.Close(ctx), leases.Close(ctx)))
	})
	return jobs
}

func newKey() txlock.Key { return txlock.Named("test:" + rand.Text()) }

// serverNow is the server's clock.
func serverNow(t testing.TB, j *Jobs) time.Time {
	t.Helper()
	_, now, err := j.ledger.look(t.Context(), "no such job")
	must(t, err)
	return now
}

// TestTickOnServers proves that of many who ask for an instant at once one works, on guarded and plain pools, and
// that the table tells of it, also where SELECTs show one row (sql_select_limit).
func TestTickOnServers(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				table := db.CreateTable(t, "ticks", "id BIGINT PRIMARY KEY AUTO_INCREMENT, job VARCHAR(10)")
				pool := newPool(t, db, guarded)
				pool.SetMaxOpenConns(8)
				key, keyTx := newKey(), newKey()
				at := serverNow(t, open(t, pool))
				var calls, ran atomic.Int64
				var group sync.WaitGroup
				for i := range 10 {
					j := open(t, pool, InstanceName(fmt.Sprint("process ", i)))
					group.Go(func() {
						did, err := j.Tick(t.Context(), key, at, func(context.Context, time.Time) error {
							calls.Add(1)
							return nil
						})
						wants(t, "Tick", err, nil)
						if did {
							ran.Add(1)
						}
					})
					group.Go(func() {
						wants(t, "TickTx", testdb.Err(j.TickTx(t.Context(), keyTx, at, func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
							return testdb.Err(tx.ExecContext(ctx, "INSERT INTO "+table+" (job) VALUES ('tx')"))
						})), nil)
					})
				}
				group.Wait()
				testdb.ErrorIf(t, calls.Load() != 1 || ran.Load() != 1, "%d calls, %d have run", calls.Load(), ran.Load())
				testdb.Equal(t, "rows", db.Number(t, "SELECT COUNT(*) FROM "+table), 1)
				j := open(t, newPool(t, db, guarded, func(cfg *mysql.Config) { cfg.Params = map[string]string{"sql_select_limit": "1"} }))
				if s := statusOf(t, j, key); !s.Done.Equal(at) || !strings.HasPrefix(s.Instance, "process ") || s.Running || s.Ended.Before(s.Started) {
					t.Errorf("the table says %+v", s)
				}
				all := testdb.Got(j.List(t.Context()))(t)
				found := 0
				for _, s := range all {
					if s.Key == key.String() || s.Key == keyTx.String() {
						found++
					}
				}
				testdb.Equal(t, "of our jobs in the list", found, 2)
			})
		}
	})
}

// TestTickTxRollsBack proves that what a tick has written that fails, loses its lease or its connection is not
// there, that a deadlock is run again, and that functions are called after the one COMMIT.
func TestTickTxRollsBack(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "ticks", "id BIGINT PRIMARY KEY AUTO_INCREMENT, what VARCHAR(20)")
		var log bytes.Buffer
		observer := txlock.SlogObserver(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		base := testdb.Got(mysql.NewConnector(db.Config(func(cfg *mysql.Config) { cfg.Logger = &mysql.NopLogger{} })))(t)
		pool := sql.OpenDB(locksqlc.Connector(base, txlock.Observe(observer)))
		t.Cleanup(func() { _ = pool.Close() })
		j, key := open(t, pool, Log(nil)), newKey()
		at := serverNow(t, j)
		insert := func(ctx context.Context, tx *sql.Tx, what string) error {
			return testdb.Err(tx.ExecContext(ctx, "INSERT INTO "+table+" (what) VALUES (?)", what))
		}
		broken := errors.New("broken")
		for what, then := range map[string]func(ctx context.Context, tx *sql.Tx) error{
			"an error":       func(context.Context, *sql.Tx) error { return broken },
			"another holder": func(ctx context.Context, _ *sql.Tx) error { return j.leases.ForceRelease(ctx, key) },
			"no connection": func(_ context.Context, tx *sql.Tx) error {
				db.Kill(t, testdb.ConnID(t, tx))
				return broken
			},
		} {
			ran, err := j.TickTx(t.Context(), key, at, func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
				if err := insert(ctx, tx, what); err != nil {
					return err
				}
				return then(ctx, tx)
			})
			testdb.ErrorIf(t, !ran || err == nil, "%s: %v, %v", what, ran, err)
		}
		tries, commits := 0, 0
		ran, err := j.TickTx(t.Context(), key, at, func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
			scope := testdb.Got(txlock.Join(ctx, tx))(t)
			must(t, scope.AfterCommit(func() { commits++ }))
			if tries++; tries < 3 {
				return errors.Join(insert(ctx, tx, "a deadlock"), &mysql.MySQLError{Number: 1213})
			}
			return insert(ctx, tx, "done")
		})
		testdb.ErrorIf(t, !ran || err != nil || tries != 3 || commits != 1, "%v, %v after %d tries, and %d functions were called", ran, err, tries, commits)
		testdb.Equal(t, "retries of which the observer is told", strings.Count(log.String(), fmt.Sprintf("transaction retried\" key=%s ", key)), 2)
		n, done := db.Number(t, "SELECT COUNT(*) FROM "+table), db.Number(t, "SELECT COUNT(*) FROM "+table+" WHERE what = 'done'")
		testdb.ErrorIf(t, n != 1 || done != 1, "%d rows, %d of them of the one that was done", n, done)
	})
}

// TestSingleTicks proves the functions that make a manager for one call.
func TestSingleTicks(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db, true), newKey()
		at := serverNow(t, open(t, pool))
		for _, want := range []bool{true, false} {
			ticks(t, want, nil)(Tick(t.Context(), pool, key, at, nothing))
			inTx := func(context.Context, *sql.Tx, time.Time) error { return nil }
			ticks(t, false, nil)(TickTx(t.Context(), pool, key, at.Add(1), inTx)) // the same microsecond
		}
	})
}

// TestUnfitServers proves what is said where the table is missing, the user may not write
// it, or the server takes no writes.
func TestUnfitServers(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := newKey()
		all := func(what string, pool *sql.DB, want error) {
			t.Helper()
			j := open(t, pool)
			now := time.Now().Add(-time.Hour)
			wants(t, what+": Tick", testdb.Err(j.Tick(t.Context(), key, now, nothing)), want)
			wants(t, what+": Claim", testdb.Err(j.Claim(t.Context(), key, now)), want)
			wants(t, what+": Run", j.Run(t.Context(), key, Every(time.Hour), nothing), want)
		}
		readOnly := newPool(t, db, true, func(c *mysql.Config) {
			variable := map[testdb.Engine]string{testdb.MariaDB: "tx_read_only", testdb.MySQL: "transaction_read_only"}[db.Engine()]
			c.Params = map[string]string{variable: "1"}
		})
		all("read only", readOnly, txlock.ErrReadOnly)
		_, gone := testdb.Rewritten(t, func(text string) string { return strings.ReplaceAll(text, "lockstep_jobs", "no_jobs") })
		all("no privilege", newPool(t, db, true, gone), txlock.ErrPrivilege)
		asAdmin := func(c *mysql.Config) { c.User, c.Passwd = db.AdminConfig().User, db.AdminConfig().Passwd }
		all("no table", newPool(t, db, true, gone, asAdmin), txlock.ErrSchema)
		wants(t, "List", testdb.Err(open(t, newPool(t, db, false, gone, asAdmin)).List(t.Context())), txlock.ErrSchema)
	})
}

// TestRunRefusesSessions: the first look of Run and Tick at a job that has a row returns what is wrong with the
// session, too.
func TestRunRefusesSessions(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := newKey()
		db.Exec(t, "INSERT INTO lockstep_jobs (name, tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us) VALUES ('"+key.String()+"', 2, 2, 1, '-', 0, 0, 0, 0, '-', 0)")
		level := db.Engine().LevelVariable()
		for setting, want := range map[string]error{"autocommit": schema.ErrAutocommit, "collation_connection": schema.ErrCharset, level: schema.ErrSession, "timestamp": schema.ErrSession} {
			value := map[string]string{"autocommit": "0", "collation_connection": "utf16_bin", level: "'READ-UNCOMMITTED'", "timestamp": "1600000000"}[setting]
			pool := newPool(t, db, true, func(cfg *mysql.Config) { cfg.Params = map[string]string{setting: value} })
			err := open(t, pool).Run(limited(t, time.Minute), key, Every(time.Second), nothing)
			testdb.FatalIf(t, !errors.Is(err, want), "%s: Run returned %v, want %v", setting, err, want)
			wants(t, setting+": Tick", testdb.Err(open(t, pool).Tick(t.Context(), key, time.Now(), nothing)), want)
		}
	})
}

// TestTrips counts the round trips of ticks on a guarded pool, BEGIN and COMMIT and one INSERT of the
// function in a transaction included.
func TestTrips(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "trips", "id BIGINT PRIMARY KEY AUTO_INCREMENT, n INT")
		trips, counted := testdb.CountTrips(t)
		pool := newPool(t, db, true, counted)
		leases := testdb.Got(lease.NewManager(pool, lease.TTL(time.Minute), lease.PurgeEvery(0, time.Hour)))(t)
		defer func() { must(t, leases.Close(context.Background())) }()
		j := testdb.Got(New(pool, leases))(t)
		key, keyTx := newKey(), newKey()
		at := serverNow(t, j).Add(-time.Hour)
		ticks := 0
		write := func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
			return testdb.Err(tx.ExecContext(ctx, "INSERT INTO "+table+" (n) VALUES (1)"))
		}
		next := func() time.Time { ticks++; return at.Add(time.Duration(ticks) * time.Second) }
		same := func() time.Time { return at.Add(time.Duration(ticks) * time.Second) }
		for _, call := range []struct {
			what string
			want int
			run  func() (bool, error)
		}{
			{"Tick", 5, func() (bool, error) { return j.Tick(t.Context(), key, next(), nothing) }},
			{"Tick that was done", 2, func() (bool, error) { return j.Tick(t.Context(), key, same(), nothing) }},
			{"TickTx", 10, func() (bool, error) { return j.TickTx(t.Context(), keyTx, next(), write) }},
			{"TickTx that was done", 2, func() (bool, error) { return j.TickTx(t.Context(), keyTx, same(), write) }},
		} {
			least := 1000
			for range 5 { // the first asks what a process asks once; others may be at work, too
				before := trips.Count()
				must(t, testdb.Err(call.run()))
				least = min(least, trips.Count()-before)
			}
			testdb.Equal(t, call.what+": round trips", least, call.want)
		}
	})
}

// TestLedger proves what the rows of jobs allow to whom: a lease begins a tick once, never one that is done, nor one
// that is older than another that was begun, and who has lost the lease begins and marks nothing. In memory
// they do the same.
func TestLedger(t *testing.T) {
	test := func(t *testing.T, ledger ledger) {
		key := newKey().String()
		at := time.UnixMicro(1_700_000_000_000_000)
		must(t, ledger.make(t.Context(), key, at.Add(-time.Hour), coming{}))
		tick := func(token uint64, after time.Duration) beginning {
			return beginning{key: key, at: at.Add(after), instance: "test", token: token}
		}
		step := func(what string, want bool) func(bool, error) {
			return func(got bool, err error) {
				t.Helper()
				must(t, err)
				testdb.Equal(t, what, got, want)
			}
		}
		begin := func(b beginning) (bool, error) { return ledger.begin(t.Context(), b) }
		done := func(b beginning) (bool, error) { return ledger.done(t.Context(), b, jobrow.Run{}) }
		failed := func(b beginning) (bool, error) { return ledger.failed(t.Context(), b, jobrow.Run{}, "why") }

		step("a tick from before the first", false)(begin(tick(10, -time.Hour)))
		step("a tick", true)(begin(tick(10, 0)))
		step("the tick under the same lease", false)(begin(tick(10, 0)))
		step("a later one under the same lease", false)(begin(tick(10, time.Hour)))
		step("the tick under a newer lease", true)(begin(tick(20, 0)))
		step("the mark of the older lease", false)(done(tick(10, 0)))
		step("the failure of the older lease", false)(failed(tick(10, 0)))
		step("the mark of another tick", false)(done(tick(20, time.Hour)))
		step("the failure", true)(failed(tick(20, 0)))
		r, _, err := ledger.look(t.Context(), key)
		must(t, err)
		s := r.status()
		testdb.ErrorIf(t, !s.Done.IsZero() || !s.Tick.Equal(at), "before the first that is done: done %v, tick %v", s.Done, s.Tick)
		step("the mark after it", false)(done(tick(20, 0)))
		step("the tick that has failed", true)(begin(tick(30, 0)))
		step("the mark", true)(done(tick(30, 0)))
		step("the tick that is done", false)(begin(tick(40, 0)))
		step("a later one", true)(begin(tick(50, 2*time.Hour)))
		step("one between the two", false)(begin(tick(60, time.Hour)))
	}
	onServers(t, func(t *testing.T, db *testdb.DB) { test(t, &sqlLedger{db: newPool(t, db, true)}) })
	t.Run("memory", func(t *testing.T) {
		inMemory(t, func(t *testing.T, c *cluster) { test(t, c.node().ledger) })
	})
}

// TestLedgerReplies feeds the ledger what is none of the replies of its statements.
func TestLedgerReplies(t *testing.T) {
	t.Parallel()
	db, mock, err := sqlmock.New()
	must(t, err)
	t.Cleanup(func() {
		mock.ExpectClose()
		must(t, db.Close())
		must(t, mock.ExpectationsWereMet())
	})
	ledger := &sqlLedger{db: db}
	columns := []string{"tick_us", "done_us", "token", "owner", "started_us", "ended_us", "took_us", "failures", "error", "next_us", "limit_us", "schedule", "paused_us", "paused_by", "run_us", "now_us", "words"}
	for _, c := range []struct {
		name                            string
		tick, done, started, ended, now any
		words                           string
		want                            error
	}{
		{"a row", 5, 5, 3, 4, 9, "", nil},
		{"done before it was begun", 5, 6, 3, 4, 9, "", fault.ErrReply},
		{"no clock", 5, 5, 3, 4, 0, "", fault.ErrReply},
		{"begun before 1970", 5, 5, -1, 4, 9, "", fault.ErrReply},
		{"ended before 1970", 5, 5, 3, -1, 9, "", fault.ErrReply},
		{"NULL", nil, 5, 3, 4, 9, "", fault.ErrReply},
		{"no number", "perhaps", 5, 3, 4, 9, "", fault.ErrReply},
		{"another engine", 5, 5, 3, 4, 9, "engine=other ", schema.ErrEngine},
		{"another engine on which leases hold", 5, 5, 3, 4, 9, "engine=other ", nil},
		{"one without autocommit", 5, 5, 3, 4, 9, "engine=other autocommit=0 ", schema.ErrAutocommit},
		{"a clock that stands still", 5, 5, 3, 4, 9, "timestamp ", schema.ErrSession},
		{"other words", 5, 5, 3, 4, 9, "perhaps ", schema.ErrSession},
	} {
		mock.ExpectQuery("LookJob").WillReturnRows(sqlmock.NewRows(columns).
			AddRow(c.tick, c.done, 7, []byte("me"), c.started, c.ended, 0, 0, []byte("-"), 0, 0, []byte{}, 0, []byte{}, 0, c.now, c.words))
		if strings.Contains(c.words, "engine") { // it asks for more
			reply := session.Reply("8.0.11-TiDB-v8.5.0", "here")
			if errors.Is(c.want, schema.ErrEngine) {
				reply[5] = strings.Replace(reply[5].(string), "sees_own_id=1", "sees_own_id=2", 1)
				reply[0] = "8.4.0"
			}
			mock.ExpectQuery("@@version").WillReturnRows(sqlmock.NewRows([]string{"1", "2", "3", "4", "5", "6"}).AddRow(reply...))
		}
		_, _, err := ledger.look(t.Context(), "k")
		testdb.ErrorIf(t, !errors.Is(err, c.want), "%s: %v, want %v", c.name, err, c.want)
	}
	for statement, send := range map[string]func() (bool, error){
		"BeginJob":  func() (bool, error) { return ledger.begin(t.Context(), beginning{key: "k"}) },
		"JobDone":   func() (bool, error) { return ledger.done(t.Context(), beginning{key: "k"}, jobrow.Run{}) },
		"JobFailed": func() (bool, error) { return ledger.failed(t.Context(), beginning{key: "k"}, jobrow.Run{}, "why") },
	} {
		mock.ExpectExec(statement).WillReturnResult(sqlmock.NewResult(0, 3))
		changed, err := send()
		testdb.ErrorIf(t, changed || !errors.Is(err, fault.ErrReply), "%s that changes three rows: %t, %v", statement, changed, err)
	}
}
