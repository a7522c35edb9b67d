package locksqlc_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// counted is a transaction that writes one row, and how many round trips it has: on a guarded pool, on one
// of a MySQL without procedures, and on plain pools of MariaDB and MySQL, 0 for what isn't counted there.
type counted struct {
	name  string
	run   way
	trips [4]int
}

// inTx is a transaction of the program's own that calls a verb first, or behind a read.
func inTx(call verb, reads bool) way {
	return func(ctx context.Context, db *sql.DB, key txlock.Key, write func(tx *sql.Tx) error) error {
		return plainly(ctx, db, nil, func(tx *sql.Tx, scope *txlock.Scope) error {
			if reads {
				if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM lockstep_leases").Scan(new(int)); err != nil {
					return err
				}
			}
			if scope.Guarded() { // a second Join sends nothing
				if _, err := locksqlc.Join(ctx, tx); err != nil {
					return err
				}
			}
			return errors.Join(call(ctx, scope, key), write(tx))
		})
	}
}

// verbsCounted has a row for each verb, which is named for it.
var verbsCounted = []counted{
	{"Lock", inTx(verbs["Lock"], false), [4]int{3, 4, 8, 10}},
	{"Lock after a read", inTx(verbs["Lock"], true), [4]int{5, 7, 9, 11}},
	{"Lock twice", inTx(inTurn(verbs["Lock"], verbs["Lock"]), false), [4]int{3, 4, 10, 14}},
	{"TryLock", inTx(verbs["TryLock"], false), [4]int{3, 5, 8, 10}},
	{"RLock", inTx(verbs["RLock"], false), [4]int{3, 4, 8, 9}},
	{"RLock of a hashed key", inTx(func(ctx context.Context, s *txlock.Scope, _ txlock.Key) error {
		return testdb.Err(s.RLock(ctx, hashed.Key(1)))
	}, false), [4]int{3, 4}},
	{"TryRLock", inTx(verbs["TryRLock"], false), [4]int{3, 4, 8, 9}},
	{"LockAny of 2", inTx(together((*txlock.Scope).LockAny, "a"), false), [4]int{3, 5, 8, 10}},
	{"WaitAtMost Lock", inTx(verbs["WaitAtMost"], false), [4]int{3, 5, 8, 10}},
	{"WaitAtMost RLock", inTx(verbs["RLock in time"], false), [4]int{3, 4}},
	{"LockAll of 3", inTx(together((*txlock.Scope).LockAll, "a", "b"), false), [4]int{3, 5, 8, 11}},
	{"RLockAll of 2", inTx(together((*txlock.Scope).RLockAll, "a"), false), [4]int{4, 5, 10, 12}},
	{"LockAll of 1 and 1 shared", inTx(func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return testdb.Err(s.LockAll(ctx, key, txlock.Shared(besides(key, "a"))))
	}, false), [4]int{4, 5, 10, 13}},
	{"Version and CompareAndBump", inTx(raiseVersion(1), false), [4]int{4, 5, 10, 10}},
	{"CompareAndBump twice", inTx(raiseVersion(2), false), [4]int{4, 5, 12, 12}},
	{"CompareAndBump", inTx(verbs["CompareAndBump"], false), [4]int{3, 4, 9, 9}},
	{"CompareAndBump after a read", inTx(verbs["CompareAndBump"], true), [4]int{6, 6, 10, 10}},
	{"Once", inTx(verbs["Once"], false), [4]int{3, 4, 8, 8}},
	{"Verify", inTx(func(ctx context.Context, s *txlock.Scope, _ txlock.Key) error { return s.Verify(ctx) }, false), [4]int{4, 4, 7, 7}},
	{"nothing", func(ctx context.Context, db *sql.DB, key txlock.Key, _ func(tx *sql.Tx) error) error {
		return inTx(inTurn(), false)(ctx, db, key, func(*sql.Tx) error { return nil })
	}, [4]int{0, 0, 5, 5}},
}

// waysCounted are the functions that run a transaction.
var waysCounted = []counted{
	{"Run", running["Run"], [4]int{3, 4}},
	{"Run with options", func(ctx context.Context, db *sql.DB, key txlock.Key, write func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, db, []txlock.Key{key}, write, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	}, [4]int{3, 5}},
	{"Run of a new key", func(ctx context.Context, db *sql.DB, key txlock.Key, write func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, db, []txlock.Key{besides(key, rand.Text())}, write)
	}, [4]int{3, 5}},
	{"Run of three keys", func(ctx context.Context, db *sql.DB, key txlock.Key, write func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, db, []txlock.Key{key, besides(key, "a"), besides(key, "b")}, write)
	}, [4]int{3, 5}},
	{"Optimistic", running["Optimistic"], [4]int{3, 5}},
	{"Do, which writes nothing", func(ctx context.Context, db *sql.DB, key txlock.Key, _ func(tx *sql.Tx) error) error {
		return locksqlc.Do(ctx, db, key, func(context.Context) error { return nil })
	}, [4]int{2, 3}},
	{"TryDo, which writes nothing", func(ctx context.Context, db *sql.DB, key txlock.Key, _ func(tx *sql.Tx) error) error {
		return locksqlc.TryDo(ctx, db, key, func(context.Context) error { return nil })
	}, [4]int{2, 4}},
	{"Once of a new key", func(ctx context.Context, db *sql.DB, key txlock.Key, write func(tx *sql.Tx) error) error {
		return testdb.Err(locksqlc.Once(ctx, db, besides(key, rand.Text()), write))
	}, [4]int{3, 4}},
}

// inTurn are calls of several verbs.
func inTurn(all ...verb) verb {
	return func(ctx context.Context, s *txlock.Scope, key txlock.Key) (err error) {
		for _, call := range all {
			err = errors.Join(err, call(ctx, s, key))
		}
		return err
	}
}

// raiseVersion reads a version, and compares and raises it so often.
func raiseVersion(times int) verb {
	return func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		version, err := s.Version(ctx, key)
		for range times {
			err = errors.Join(err, s.CompareAndBump(ctx, key, version))
		}
		return err
	}
}

// hasProcedures reports whether the databases of the tests have lockstep's procedures.
func hasProcedures(engine testdb.Engine) bool {
	return engine == testdb.MySQL && !testdb.WithoutProcedures()
}

// TestTrips: a lock on a guarded pool has the round trip of BEGIN, and none of its own.
func TestTrips(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, kind := range []string{"guarded", "without procedures", "plain"} {
			if kind == "without procedures" && db.Engine() == testdb.MariaDB {
				continue
			}
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				db, compares := db, db.HasSnapshotIsolation(t) // a MariaDB that doesn't is treated as MySQL behind a read
				if kind == "without procedures" {
					db = testdb.Shared(t, db.Engine()).OpenNamed(t, hashed.Key(1).Slot())
					db.DropProcedures(t)
				}
				table := db.CreateTable(t, "trips", "id INT PRIMARY KEY")
				write := func(tx *sql.Tx) error {
					return testdb.Err(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1) ON DUPLICATE KEY UPDATE id = 1"))
				}
				trips, count := testdb.CountTrips(t)
				for _, v := range slices.Concat(verbsCounted, waysCounted) {
					column := 0
					switch mySQL := db.Engine() == testdb.MySQL; {
					case kind == "plain" && compares:
						column = 2
					case kind == "plain":
						column = 3
					case mySQL && (kind != "guarded" || !hasProcedures(db.Engine())), !mySQL && !compares && strings.HasSuffix(v.name, "after a read"):
						column = 1
					}
					want := v.trips[column]
					if want == 0 && v.name != "nothing" {
						continue
					}
					pool := single(newPool(t, db.Config(count, interpolating), kind != "plain")) // which prepares no text of other verbs
					before := 0
					for range 2 { // what a process asks a server once, it asks for the first key
						key := uniqueKey(t, v.name)
						check(t, txlock.Ensure(t.Context(), pool, key, besides(key, "a"), besides(key, "b")))
						before = trips.Count()
						check(t, v.run(t.Context(), pool, key, write))
					}
					sent := trips.Since(before)
					testdb.ErrorIf(t, len(sent) != want, "%s: %d round trips, want %d: %q", v.name, len(sent), want, sent)
				}
			})
		}
	})
}

// TestAllVerbsAreCounted: TestTrips counts each verb that sends statements of its own, TestSharedTextsAsAlone those that go with the program's.
func TestAllVerbsAreCounted(t *testing.T) {
	scope := reflect.TypeFor[*txlock.Scope]()
	for i := range scope.NumMethod() {
		verb := scope.Method(i)
		sends := verb.Type.NumIn() > 1 && verb.Type.In(1) == reflect.TypeFor[context.Context]() && verb.Type.Out(0) != verb.Type.In(1)
		testdb.ErrorIf(t, sends && !slices.ContainsFunc(verbsCounted, func(v counted) bool { return slices.Contains(strings.Fields(v.name), verb.Name) }),
			"no row of verbsCounted is named for %s", verb.Name)
	}
}

// TestOptimisticWithoutItsEnd: a transaction ends by statements, once, whose procedure for that was dropped behind its beginning.
func TestOptimisticWithoutItsEnd(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if !hasProcedures(db.Engine()) {
			return
		}
		for _, name := range []string{"lockstep_compare_1", "lockstep_raise_1"} {
			db := testdb.Shared(t, db.Engine()).OpenNamed(t)
			table, key, runs := numbers(t, db), uniqueKey(t, name), 0
			pool := newPool(t, db.Config(), true)
			check(t, locksqlc.Optimistic(t.Context(), pool, key, func(tx *sql.Tx) error {
				if runs++; runs == 1 {
					db.DropProcedures(t, name)
				}
				return testdb.Err(tx.ExecContext(t.Context(), "UPDATE "+table+" SET v = v + 1"))
			}))
			version := testdb.Got(txlock.ReadVersion(t.Context(), pool, key))(t)
			n := count(t, db.Admin(), "SELECT v FROM "+table)
			testdb.ErrorIf(t, runs != 1 || n != 1 || version == 0, "without %s: %d runs, %d updates, version %d", name, runs, n, version)
		}
	})
}

// TestTripsOfABusyKey: a try of a held key has one round trip, a bounded wait for it three.
func TestTripsOfABusyKey(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if !hasProcedures(db.Engine()) {
			return
		}
		trips, counting := testdb.CountTrips(t)
		key, pool := uniqueKey(t, "busy"), newPool(t, db.Config(), true)
		check(t, txlock.Ensure(t.Context(), pool, key))
		holder := begin(t, pool)
		held := lock(t, join(t, holder), key)

		conn := takeConn(t, newPool(t, db.Config(counting), true))
		id, tx := testdb.ConnID(t, conn), begin(t, conn)
		scope, before := join(t, tx), trips.Count()
		isError(t, "TryLock of a key that is held", testdb.Err(scope.TryLock(t.Context(), key)), txlock.ErrBusy)
		testdb.Equal(t, "round trips of a try", trips.Count()-before, 1)
		check(t, errors.Join(scope.Verify(t.Context()), tx.Rollback()))

		tx = begin(t, conn)
		scope, before = join(t, tx), trips.Count()
		granted := db.Waiting(t, id, func() error { return testdb.Err(scope.WaitAtMost(time.Minute).Lock(t.Context(), key)) })
		check(t, errors.Join(holder.Commit(), <-granted))
		if grant, _ := scope.Held(key); trips.Count()-before != 3 || grant.Token() <= held.Token() {
			t.Errorf("a wait took %d round trips, want 3, and its token is %d after %d", trips.Count()-before, grant.Token(), held.Token())
		}
		check(t, tx.Commit())
	})
}

// stub is a driver that answers every statement at once, so that only the cost of database/sql and of the locks remains.
type stub struct{}

func (stub) Connect(context.Context) (driver.Conn, error) { return stub{}, nil }
func (stub) Driver() driver.Driver                        { return nil }
func (stub) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (stub) Close() error                                 { return nil }
func (stub) Begin() (driver.Tx, error)                    { return stub{}, nil }
func (stub) Commit() error                                { return nil }
func (stub) Rollback() error                              { return nil }
func (stub) LastInsertId() (int64, error)                 { return 1_700_000_000_000_000, nil }
func (stub) RowsAffected() (int64, error)                 { return 1, nil }
func (stub) CheckNamedValue(*driver.NamedValue) error     { return nil }

func (stub) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return stub{}, nil }

func (stub) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return stub{}, nil
}

func (stub) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return &facts{}, nil
}

// facts has the one row that a new connection asks for.
type facts struct{ read bool }

func (*facts) Columns() []string { return make([]string, session.Columns) }
func (*facts) Close() error      { return nil }
func (f *facts) Next(dest []driver.Value) error {
	if f.read {
		return io.EOF
	}
	f.read = true
	copy(dest, session.Reply("10.11.19-MariaDB", "stub"))
	return nil
}

// stubPool is a guarded pool with one connection over the stub.
func stubPool(tb testing.TB) *sql.DB {
	tb.Helper()
	pool := sql.OpenDB(locksqlc.Connector(stub{}))
	pool.SetMaxOpenConns(1)
	tb.Cleanup(func() { check(tb, pool.Close()) })
	return pool
}

// lockOnce runs a transaction, with a lock or without.
func lockOnce(tb testing.TB, pool *sql.DB, lock bool) {
	ctx := context.Background()
	tx := testdb.Got(pool.BeginTx(ctx, nil))(tb)
	if lock {
		scope, err := locksqlc.Join(ctx, tx)
		check(tb, err)
		if grant, err := scope.Lock(ctx, goSideKey); err != nil || grant.Token() == 0 {
			tb.Fatal(grant, err)
		}
	}
	check(tb, tx.Commit())
}

var goSideKey = txlock.NewFamily[int64]("go-side").Key(4711)

// faulty is a driver with errors of what begins and ends transactions, one after the other.
type faulty struct {
	stub
	errs  map[string][]error
	begun int
}

func (f *faulty) next(what string) (err error) {
	if left := f.errs[what]; len(left) > 0 {
		err, f.errs[what] = left[0], left[1:]
	}
	return err
}

func (f *faulty) Connect(context.Context) (driver.Conn, error) { return f, nil }
func (f *faulty) Commit() error                                { return f.next("COMMIT") }
func (f *faulty) Rollback() error                              { return f.next("ROLLBACK") }

func (f *faulty) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	f.begun++
	return f, f.next("BEGIN")
}

// ExecContext says that a transaction is open.
func (f *faulty) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return nil, &mysql.MySQLError{Number: 1568}
}

// TestRunOnDeadConnections: Run begins on another connection where one is dead, runs again what COMMIT refuses, and returns other errors.
func TestRunOnDeadConnections(t *testing.T) {
	t.Parallel()
	dead, no := driver.ErrBadConn, errors.New("no")
	for _, c := range []struct {
		errs         map[string][]error
		returns      error // of the function
		calls, begun int
		want         error
		number       uint16
	}{
		{nil, nil, 1, 1, nil, 0},
		{map[string][]error{"BEGIN": {dead}}, nil, 1, 2, nil, 0},
		{map[string][]error{"BEGIN": {dead, dead}}, nil, 1, 3, nil, 0},
		{map[string][]error{"BEGIN": {dead, dead, dead}}, nil, 0, 3, dead, 0},
		{map[string][]error{"BEGIN": {answered(1040)}}, nil, 0, 1, nil, 1040},
		{map[string][]error{"COMMIT": {answered(1213)}}, nil, 2, 2, nil, 0},
		{map[string][]error{"ROLLBACK": {answered(1158)}}, no, 1, 1, no, 1158},
	} {
		d, calls := &faulty{errs: c.errs}, 0
		pool := sql.OpenDB(d)
		err := locksqlc.Run(t.Context(), pool, nil, func(*sql.Tx) error { calls++; return c.returns })
		testdb.ErrorIf(t, d.begun != c.begun || calls != c.calls || number(err) != c.number || c.number == 0 && !errors.Is(err, c.want) || c.want != nil && !errors.Is(err, c.want),
			"%v: %d transactions are begun, want %d, and %d calls, want %d; %v", c, d.begun, c.begun, calls, c.calls, err)
		check(t, pool.Close())
	}
}

// answered is the server's error of a number.
func answered(number uint16) error { return &mysql.MySQLError{Number: number} }

// TestGoSideIsSmall: Join and Lock add 15 allocations at most to an empty transaction.
func TestGoSideIsSmall(t *testing.T) {
	pool := stubPool(t)
	allocations := func(lock bool) float64 { return testing.AllocsPerRun(2000, func() { lockOnce(t, pool, lock) }) }
	added := allocations(true) - allocations(false)
	testdb.ErrorIf(t, added > 15, "Join and Lock allocate %.0f times", added)
}
