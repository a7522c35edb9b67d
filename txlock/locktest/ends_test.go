package locktest_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// TestFaultsOfEnds loses the connection at what begins and ends a transaction, by database/sql and by a
// statement. Other faults are refused there.
func TestFaultsOfEnds(t *testing.T) {
	t.Parallel()
	byDatabaseSQL := func(ctx context.Context, k *locktest.Kit, last string) error {
		tx := testdb.Got(k.DB().BeginTx(ctx, nil))(t)
		scope, err := txlock.Join(ctx, tx)
		if err == nil {
			_, err = scope.Lock(ctx, orders.Key(1)) // before which the transaction begins
		}
		if err != nil || last == "ROLLBACK" {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	byStatement := func(ctx context.Context, k *locktest.Kit, last string) error {
		conn, err := k.DB().Conn(ctx)
		must(t, err)
		defer func() { _ = conn.Close() }() // it is lost
		if _, err = conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
			return err
		}
		return testdb.Err(conn.ExecContext(ctx, last))
	}
	for text, last := range map[string]string{"begin": "COMMIT", "START TRANSACTION": "ROLLBACK", "COMMIT": "COMMIT", "commit work": "COMMIT", "ROLLBACK": "ROLLBACK"} {
		for _, way := range []func(context.Context, *locktest.Kit, string) error{byDatabaseSQL, byStatement} {
			k := locktest.Open(t, nil)
			k.FailStatement(text, locktest.LostConnection)
			err := way(t.Context(), k, last)
			wants(t, text, err, mysql.ErrInvalidConn)
			testdb.ErrorIf(t, errors.Is(err, txlock.ErrUnknownOutcome) != strings.HasPrefix(strings.ToUpper(text), "COMMIT"), "%s: %v", text, err)
			must(t, way(t.Context(), k, last)) // the lock is released
		}
	}
	fails := &said{TB: t}
	k := locktest.Open(fails, nil)
	for _, text := range []string{"BEGIN", "START TRANSACTION", "ROLLBACK"} {
		for _, fault := range []locktest.Fault{locktest.Deadlock, locktest.Timeout, locktest.Stale, locktest.UnknownOutcome} {
			k.FailStatement(text, fault)
			fails.says(t, "there is no "+fault.String()+` at "`+text+`"`)
		}
	}
	fails.end()
}

// TestFaultsBesideEnds has faults whose texts only look like a COMMIT or ROLLBACK.
func TestFaultsBesideEnds(t *testing.T) {
	t.Parallel()
	k, mock := onMock(t)
	ctx := t.Context()
	expects(mock, "BEGIN", "UPDATE commits", "SAVEPOINT a", "ROLLBACK TO SAVEPOINT a", "ROLLBACK")
	k.FailStatement("COMMIT", locktest.Deadlock)
	tx, _ := begin(ctx, t, k)
	for _, query := range []string{"UPDATE commits SET n = 1", "SAVEPOINT a", "ROLLBACK TO SAVEPOINT a"} {
		must(t, testdb.Err(tx.ExecContext(ctx, query)))
	}
	err := tx.Commit()
	testdb.ErrorIf(t, !txlock.Retryable(err), "Commit: %v", err)
	k.FailStatement("ROLLBACK TO", locktest.Deadlock)
	tx, _ = begin(ctx, t, k)
	_, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT a")
	testdb.ErrorIf(t, !txlock.Retryable(err), "ROLLBACK TO: %v", err)
	must(t, tx.Rollback())
}

// TestCommitThatFails acquires a lease in a transaction whose COMMIT fails in the program's database: it is
// free afterwards, and lost for whoever has acquired it.
func TestCommitThatFails(t *testing.T) {
	t.Parallel()
	key := txlock.Named("reports")
	for _, failure := range []error{mysql.ErrInvalidConn, &mysql.MySQLError{Number: 1213, Message: "Deadlock"}, errors.New("no space left")} {
		for _, with := range []func(s *txlock.Scope) context.Context{
			func(*txlock.Scope) context.Context { return t.Context() },
			func(s *txlock.Scope) context.Context { return s.CommitWith(t.Context(), 1) },
		} {
			k, mock := onMock(t)
			one, other := leasesOf(t, k.DB()), leasesOf(t, k.DB())
			expects(mock, "BEGIN", updated)
			mock.ExpectCommit().WillReturnError(failure)
			tx, scope := begin(t.Context(), t, k)
			l, err := one.AcquireTx(t.Context(), tx, key)
			must(t, err)
			if _, err = tx.ExecContext(with(scope), update); err == nil {
				err = tx.Commit()
			} else {
				err = errors.Join(err, tx.Rollback())
			}
			wants(t, "COMMIT", err, failure)
			wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost)
			l = testdb.Got(other.TryAcquire(t.Context(), key))(t)
			must(t, l.Release(t.Context()))
			testdb.ErrorIf(t, !k.Locked(key) || !strings.Contains(log(k), "COMMIT: "+failure.Error()), "%v", log(k))
		}
	}
}

// TestLeaseBehindDDL acquires a lease in a transaction that a statement commits: the lease is committed, too.
func TestLeaseBehindDDL(t *testing.T) {
	everywhere(t, func(t *testing.T, _ *locktest.Kit, pool *sql.DB, table string, key txlock.Key) {
		tx := testdb.Got(pool.BeginTx(t.Context(), nil))(t)
		l := testdb.Got(leasesOf(t, pool).AcquireTx(t.Context(), tx, key))(t)
		must(t, testdb.Err(tx.ExecContext(t.Context(), "ANALYZE TABLE "+table)))
		must(t, tx.Rollback())
		wants(t, "TryAcquire", testdb.Err(leasesOf(t, pool).TryAcquire(t.Context(), key)), txlock.ErrBusy)
		must(t, l.Release(t.Context()))
	})
}

// TestBusyNamesTheHolder tries what another manager holds: errors name its holder, but no readers and no
// holders of permits.
func TestBusyNamesTheHolder(t *testing.T) {
	everywhere(t, func(t *testing.T, _ *locktest.Kit, pool *sql.DB, _ string, key txlock.Key) {
		ctx, m, other := t.Context(), leasesOf(t, pool), leasesOf(t, pool)
		shared, permits := txlock.Named(key.String()+"shared"), txlock.Named(key.String()+"permits")
		must(t, testdb.Err(m.Acquire(ctx, key, lease.WithLabel("ours"))))
		must(t, testdb.Err(m.AcquireShared(ctx, shared)))
		taken := testdb.Got(m.Semaphore(permits, 1))(t)
		must(t, testdb.Err(taken.Acquire(ctx)))
		of := testdb.Got(other.Semaphore(permits, 1))(t)
		tx, _ := beginAt(ctx, t, pool, sql.LevelDefault)
		for name, c := range map[string]struct {
			err   error
			names bool
		}{
			"TryAcquire":       {testdb.Err(other.TryAcquire(ctx, key)), true},
			"TryAcquireAll":    {testdb.Err(other.TryAcquireAll(ctx, []txlock.Key{key})), true},
			"TryDo":            {other.TryDo(ctx, key, func(context.Context, *lease.Lease) error { return nil }), true},
			"TryAcquireShared": {testdb.Err(other.TryAcquireShared(ctx, key)), true},
			"readers":          {testdb.Err(other.TryAcquire(ctx, shared)), false},
			"a permit":         {testdb.Err(of.TryAcquire(ctx)), false},
			"AcquireTx":        {testdb.Err(other.AcquireTx(ctx, tx, key)), true},
		} {
			wants(t, name, c.err, txlock.ErrBusy)
			var held *txlock.HeldError
			testdb.ErrorIf(t, errors.As(c.err, &held) != c.names || c.names && held.Label != "ours", "%s: %v, want the holder's name: %t", name, c.err, c.names)
		}
		must(t, tx.Rollback())
	})
}

// TestOpenRows sends something while rows are open, after which the connection is lost. A guarded pool sends
// no lock then. With a context that can end, the driver closes the connection at once.
func TestOpenRows(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, pool *sql.DB, table string, guards bool) {
		t.Helper()
		ctx := context.Background()
		tx, scope := beginAt(ctx, t, pool, sql.LevelDefault)
		rows := testdb.Got(tx.QueryContext(ctx, "SELECT n FROM "+table))(t)
		testdb.Equal(t, "a row", rows.Next(), true)
		for range 2 {
			wants(t, "Lock", testdb.Err(scope.Lock(ctx, orders.Key(1))), txlock.ErrOpenRows)
		}
		if guards {
			wants(t, "a statement", testdb.Err(tx.ExecContext(ctx, "DELETE FROM "+table)), mysql.ErrBusyBuffer)
		}
		_ = rows.Close() // the driver may report that it is out of order
		err := testdb.Err(scope.Lock(ctx, orders.Key(1)))
		wants(t, "Lock behind closed rows", err, txlock.ErrTxDoomed)
		testdb.Equal(t, "Retryable", txlock.Retryable(err), true)
		wants(t, "COMMIT", tx.Commit(), mysql.ErrInvalidConn)
	}
	program := sql.OpenDB(&numbers{all: map[string]int64{"orders": 7}})
	t.Cleanup(func() { must(t, program.Close()) })
	bothPools(t, program, func(t *testing.T, pool *sql.DB) { test(t, pool, "orders", strings.HasSuffix(t.Name(), "guarded")) })
	for _, engine := range testdb.Engines() {
		db := testdb.Open(t, engine)
		table := db.CreateTable(t, "rows", "n INT PRIMARY KEY")
		db.Exec(t, "INSERT INTO "+table+" VALUES (1)")
		t.Run(string(engine)+"/guarded", func(t *testing.T) { test(t, leasetest.Pool(t, db, true), table, true) })
		t.Run(string(engine)+"/plain", func(t *testing.T) { test(t, leasetest.Pool(t, db, false), table, false) })
	}
}

// TestLeaseInReadOnly has a transaction that may not write, so no lease can guard it.
func TestLeaseInReadOnly(t *testing.T) {
	everywhere(t, func(t *testing.T, _ *locktest.Kit, pool *sql.DB, _ string, key txlock.Key) {
		m := leasesOf(t, pool)
		l := testdb.Got(m.Acquire(t.Context(), key))(t)
		tx := testdb.Got(pool.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true}))(t)
		wants(t, "Guard", l.Guard(t.Context(), tx), txlock.ErrReadOnly)
		wants(t, "AcquireTx", testdb.Err(m.AcquireTx(t.Context(), tx, txlock.Named(key.String()+"~"))), txlock.ErrReadOnly)
		must(t, errors.Join(l.Err(), tx.Commit(), l.Release(t.Context())))
	})
}

// TestKilledForItsLease has a session that is ended for the lease of its transaction: its locks are free, what is
// sent next finds the connection lost, and without a COMMIT it is known that nothing is committed.
func TestKilledForItsLease(t *testing.T) {
	everywhere(t, func(t *testing.T, _ *locktest.Kit, pool *sql.DB, table string, key txlock.Key) {
		for name, next := range map[string]func(tx *sql.Tx, scope *txlock.Scope) error{
			"statement": func(tx *sql.Tx, _ *txlock.Scope) error {
				return testdb.Err(tx.ExecContext(t.Context(), "DELETE FROM "+table))
			},
			"lock": func(_ *sql.Tx, scope *txlock.Scope) error {
				return testdb.Err(scope.Lock(t.Context(), txlock.Named(table)))
			},
			"lease": func(tx *sql.Tx, _ *txlock.Scope) error {
				return testdb.Err(leasesOf(t, pool).AcquireTx(t.Context(), tx, txlock.Named(table)))
			},
			"ROLLBACK": func(tx *sql.Tx, _ *txlock.Scope) error { return tx.Rollback() },
			"COMMIT":   func(tx *sql.Tx, _ *txlock.Scope) error { return tx.Commit() },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				key, held := txlock.Named(key.String()+name), txlock.Named(key.String()+name+"~")
				l := testdb.Got(leasesOf(t, pool).Acquire(t.Context(), key, lease.TTL(time.Second)))(t)
				tx, scope := beginAt(t.Context(), t, pool, sql.LevelDefault)
				must(t, testdb.Err(scope.Lock(t.Context(), held)))
				must(t, l.Guard(t.Context(), tx))
				must(t, testdb.Err(leasesOf(t, pool).Acquire(t.Context(), key, lease.GuardGrace(0), lease.WaitAtMost(20*time.Second))))
				after, free := beginAt(t.Context(), t, pool, sql.LevelDefault)
				must(t, testdb.Err(free.WaitAtMost(time.Second).Lock(t.Context(), held)))
				must(t, after.Rollback())
				err := next(tx, scope)
				wants(t, name, err, mysql.ErrInvalidConn)
				switch name {
				case "ROLLBACK":
					return
				case "COMMIT":
				default:
					err = tx.Commit()
					wants(t, "COMMIT after it", err, txlock.ErrTxDoomed)
				}
				testdb.Equal(t, "ErrUnknownOutcome at the end", errors.Is(err, txlock.ErrUnknownOutcome), name == "COMMIT")
				testdb.Equal(t, "Retryable at the end", txlock.Retryable(err), name != "COMMIT")
			})
		}
	})
}

// TestNothingStaysOpen begins and ends transactions in less common ways, on a Kit over a server and
// without one. Nothing is open on the server afterwards, and of three rows those are there that were committed.
func TestNothingStaysOpen(t *testing.T) {
	testdb.NeedsServer(t)
	t.Parallel()
	for _, engine := range testdb.Engines() {
		db := testdb.Open(t, engine)
		table := db.CreateTable(t, "ends", "n INT PRIMARY KEY")
		for name, c := range map[string]struct {
			texts []string // BeginTx, Commit and Rollback are those of database/sql
			fault locktest.Fault
			at    string
			want  string
		}{
			"closed":                   {texts: []string{"BEGIN", "1"}},
			"closed behind a chain":    {texts: []string{"BEGIN", "1", "COMMIT AND CHAIN", "2"}, want: "1"},
			"rolled back, chained":     {texts: []string{"BEGIN", "1", "ROLLBACK AND CHAIN", "2", "COMMIT"}, want: "2"},
			"chained in a sql.Tx":      {texts: []string{"BeginTx", "1", "COMMIT AND CHAIN", "2", "Commit"}, want: "1,2"},
			"rolled back in a sql.Tx":  {texts: []string{"BeginTx", "1", "ROLLBACK AND CHAIN", "2", "Commit"}, want: "2"},
			"a chain of nothing":       {texts: []string{"BeginTx", "COMMIT AND CHAIN", "1", "Rollback"}},
			"BEGIN in a sql.Tx":        {texts: []string{"BeginTx", "1", "BEGIN", "2", "Rollback"}, want: "1"},
			"a sql.Tx behind BEGIN":    {texts: []string{"BEGIN", "1", "BeginTx", "Rollback"}, want: "1"},
			"BEGIN behind BEGIN":       {texts: []string{"BEGIN WORK", "1", "START TRANSACTION", "2", "ROLLBACK"}, want: "1"},
			"COMMIT in a sql.Tx":       {texts: []string{"BeginTx", "1", "COMMIT", "2", "Rollback"}, want: "1,2"},
			"ROLLBACK without a BEGIN": {texts: []string{"1", "ROLLBACK", "2", "COMMIT"}, want: "1,2"},
			"DDL":                      {texts: []string{"BEGIN", "1", "ANALYZE TABLE t", "2", "ROLLBACK"}, want: "1,2"},
			"a victim":                 {texts: []string{"BEGIN", "1", "2"}, fault: locktest.Deadlock, at: "VALUES (2)"},
			"lost":                     {texts: []string{"BEGIN", "1", "2"}, fault: locktest.LostConnection, at: "VALUES (2)"},
			"lost at COMMIT":           {texts: []string{"BEGIN", "1", "COMMIT"}, fault: locktest.LostConnection, at: "COMMIT"},
			"a victim at COMMIT":       {texts: []string{"BEGIN", "1", "COMMIT AND CHAIN"}, fault: locktest.Deadlock, at: "COMMIT AND CHAIN"},
			"unknown":                  {texts: []string{"BEGIN", "1", "COMMIT"}, fault: locktest.UnknownOutcome, at: "COMMIT", want: "1"},
			"unknown, chained":         {texts: []string{"BEGIN", "1", "COMMIT AND CHAIN"}, fault: locktest.UnknownOutcome, at: "COMMIT", want: "1"},
			"lost at ROLLBACK":         {texts: []string{"BeginTx", "1", "Rollback"}, fault: locktest.LostConnection, at: "ROLLBACK"},
		} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				server := leasetest.Pool(t, db, false)
				server.SetMaxOpenConns(1)
				ends := func(pool *sql.DB, fails bool) {
					t.Helper()
					err := play(t, pool, table, c.texts)
					testdb.ErrorIf(t, (err != nil) != fails, "it ends with %v", err)
					must(t, testdb.Err(server.ExecContext(t.Context(), rawsql.Probe))) // which fails in a transaction
					var got sql.NullString
					must(t, server.QueryRowContext(t.Context(), "SELECT GROUP_CONCAT(n ORDER BY n) FROM "+table).Scan(&got))
					testdb.Equal(t, "rows", got.String, c.want)
					must(t, testdb.Err(server.ExecContext(t.Context(), "DELETE FROM "+table)))
				}
				k := locktest.Open(t, server)
				if c.fault == 0 {
					ends(leasetest.Pool(t, db, false), false)
				} else {
					k.FailStatement(c.at, c.fault)
				}
				ends(sql.OpenDB(k.Connector()), c.fault != 0)
			})
		}
	}
}

// play sends texts on one connection of a pool, of which a number inserts a row, until one fails. Then
// it closes the pool.
func play(t *testing.T, pool *sql.DB, table string, texts []string) (err error) {
	t.Helper()
	conn, err := pool.Conn(t.Context())
	must(t, err)
	defer func() { err = errors.Join(err, conn.Close(), pool.Close()) }()
	var tx *sql.Tx
	for _, text := range texts {
		switch text {
		case "BeginTx":
			tx, err = conn.BeginTx(t.Context(), nil)
		case "Commit":
			err = tx.Commit()
		case "Rollback":
			err = tx.Rollback()
		default:
			if len(text) == 1 {
				text = "INSERT INTO " + table + " VALUES (" + text + ")"
			}
			_, err = conn.ExecContext(t.Context(), strings.Replace(text, "TABLE t", "TABLE "+table, 1))
		}
		if err != nil {
			_, again := conn.ExecContext(t.Context(), "SELECT 1")
			testdb.ErrorIf(t, errors.Is(again, sqldriver.ErrBadConn) != errors.Is(err, mysql.ErrInvalidConn), "a statement after %v: %v", err, again)
			return err
		}
	}
	return nil
}

// bothPools runs a test with each pool of a Kit over a program's database: the guarded one, and one that isn't.
func bothPools(t *testing.T, program *sql.DB, test func(t *testing.T, pool *sql.DB)) {
	t.Helper()
	k := locktest.Open(t, program)
	plain := sql.OpenDB(k.Connector())
	t.Cleanup(func() { must(t, plain.Close()) })
	for name, pool := range map[string]*sql.DB{"guarded": k.DB(), "plain": plain} {
		t.Run(name, func(t *testing.T) { test(t, pool) })
	}
}

// inUse checks how many connections of a program's database are in use.
func inUse(t *testing.T, what string, program *sql.DB, want int) {
	t.Helper()
	testdb.Equal(t, "connections of the program's database in use by "+what, program.Stats().InUse, want)
}

// TestOneConnection has a program's database with one connection. Nothing that has ended keeps it, and a
// sql.Conn keeps its session there until it is closed.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	program := sql.OpenDB(&numbers{all: map[string]int64{"orders": 7}})
	t.Cleanup(func() { must(t, program.Close()) })
	program.SetMaxOpenConns(1)
	program.SetMaxIdleConns(0) // one that returns is closed
	type querier interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		BeginTx(ctx context.Context, options *sql.TxOptions) (*sql.Tx, error)
		PingContext(ctx context.Context) error
	}
	bothPools(t, program, func(t *testing.T, pool *sql.DB) {
		ctx := t.Context()
		sends := func(on querier, kept int) {
			t.Helper()
			must(t, testdb.Err(on.ExecContext(ctx, "SET @n = 1")))
			inUse(t, "a statement", program, kept)
			rows, err := on.QueryContext(ctx, "SELECT n FROM orders")
			must(t, err)
			inUse(t, "open rows", program, 1)
			must(t, errors.Join(rows.Close(), rows.Err()))
			inUse(t, "closed rows", program, kept)
			must(t, on.PingContext(ctx))
			if rows, err = on.QueryContext(ctx, "SELECT n FROM missing"); err == nil {
				t.Errorf("a query of no table returns no error: %v", errors.Join(rows.Close(), rows.Err()))
			}
			inUse(t, "a query that fails", program, kept)
			for _, query := range []string{"DELETE FROM orders", ""} {
				tx, err := on.BeginTx(ctx, nil)
				must(t, err)
				if query != "" {
					_, err = tx.ExecContext(ctx, query)
				}
				must(t, errors.Join(err, tx.Commit()))
			}
			inUse(t, "a transaction that has ended", program, kept)
		}
		sends(pool, 0)
		tx := testdb.Got(pool.BeginTx(ctx, nil))(t)
		must(t, testdb.Err(tx.ExecContext(ctx, "UPDATE orders SET n = 8")))
		before, done := program.Stats().WaitCount, make(chan error)
		go func() { done <- testdb.Err(pool.ExecContext(ctx, "DELETE FROM orders")) }()
		for program.Stats().WaitCount == before {
			runtime.Gosched()
		}
		must(t, tx.Commit())
		must(t, <-done)
		inUse(t, "two who take turns", program, 0)

		conn := testdb.Got(pool.Conn(ctx))(t)
		must(t, testdb.Err(conn.ExecContext(ctx, "SET @n = 1")))
		closed := program.Stats().MaxIdleClosed
		for range 2 {
			sends(conn, 1)
			_, err := conn.PrepareContext(ctx, "SELECT n FROM orders")
			testdb.ErrorIf(t, err == nil, "a database that prepares nothing returns no error")
		}
		testdb.Equal(t, "connections that have returned before the sql.Conn is closed", program.Stats().MaxIdleClosed-closed, 0)
		must(t, conn.Close())
		testdb.Equal(t, "connections that have returned", program.Stats().MaxIdleClosed-closed, 1)
	})
}

// TestPreparedKeepsConnection has prepared statements, which keep their connection of the program's database
// until they are closed, so that each is prepared once.
func TestPreparedKeepsConnection(t *testing.T) {
	t.Parallel()
	program, mock := mocked(t)
	program.SetMaxOpenConns(1)
	bothPools(t, program, func(t *testing.T, pool *sql.DB) {
		ctx := t.Context()
		pool.SetMaxOpenConns(1)
		prepared := func() *sql.Stmt {
			update := mock.ExpectPrepare("UPDATE orders").WillBeClosed()
			for range 2 {
				update.ExpectExec().WillReturnResult(sqlmock.NewResult(0, 1))
			}
			stmt := testdb.Got(pool.PrepareContext(ctx, "UPDATE orders SET n = 1"))(t)
			for range 2 {
				must(t, testdb.Err(stmt.ExecContext(ctx)))
				inUse(t, "a prepared statement", program, 1)
			}
			return stmt
		}
		must(t, prepared().Close())
		inUse(t, "one that is closed", program, 0)
		stmt := prepared()
		conn := testdb.Got(pool.Conn(ctx))(t)
		must(t, stmt.Close())
		must(t, conn.Close())
		inUse(t, "one that was closed while its connection was in use", program, 0)
		conn = testdb.Got(pool.Conn(ctx))(t)
		mock.ExpectPrepare("DELETE FROM orders").WillBeClosed()
		stmt = testdb.Got(conn.PrepareContext(ctx, "DELETE FROM orders"))(t)
		must(t, stmt.Close())
		inUse(t, "a sql.Conn", program, 1)
		must(t, conn.Close())
		inUse(t, "a sql.Conn that is closed", program, 0)
	})
}

// TestSlowBegin begins a transaction in a program's database that doesn't answer: the wait ends with the context
// of the statement. The end of the context behind that ends no transaction.
func TestSlowBegin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, mock := onMock(t)
		mock.ExpectBegin().WillDelayFor(time.Hour)
		expects(mock, "BEGIN", updated, "COMMIT")
		for slow := range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			tx, _ := begin(t.Context(), t, k)
			began := time.Now()
			_, err := tx.ExecContext(ctx, "UPDATE orders SET n = 1")
			took := time.Since(began)
			testdb.ErrorIf(t, (err != nil) != (slow == 0) || took > time.Second, "%v after %v", err, took)
			cancel()
			synctest.Wait()
			end := tx.Commit()
			testdb.ErrorIf(t, (end != nil) != (err != nil), "Commit: %v", end)
		}
	})
}
