package locktest_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// TestSuite runs the suite of the locks on servers on a Kit, whose program has numbers.
func TestSuite(t *testing.T) {
	locksuite.RunInMemory(t, func(tb testing.TB) locksuite.Memory {
		m := &suiteMemory{tb: tb, numbers: &numbers{all: make(map[string]int64)}}
		program := sql.OpenDB(m.numbers)
		tb.Cleanup(func() { must(tb, program.Close()) })
		m.Kit = locktest.Open(tb, program)
		return m
	})
}

// suiteMemory is a Kit with numbers beside the locks.
type suiteMemory struct {
	tb testing.TB
	*locktest.Kit
	*numbers
	calls atomic.Int64 // that are under way
}

func (m *suiteMemory) ReadVersion(ctx context.Context, key txlock.Key) (uint64, error) {
	return txlock.ReadVersion(ctx, m.DB(), key)
}

func (m *suiteMemory) Holders(ctx context.Context, keys ...txlock.Key) ([]txlock.Holder, error) {
	return txlock.Holders(ctx, m.DB(), keys...)
}

func (m *suiteMemory) Begin() (locksuite.Session, locksuite.Locks) {
	session := leasetest.Got(locksuite.BeginTx(context.Background(), m.DB(), sql.LevelDefault))(m.tb)
	scope := leasetest.Got(session.Join(context.Background()))(m.tb)
	return session, suiteLocks{m, scope}
}

func (m *suiteMemory) AwaitWaiting(tb testing.TB, _ locksuite.Session) {
	tb.Helper()
	for end := time.Now().Add(30 * time.Second); int64(m.Waiting()) < max(1, m.calls.Load()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal("nobody waits")
		}
	}
}

// suiteLocks is a scope that counts the calls which may wait.
type suiteLocks struct {
	memory *suiteMemory
	*txlock.Scope
}

func (l suiteLocks) WaitAtMost(d time.Duration) locksuite.Locks {
	return suiteLocks{l.memory, l.Scope.WaitAtMost(d)}
}

func (l suiteLocks) counted() (end func()) {
	l.memory.calls.Add(1)
	return func() { l.memory.calls.Add(-1) }
}

func (l suiteLocks) Lock(ctx context.Context, key txlock.Key) (txlock.Grant, error) {
	defer l.counted()()
	return l.Scope.Lock(ctx, key)
}

func (l suiteLocks) RLock(ctx context.Context, key txlock.Key) (txlock.Grant, error) {
	defer l.counted()()
	return l.Scope.RLock(ctx, key)
}

func (l suiteLocks) LockAll(ctx context.Context, keys ...txlock.Key) ([]txlock.Grant, error) {
	defer l.counted()()
	return l.Scope.LockAll(ctx, keys...)
}

func (l suiteLocks) CompareAndBump(ctx context.Context, key txlock.Key, version uint64) error {
	defer l.counted()()
	return l.Scope.CompareAndBump(ctx, key, version)
}

func (l suiteLocks) Once(ctx context.Context, key txlock.Key, options ...txlock.OnceOption) (bool, error) {
	defer l.counted()()
	return l.Scope.Once(ctx, key, options...)
}

// numbers is a database of tables with one number each.
type numbers struct {
	mu  sync.Mutex
	all map[string]int64
}

func (n *numbers) Numbers() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := fmt.Sprintf("numbers%d", len(n.all))
	n.all[name] = 0
	return name
}

func (n *numbers) Connect(context.Context) (sqldriver.Conn, error) {
	return &numbersConn{numbers: n}, nil
}
func (n *numbers) Driver() sqldriver.Driver { return nil }

// numbersConn is a connection with what its transaction has written, and its snapshot.
type numbersConn struct {
	*numbers
	snapshot, written map[string]int64
}

func (c *numbersConn) Close() error                           { return nil }
func (c *numbersConn) Prepare(string) (sqldriver.Stmt, error) { return nil, sqldriver.ErrSkip }
func (c *numbersConn) Begin() (sqldriver.Tx, error) {
	c.snapshot, c.written = nil, make(map[string]int64)
	return c, nil
}

func (c *numbersConn) BeginTx(context.Context, sqldriver.TxOptions) (sqldriver.Tx, error) {
	return c.Begin()
}

func (c *numbersConn) Commit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(c.all, c.written)
	return nil
}

func (c *numbersConn) Rollback() error { return nil }

// ExecContext sets a number. Any other statement changes nothing.
func (c *numbersConn) ExecContext(_ context.Context, query string, _ []sqldriver.NamedValue) (sqldriver.Result, error) {
	var table string
	var n int64
	if _, err := fmt.Sscanf(query, "UPDATE %s SET n = %d", &table, &n); err == nil {
		c.written[table] = n
	}
	return sqldriver.RowsAffected(1), nil
}

// QueryContext reads the number of the table that the query ends with.
func (c *numbersConn) QueryContext(_ context.Context, query string, _ []sqldriver.NamedValue) (sqldriver.Rows, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.snapshot == nil {
		c.snapshot = maps.Clone(c.all)
	}
	table := query[strings.LastIndex(query, " ")+1:]
	n, ok := c.written[table]
	if !ok {
		if n, ok = c.snapshot[table]; !ok {
			return nil, fmt.Errorf("no table %q", table)
		}
	}
	return &oneNumber{n: n}, nil
}

type oneNumber struct {
	n    int64
	read bool
}

func (o *oneNumber) Columns() []string { return []string{"n"} }
func (o *oneNumber) Close() error      { return nil }
func (o *oneNumber) Next(into []sqldriver.Value) error {
	if o.read {
		return io.EOF
	}
	o.read, into[0] = true, o.n
	return nil
}
