package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// stub is a driver that answers every statement at once, so that only the cost of
// database/sql and of the locks remains.
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
	tx, err := pool.BeginTx(ctx, nil)
	check(tb, err)
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

// TestRunOnDeadConnections proves that Run begins on another connection where the first is dead, and
// gives up where all are; that it runs again what COMMIT refuses, as on a cluster; and that it returns
// the errors of BEGIN and of ROLLBACK.
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
		if d.begun != c.begun || calls != c.calls || number(err) != c.number || c.number == 0 && !errors.Is(err, c.want) || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%v: %d transactions are begun, want %d, and %d calls, want %d; %v", c, d.begun, c.begun, calls, c.calls, err)
		}
		check(t, pool.Close())
	}
}

// answered is the server's error of a number.
func answered(number uint16) error { return &mysql.MySQLError{Number: number} }

// TestGoSideIsSmall limits what Join and Lock add to an empty transaction: 15
// allocations, and far more than the 5 microseconds that BenchmarkGoSide allows, since
// the race detector slows them down.
func TestGoSideIsSmall(t *testing.T) {
	pool := stubPool(t)
	const rounds = 2000
	allocations := func(lock bool) float64 { return testing.AllocsPerRun(rounds, func() { lockOnce(t, pool, lock) }) }
	if added := allocations(true) - allocations(false); added > 15 {
		t.Errorf("Join and Lock allocate %.0f times", added)
	}
	// The quickest of many short turns counts: in the others another process may have had
	// the processor.
	cost := func(lock bool) time.Duration {
		const turns = 100
		quickest := time.Hour
		for range turns {
			began := time.Now()
			for range rounds / turns {
				lockOnce(t, pool, lock)
			}
			quickest = min(quickest, time.Since(began)*turns/rounds)
		}
		return quickest
	}
	cost(true)
	if added := cost(true) - cost(false); added > 500*time.Microsecond {
		t.Errorf("Join and Lock take %v", added)
	}
}

// BenchmarkGoSide measures Join and Lock without a server, and the transaction around
// them alone.
func BenchmarkGoSide(b *testing.B) {
	for _, c := range []struct {
		name string
		lock bool
	}{{"begin-lock-commit", true}, {"begin-commit", false}} {
		b.Run(c.name, func(b *testing.B) {
			pool := stubPool(b)
			b.ReportAllocs()
			for b.Loop() {
				lockOnce(b, pool, c.lock)
			}
		})
	}
}
