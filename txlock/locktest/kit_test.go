package locktest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// onMock returns a Kit over a mock, which demands at the end that all was sent.
func onMock(t *testing.T) (*locktest.Kit, sqlmock.Sqlmock) {
	t.Helper()
	program, mock := mocked(t)
	return locktest.Open(t, program), mock
}

// onSaid is onMock with a test that is failed instead of this one.
func onSaid(t *testing.T) (*locktest.Kit, sqlmock.Sqlmock, *said) {
	t.Helper()
	program, mock := mocked(t)
	fails := &said{TB: t}
	t.Cleanup(fails.end)
	return locktest.Open(fails, program), mock, fails
}

func mocked(t *testing.T) (*sql.DB, sqlmock.Sqlmock) {
	t.Helper()
	program, mock, err := sqlmock.New()
	must(t, err)
	t.Cleanup(func() {
		must(t, mock.ExpectationsWereMet())
		mock.ExpectClose()
		must(t, program.Close())
	})
	return program, mock
}

// expects lets the mock expect what begins and ends transactions, and statements, in this order.
func expects(mock sqlmock.Sqlmock, texts ...string) {
	for _, text := range texts {
		switch text {
		case "BEGIN":
			mock.ExpectBegin()
		case "COMMIT":
			mock.ExpectCommit()
		case "ROLLBACK":
			mock.ExpectRollback()
		default:
			mock.ExpectExec(text).WillReturnResult(sqlmock.NewResult(0, 1))
		}
	}
}

// updates are what the program sends in most tests: update begins with updated.
const update, updated = "UPDATE orders SET n = 1", "UPDATE orders"

// said is a test that notes what it is failed with.
type said struct {
	testing.TB
	texts []string
	ends  []func()
}

func (s *said) Cleanup(f func()) { s.ends = append(s.ends, f) }

// end does what is done at the end of the test.
func (s *said) end() {
	for _, f := range s.ends {
		f()
	}
}

func (s *said) Helper() {}
func (s *said) Errorf(format string, args ...any) {
	s.texts = append(s.texts, fmt.Sprintf(format, args...))
}
func (s *said) Fatalf(format string, args ...any) { s.Errorf(format, args...) }

func (s *said) says(t *testing.T, want string) {
	t.Helper()
	testdb.ErrorIf(t, len(s.texts) != 1 || !strings.Contains(s.texts[0], want), "said %q, want %q", s.texts, want)
	s.texts = nil
}

// begin begins a transaction that can lock.
func begin(ctx context.Context, t testing.TB, k *locktest.Kit) (*sql.Tx, *txlock.Scope) {
	t.Helper()
	return beginAt(ctx, t, k.DB(), sql.LevelDefault)
}

func beginAt(ctx context.Context, t testing.TB, pool *sql.DB, level sql.IsolationLevel) (*sql.Tx, *txlock.Scope) {
	t.Helper()
	tx := testdb.Got(pool.BeginTx(ctx, &sql.TxOptions{Isolation: level}))(t)
	scope := testdb.Got(txlock.Join(ctx, tx))(t)
	return tx, scope
}

func log(k *locktest.Kit) string {
	var lines []string
	for _, e := range k.Log() {
		lines = append(lines, e.String())
	}
	return strings.Join(lines, "\n")
}

// TestRun locks, hands the statements to the mock, and notes what has happened, also of a statement that commits.
func TestRun(t *testing.T) {
	t.Parallel()
	for _, commitWith := range []bool{false, true} {
		k, mock := onMock(t)
		key := orders.Key(42)
		mock.ExpectBegin()
		mock.ExpectExec("UPDATE orders").WithArgs(7).WillReturnResult(sqlmock.NewResult(0, 1))
		mock.ExpectCommit()
		must(t, locksqlc.Run(t.Context(), k.DB(), []txlock.Key{key}, func(tx *sql.Tx) error {
			ctx := t.Context()
			must(t, txlock.AssertLocked(ctx, tx, key))
			if scope, err := txlock.Join(ctx, tx); commitWith {
				must(t, err)
				ctx = scope.CommitWith(ctx, 1)
			}
			return testdb.Err(tx.ExecContext(ctx, "UPDATE  orders SET n = ?", 7))
		}))
		testdb.ErrorIf(t, !k.Locked(key) || k.Locked(orders.Key(43)) || !k.Before(key, "update orders"), "%v", k.Log())
		testdb.Equal(t, "the log", log(k), "tx 1: BEGIN\ntx 1: lock order:42\ntx 1: UPDATE orders SET n = ?\ntx 1: COMMIT")
	}
}

// TestErrorsAsTheyAre has errors of the program's database, which stay what they are, and a
// statement that ends its transaction though it fails.
func TestErrorsAsTheyAre(t *testing.T) {
	t.Parallel()
	k, mock := onMock(t)
	duplicate := &mysql.MySQLError{Number: 1062, Message: "Duplicate entry"}
	mock.ExpectBegin()
	mock.ExpectExec("INSERT INTO orders").WillReturnError(duplicate)
	mock.ExpectExec("CREATE TABLE orders").WillReturnError(&mysql.MySQLError{Number: 1050, Message: "Table exists"})
	mock.ExpectRollback()
	tx, scope := begin(t.Context(), t, k)
	must(t, testdb.Err(scope.Lock(t.Context(), orders.Key(42))))
	if _, err := tx.ExecContext(t.Context(), "INSERT INTO orders VALUES (1)"); err != error(duplicate) { //nolint:errorlint // its type is what programs look at
		t.Errorf("%T: %v", err, err)
	}
	_, err := tx.ExecContext(t.Context(), "CREATE TABLE orders (id INT)")
	testdb.ErrorIf(t, err == nil, "CREATE TABLE returns no error")
	wants(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
}

// TestForgotten has statements without their lock.
func TestForgotten(t *testing.T) {
	t.Parallel()
	k, mock, fails := onSaid(t)
	key := orders.Key(42)
	lock := func(s *txlock.Scope) error { return testdb.Err(s.Lock(t.Context(), key)) }
	nothing := func(*txlock.Scope) error { return nil }
	run := func(query string, before, behind func(s *txlock.Scope) error) {
		t.Helper()
		expects(mock, "BEGIN", query, "COMMIT")
		must(t, locksqlc.Run(t.Context(), k.DB(), nil, func(tx *sql.Tx) error {
			scope := testdb.Got(txlock.Join(t.Context(), tx))(t)
			must(t, before(scope))
			return errors.Join(testdb.Err(tx.ExecContext(t.Context(), query)), behind(scope))
		}))
	}
	k.Before(key, "UPDATE orders")
	fails.says(t, `no statement with "UPDATE orders" has run`)
	run("UPDATE orders SET n = 1", nothing, lock)
	k.Before(key, "UPDATE orders")
	fails.says(t, "UPDATE orders SET n = 1 ran without the lock of order:42: its transaction had locked nothing")
	run("INSERT INTO orders", func(s *txlock.Scope) error { return testdb.Err(s.LockAll(t.Context(), orders.Keys(43, 44)...)) }, nothing)
	k.Before(key, "INSERT")
	fails.says(t, "its transaction had locked order:43, order:44")
	run("REPLACE orders", func(s *txlock.Scope) error { return testdb.Err(s.RLock(t.Context(), key)) }, nothing)
	k.Before(key, "REPLACE")
	fails.says(t, "its transaction had locked it shared only")
	k.Before(txlock.Shared(key), "REPLACE")
	expects(mock, "DELETE FROM orders")
	must(t, testdb.Err(k.DB().ExecContext(t.Context(), "DELETE FROM orders")))
	k.Before(key, "DELETE")
	fails.says(t, "it ran outside of a transaction")
}

// TestNotGranted writes behind locks that weren't granted: a conflict, and a list of which one isn't free, of
// which no row is written.
func TestNotGranted(t *testing.T) {
	t.Parallel()
	keys := orders.Keys(1, 2)
	hashed := txlock.NewFamily[int64]("hashed", txlock.Hashed()).Keys(1, 2)
	conflict := func(key txlock.Key) func(s *txlock.Scope) error {
		return func(s *txlock.Scope) error { return s.CompareAndBump(t.Context(), key, 5) }
	}
	all := func(keys []txlock.Key) func(s *txlock.Scope) error {
		return func(s *txlock.Scope) error {
			return testdb.Err(s.WaitAtMost(time.Millisecond).LockAll(t.Context(), keys...))
		}
	}
	for name, c := range map[string]struct {
		key, other txlock.Key
		lock       func(s *txlock.Scope) error
		want       error
	}{
		"conflict":        {keys[0], keys[1], conflict(keys[0]), txlock.ErrConflict},
		"hashed conflict": {hashed[0], keys[1], conflict(hashed[0]), txlock.ErrConflict},
		"list":            {keys[0], keys[1], all(keys), txlock.ErrWaitTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			k, mock, fails := onSaid(t)
			_, holder := begin(t.Context(), t, k)
			must(t, testdb.Err(holder.Lock(t.Context(), c.other)))
			tx, scope := begin(t.Context(), t, k)
			wants(t, name, c.lock(scope), c.want)
			expects(mock, "BEGIN", updated, "ROLLBACK")
			must(t, testdb.Err(tx.ExecContext(t.Context(), update)))
			testdb.ErrorIf(t, k.Before(c.key, updated) || k.Locked(c.key), "%v", log(k))
			fails.says(t, "its transaction had locked nothing")
			wants(t, "TryLock in another transaction", tries(t, k.DB(), c.key), txlock.ErrBusy)
			must(t, tx.Rollback())
			version := testdb.Got(txlock.ReadVersion(t.Context(), k.DB(), c.key))(t)
			testdb.Equal(t, "the version of what wasn't granted", version, 0)
		})
	}
}

// TestNoDatabase has a statement of the program and none to take it, and one of lockstep's own
// that the Kit doesn't know.
func TestNoDatabase(t *testing.T) {
	t.Parallel()
	fails := &said{TB: t}
	defer fails.end()
	k := locktest.Open(fails, nil)
	_, err := k.DB().ExecContext(t.Context(), "UPDATE orders")
	testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), `no database for "UPDATE orders"`), "%v", err)
	_, err = k.DB().ExecContext(t.Context(), "DELETE FROM lockstep_locks")
	testdb.ErrorIf(t, err == nil, "it knows the statement")
	fails.says(t, "DELETE FROM lockstep_locks")
}

// TestFaults compares what each fault becomes in the calls of a program. The log names what has failed.
func TestFaults(t *testing.T) {
	t.Parallel()
	key := orders.Key(1)
	lock := func(s *txlock.Scope) error { return testdb.Err(s.Lock(t.Context(), key)) }
	var seen strings.Builder
	for _, c := range []struct {
		fault locktest.Fault
		call  func(s *txlock.Scope) error
		want  error
		ends  bool
	}{
		{locktest.Deadlock, lock, txlock.ErrDeadlock, true},
		{locktest.Timeout, lock, txlock.ErrWaitTimeout, false},
		{locktest.Timeout, func(s *txlock.Scope) error { return testdb.Err(s.RLock(t.Context(), key)) }, txlock.ErrWaitTimeout, false},
		{locktest.LostConnection, lock, txlock.ErrTxDoomed, true},
		{locktest.Stale, lock, txlock.ErrStaleSnapshot, true},
		{locktest.Timeout, func(s *txlock.Scope) error { return testdb.Err(s.TryLock(t.Context(), key)) }, txlock.ErrBusy, false},
		{locktest.Timeout, func(s *txlock.Scope) error { return lock(s.WaitAtMost(time.Second)) }, txlock.ErrWaitTimeout, false},
		{locktest.Deadlock, func(s *txlock.Scope) error { return testdb.Err(s.Once(t.Context(), key)) }, txlock.ErrDeadlock, true},
		{locktest.Deadlock, func(s *txlock.Scope) error { return testdb.Err(s.LockAll(t.Context(), key, orders.Key(2))) }, txlock.ErrDeadlock, true},
	} {
		k := locktest.Open(t, nil)
		tx, scope := begin(t.Context(), t, k)
		k.FailLock(key, c.fault)
		wants(t, "the error", c.call(scope), c.want)
		seen.WriteString(log(k) + "\n")
		_, err := scope.Lock(t.Context(), orders.Key(3))
		testdb.ErrorIf(t, errors.Is(err, txlock.ErrTxDoomed) != c.ends, "after a %v: %v", c.fault, err)
		err = tx.Commit()
		testdb.ErrorIf(t, (err != nil) != c.ends, "after a %v COMMIT: %v", c.fault, err)
	}
	testdb.Says(t, "the log", seen.String(), "tx 1: lock shared order:1: Error 1205 (HY000): Lock wait timeout exceeded",
		"tx 1: once order:1: Error 1213 (40001): Deadlock found")
}

// TestFaultsOfStatements fails statements of the program, and COMMIT. One that has failed ran with what its transaction held.
func TestFaultsOfStatements(t *testing.T) {
	t.Parallel()
	k, mock := onMock(t)
	run := func() error {
		return locksqlc.Run(t.Context(), k.DB(), orders.Keys(1), func(tx *sql.Tx) error { return testdb.Err(tx.ExecContext(t.Context(), update)) })
	}
	k.FailStatement(updated, locktest.Deadlock)
	expects(mock, "BEGIN", updated, "COMMIT") // of the second time
	must(t, run())
	k.Before(orders.Key(1), updated)

	version := func() uint64 { return testdb.Got(txlock.ReadVersion(t.Context(), k.DB(), orders.Key(1)))(t) }
	before := version()
	k.FailStatement("COMMIT", locktest.UnknownOutcome)
	expects(mock, "BEGIN", updated, "COMMIT")
	wants(t, "the error", run(), txlock.ErrUnknownOutcome)
	testdb.ErrorIf(t, version() <= before, "what has no answer isn't committed")

	k.FailStatement("COMMIT", locktest.Deadlock)
	expects(mock, "BEGIN", updated, "ROLLBACK", "BEGIN", updated, "COMMIT")
	must(t, run())
}

// reports is a Kit over the mock of a program that has the lease of reports.
type reports struct {
	*lease.Lease
	*locktest.Kit
	fails *said   // what the Kit has said
	pool  *sql.DB // of the Kit, unguarded
	mock  sqlmock.Sqlmock
}

func openReports(t *testing.T) *reports {
	t.Helper()
	kit, mock, fails := onSaid(t)
	l := testdb.Got(leasesOf(t, kit.DB()).Acquire(t.Context(), txlock.Named("reports")))(t)
	pool := sql.OpenDB(kit.Connector())
	t.Cleanup(func() { must(t, errors.Join(l.Release(context.Background()), pool.Close())) })
	return &reports{l, kit, fails, pool, mock}
}

// fails demands that Before has failed, or not, for the last UPDATE of orders.
func (r *reports) wants(t *testing.T, failed bool) {
	t.Helper()
	fine := r.Before(r.Key(), updated)
	testdb.ErrorIf(t, fine == failed, "Before: %t\n%s", fine, log(r.Kit))
	if failed {
		r.fails.says(t, update+" ran without the lock of reports: its transaction had locked nothing")
	}
}

// TestBeforeGuardLast calls Guard last, also after a fault. A transaction that is committed without
// the guard fails the test: it never had one, or a rollback to a savepoint has undone it.
func TestBeforeGuardLast(t *testing.T) {
	t.Parallel()
	const ddl = "ALTER TABLE orders ADD m INT"
	for name, c := range map[string]struct {
		statements []string // after the UPDATE, with "guard" for Guard
		fails      bool
	}{
		"last":      {[]string{"guard"}, false},
		"never":     {nil, true},
		"savepoint": {[]string{"SAVEPOINT s", "guard", "ROLLBACK TO s"}, true},
		"released":  {[]string{"SAVEPOINT s", "guard", "RELEASE SAVEPOINT s"}, false},
		"DDL":       {[]string{ddl}, true},
		"late DDL":  {[]string{"guard", ddl}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := openReports(t)
			run := func(statements ...string) error {
				tx, err := r.pool.BeginTx(t.Context(), nil)
				must(t, err)
				defer func() { _ = tx.Rollback() }()
				for _, text := range statements {
					if text == "guard" {
						err = r.Guard(t.Context(), tx)
					} else {
						_, err = tx.ExecContext(t.Context(), text)
					}
					if err != nil {
						return err
					}
				}
				return tx.Commit()
			}
			r.FailStatement(updated, locktest.Deadlock)
			testdb.ErrorIf(t, run(update, "guard") == nil, "no deadlock")
			expects(r.mock, "BEGIN", update, "COMMIT")
			must(t, run(update, "guard"))
			r.wants(t, false)
			expects(r.mock, slices.DeleteFunc(slices.Concat([]string{"BEGIN", update}, c.statements), func(text string) bool { return text == "guard" })...)
			if slices.Contains(c.statements, ddl) {
				expects(r.mock, "ROLLBACK") // there is nothing left to commit
			} else {
				expects(r.mock, "COMMIT")
			}
			must(t, run(append([]string{update}, c.statements...)...))
			r.wants(t, c.fails)
		})
	}
}

// TestBeforeOfFailedCommits: a transaction that wasn't committed needs no Guard, even though it was to be.
// One whose COMMIT has only lost its answer does.
func TestBeforeOfFailedCommits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at    string // the statement that fails
		by    locktest.Fault
		ends  string
		fails bool
	}{
		"deadlock":        {"COMMIT", locktest.Deadlock, "ROLLBACK", false},
		"lost connection": {"COMMIT", locktest.LostConnection, "ROLLBACK", false},
		"unknown outcome": {"COMMIT", locktest.UnknownOutcome, "COMMIT", true},
		"the program's":   {"", 0, "no space", false},
		"DDL":             {"ALTER TABLE orders", locktest.Deadlock, "ROLLBACK", false},
		"before":          {"DELETE FROM orders", locktest.Deadlock, "ROLLBACK", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := openReports(t)
			begun := func(ends string) *sql.Tx {
				expects(r.mock, "BEGIN", updated)
				if ends == "no space" {
					r.mock.ExpectCommit().WillReturnError(errors.New(ends))
				} else {
					expects(r.mock, ends)
				}
				tx := testdb.Got(r.pool.BeginTx(t.Context(), nil))(t)
				must(t, testdb.Err(tx.ExecContext(t.Context(), update)))
				return tx
			}
			guarded := begun("COMMIT")
			must(t, r.Guard(t.Context(), guarded))
			must(t, guarded.Commit())

			tx := begun(c.ends)
			if c.by != 0 {
				r.FailStatement(c.at, c.by)
			}
			if c.at != "" && c.at != "COMMIT" {
				_, err := tx.ExecContext(t.Context(), c.at)
				testdb.ErrorIf(t, err == nil, "no deadlock at %s", c.at)
			}
			_ = tx.Commit() // which fails, or has nothing left to commit
			r.wants(t, c.fails)
		})
	}
}

// TestFaultThatDoesNotCome fails the test, as a fault at a place where there is none does.
func TestFaultThatDoesNotCome(t *testing.T) {
	t.Parallel()
	fails := &said{TB: t}
	k := locktest.Open(fails, nil)
	k.FailLock(orders.Key(1), locktest.UnknownOutcome)
	fails.says(t, "there is no unknown outcome at the lock of order:1")
	k.FailLock(orders.Key(1), locktest.Deadlock)
	k.FailLock(orders.Key(2), locktest.Stale)
	tx, scope := begin(t.Context(), t, k)
	if first, err := scope.Once(t.Context(), orders.Key(2)); !first || err != nil { // which is never stale
		t.Errorf("Once: %t, %v", first, err)
	}
	must(t, tx.Rollback())
	fails.end()
	stale := len(fails.texts) - 1
	testdb.ErrorIf(t, stale != 1 || !strings.Contains(fails.texts[stale], "the stale snapshot at the lock of order:2 has not come"), "said %q", fails.texts)
	fails.texts = fails.texts[:1]
	fails.says(t, "the deadlock at the lock of order:1 has not come")
}

// TestAwaitWaiting awaits who waits for a lock, which gives up after 50 seconds.
func TestAwaitWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, ctx := locktest.Open(t, nil), t.Context()
		hashed := txlock.NewFamily[int64]("hashed", txlock.Hashed()).Key(1)
		for _, key := range []txlock.Key{orders.Key(1), hashed} {
			holder, of := begin(ctx, t, k)
			must(t, testdb.Err(of.Lock(ctx, key)))
			waiter, other := begin(ctx, t, k)
			began, done := time.Now(), make(chan error)
			go func() { done <- testdb.Err(other.Lock(ctx, key)) }()
			must(t, k.AwaitWaiting(ctx, key, 1))
			wants(t, "Lock", <-done, txlock.ErrWaitTimeout)
			testdb.Equal(t, "the wait", time.Since(began).Round(time.Second), 50*time.Second)
			must(t, errors.Join(waiter.Rollback(), holder.Commit()))
		}
	})
}

// TestLeases guards a transaction by a lease, and loses it.
func TestLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, mock := onMock(t)
		ctx, key := t.Context(), txlock.Named("reports")
		m := leasesOf(t, k.DB())
		l := testdb.Got(m.Acquire(ctx, key))(t)
		guarded := func() *sql.Tx {
			expects(mock, "BEGIN", updated)
			tx, _ := begin(ctx, t, k)
			must(t, l.Guard(ctx, tx))
			must(t, testdb.Err(tx.ExecContext(ctx, update)))
			return tx
		}
		tx := guarded()
		k.Disconnect() // the manager, not the transaction
		mock.ExpectCommit()
		must(t, tx.Commit())
		k.Reconnect()
		tx = guarded()
		must(t, m.ForceRelease(ctx, key)) // which ends the session of the transaction
		mock.ExpectRollback()
		wants(t, "Commit after its lease was taken away", tx.Commit(), txlock.ErrUnknownOutcome)
		l = testdb.Got(m.Acquire(ctx, key))(t)
		testdb.ErrorIf(t, !k.Locked(key), "%v", k.Log())
		time.Sleep(time.Hour)
		must(t, l.Err())
		k.Disconnect()
		<-l.Done()
		wants(t, "the error", l.Err(), txlock.ErrLost)
		k.Reconnect()
	})
}

// TestJobControls pauses a job, requests a run of it, reads and deletes what is kept of it, and of a tick that fails,
// and runs it by two schedules, of which each process is told.
func TestJobControls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, ctx, key := locktest.Open(t, nil), t.Context(), txlock.Named("nightly")
		var told atomic.Int32
		jobs := testdb.Got(job.New(k.DB(), leasesOf(t, k.DB()), job.Log(nil), job.KeepRuns(2, 24*time.Hour), job.Observe(func(_ context.Context, e job.Event) {
			if e.Kind == job.ScheduleDiffers {
				told.Add(1)
			}
			testdb.ErrorIf(t, e.Kind == job.RunError, "%v", e.Err)
		})))(t)
		runs, ran := make(chan time.Time, 20), make(chan error)
		by := func(schedule job.Schedule) {
			ran <- jobs.Run(ctx, key, schedule, func(_ context.Context, at time.Time) error { runs <- at; return nil })
		}
		go by(job.Every(time.Hour))
		changesOnce := func(what string, control func() (bool, error)) {
			t.Helper()
			for _, want := range []bool{true, false} {
				testdb.Equal(t, what, testdb.Got(control())(t), want)
			}
		}
		time.Sleep(90 * time.Minute)
		first := <-runs
		changesOnce("Pause", func() (bool, error) { return jobs.Pause(ctx, key, "test") })
		time.Sleep(3*time.Hour + time.Second) // between two looks of the job, which would begin the first run at once
		status, err := jobs.Status(ctx, key)
		testdb.ErrorIf(t, err != nil || status.PausedBy != "test" || len(runs) > 0, "%+v, %v after %d runs", status, err, len(runs))
		changesOnce("RunNow", func() (bool, error) { return jobs.RunNow(ctx, key) })
		time.Sleep(time.Minute)
		asked := <-runs
		changesOnce("Resume", func() (bool, error) { return jobs.Resume(ctx, key) })
		time.Sleep(time.Hour)
		third := <-runs
		if kept, err := jobs.Runs(ctx, key); err != nil || len(kept) != 2 || !kept[0].At.Equal(third) || !kept[1].At.Equal(asked) || !asked.After(first) || kept[0].Kind != job.Done {
			t.Errorf("%+v, %v, after runs at %v, %v and %v", kept, err, first, asked, third)
		}
		failed := errors.New("failed")
		wants(t, "TickTx", testdb.Err(jobs.TickTx(ctx, txlock.Named("failing"), time.Now(), func(context.Context, *sql.Tx, time.Time) error { return failed })), failed)
		all, err := jobs.List(ctx)
		testdb.ErrorIf(t, err != nil || len(all) != 2 || all[0].Failing+all[1].Failing != 1, "%+v, %v", all, err)
		go by(job.Every(90 * time.Minute))
		time.Sleep(5 * time.Hour)
		testdb.Equal(t, "processes that were told of another schedule", told.Load(), 2)
		must(t, errors.Join(jobs.Close(ctx), <-ran, <-ran))
		time.Sleep(10 * time.Hour)
		testdb.Equal(t, "purged of the last 100 hours", testdb.Got(job.Purge(ctx, k.DB(), 100*time.Hour))(t), 0)
		testdb.Equal(t, "purged", testdb.Got(job.Purge(ctx, k.DB(), time.Hour))(t), 2)
		wants(t, "Status after Purge", testdb.Err(jobs.Status(ctx, key)), txlock.ErrNotHeld)
	})
}
