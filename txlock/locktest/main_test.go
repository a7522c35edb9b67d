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
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var orders = txlock.NewFamily[int64]("order")

var must, wants = testdb.Must, testdb.Wants

// leasesOf returns a manager, which is closed when the test ends.
func leasesOf(t *testing.T, pool *sql.DB) *lease.Manager {
	t.Helper()
	m := testdb.Got(lease.NewManager(pool))(t)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	return m
}

// sessions are those of the actors, each with a connection of its own.
type sessions struct {
	asked *sql.DB // by no actor
	pools []*sql.DB
	table string
}

// server is a real one.
type server struct {
	sessions
	db  *testdb.DB
	ids []int64

	programs, undecided int // how many were run, and of those not to the end
}

// newServer opens the pools of the actors.
func newServer(t *testing.T, db *testdb.DB) *server {
	t.Helper()
	s := &server{db: db, sessions: sessions{asked: db.Admin(), table: db.CreateTable(t, "actors", "n INT PRIMARY KEY")}}
	for i := range maxActors {
		db.Exec(t, fmt.Sprintf("INSERT INTO %s (n) VALUES (%d)", s.table, i))
		pool := leasetest.Pool(t, db, true)
		pool.SetMaxOpenConns(1)
		s.pools, s.ids = append(s.pools, pool), append(s.ids, testdb.ConnID(t, pool))
	}
	return s
}

func (s *sessions) begin(actor int, options *sql.TxOptions) (*openTx, error) {
	tx, err := s.pools[actor].BeginTx(context.Background(), options)
	if err != nil {
		return nil, err
	}
	scope, err := txlock.Join(context.Background(), tx)
	return &openTx{scope, tx, s.table}, err
}

// waits returns when the server has the actor's call waiting, or when it has returned. It
// looks twice, for a call that has waited for a moment and gone on.
func (s *server) waits(actor int, returned <-chan answer) (answer, bool, error) {
	seen := 0
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		waits, err := s.db.WaitsForLock(context.Background(), s.ids[actor])
		select {
		case a := <-returned:
			return a, true, nil
		default:
		}
		if waits {
			seen++
		} else {
			seen = 0
		}
		if seen > 1 || err != nil {
			return answer{}, false, err
		}
		select {
		case a := <-returned:
			return a, true, nil
		case <-time.After(2 * time.Millisecond):
		}
	}
	return answer{}, false, fmt.Errorf("T%d neither waits nor returns", actor+1)
}

// openTx is a transaction of such a session, with its locks.
type openTx struct {
	*txlock.Scope
	*sql.Tx
	table string
}

// Snapshot is a plain read.
func (t *openTx) Snapshot() error {
	var n int
	return t.QueryRow("SELECT COUNT(*) FROM " + t.table).Scan(&n)
}

func (t *openTx) Savepoint(name string) error { return testdb.Err(t.Exec("SAVEPOINT " + name)) }
func (t *openTx) RollbackTo(name string) error {
	return testdb.Err(t.Exec("ROLLBACK TO SAVEPOINT " + name))
}

// keys makes the keys of a program, and the rows that are there before it. Around each there is a row that nobody locks, so
// that what the server does to the gap beside one concerns no other.
func (s *server) keys(t *testing.T, p program) (keys []txlock.Key) {
	t.Helper()
	number := lastProgram.Add(1)
	there := []txlock.Key{txlock.Named(fmt.Sprintf("%06d:", number))}
	for i, kind := range p.keys {
		key := txlock.Named(fmt.Sprintf("%06d:%d", number, i))
		there = append(there, txlock.Named(key.String()+"~"))
		switch kind {
		case ensured:
			there = append(there, key)
		case hashed:
			key = s.hashed()
		}
		keys = append(keys, key)
	}
	must(t, txlock.Ensure(t.Context(), s.db.Admin(), there...))
	return keys
}

// hashed returns a key whose slot nobody else uses.
func (s *server) hashed() txlock.Key {
	for {
		key := hashedKeys.Key(lastHashed.Add(1))
		if _, taken := slots.LoadOrStore(fmt.Sprint(s.db.Engine(), key.Slot()), true); !taken {
			return key
		}
	}
}

var (
	hashedKeys  = txlock.NewFamily[int64]("different", txlock.Hashed())
	lastHashed  atomic.Int64
	lastProgram atomic.Int64
	slots       sync.Map
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
	session := testdb.Got(locksuite.BeginTx(context.Background(), m.DB(), sql.LevelDefault))(m.tb)
	scope := testdb.Got(session.Join(context.Background()))(m.tb)
	return session, suiteLocks{m, scope}
}

func (m *suiteMemory) AwaitWaiting(tb testing.TB, _ locksuite.Session) {
	tb.Helper()
	for end := time.Now().Add(30 * time.Second); int64(m.Waiting()) < max(1, m.calls.Load()); time.Sleep(time.Millisecond) {
		testdb.FatalIf(tb, time.Now().After(end), "nobody waits")
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
