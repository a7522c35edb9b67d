// Package locksuite is one suite of behaviours that every way to a transaction
// shows on every server: each adapter's tests call Run.
package locksuite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// Adapter is a way to a transaction.
type Adapter struct {
	Name string
	// Guarded tells whether Open opens guarded pools.
	Guarded bool
	// Open opens a pool that is closed at the end of the test.
	Open func(tb testing.TB, cfg *mysql.Config) Pool
}

// Pool is what transactions are begun on.
type Pool interface {
	DB() *sql.DB
	Begin(ctx context.Context, level sql.IsolationLevel) (Session, error)
}

// Session is an open transaction.
type Session interface {
	Join(ctx context.Context, options ...txlock.JoinOption) (*txlock.Scope, error)
	Exec(ctx context.Context, query string, args ...any) error
	// Int reads one number, by a plain read where the query is one.
	Int(ctx context.Context, query string, args ...any) (int64, error)
	Savepoint(ctx context.Context, name string) error
	RollbackTo(ctx context.Context, name string) error
	Commit() error
	Rollback() error
}

// Run runs all behaviours by the adapters on all servers, with both isolation levels, all
// kinds of keys and both settings of a driver that interpolates: see met.
func Run(t *testing.T, adapters ...Adapter) { run(t, true, adapters) }

// RunPreparing does what Run does with a driver that prepares each statement.
func RunPreparing(t *testing.T, adapters ...Adapter) { run(t, false, adapters) }

func run(t *testing.T, interpolates bool, adapters []Adapter) {
	for _, engine := range testdb.Engines() {
		for a, adapter := range adapters {
			for i, v := range variants {
				if v.interpolates == interpolates {
					t.Run(fmt.Sprintf("%s/%s/%s", engine, adapter.Name, v.name), func(t *testing.T) {
						t.Parallel()
						runVariant(t, engine, adapter, v, met(a, i, testdb.Long(false, true)))
					})
				}
			}
		}
	}
}

func runVariant(t *testing.T, engine testdb.Engine, adapter Adapter, v variant, kinds []kind) {
	db := testdb.Open(t, engine)
	cluster := onCluster(t, db)
	for _, b := range slices.Concat(behaviours, versions, onces) {
		for _, kind := range kinds {
			t.Run(b.name+"/"+kind.name, func(t *testing.T) {
				t.Parallel()
				e := &env{T: t, db: db, adapter: adapter, variant: v, kind: kind, cluster: cluster}
				e.pool = adapter.Open(t, db.Config(v.set))
				b.show(e)
				e.poolIsAsBefore()
			})
		}
	}
}

// onCluster tells whether the database is on a node of a cluster of several primaries,
// where shared locks are refused.
func onCluster(t *testing.T, db *testdb.DB) bool {
	t.Helper()
	err := schema.CheckCluster(t.Context(), db.Admin())
	if err != nil && !errors.Is(err, schema.ErrMultiPrimary) {
		t.Fatal(err)
	}
	return err != nil
}

// env is what a behaviour works with.
type env struct {
	*testing.T
	db      *testdb.DB
	adapter Adapter
	variant variant
	kind    kind
	pool    Pool
	memory  Memory // in place of db and pool
	cluster bool
}

// engine is where the locks are.
func (e *env) engine() testdb.Engine {
	if e.memory != nil {
		return "memory"
	}
	return e.db.Engine()
}

var lastID atomic.Int64

// key returns a key that no other test has, nor, where it is hashed, its slot.
func (e *env) key() txlock.Key { return e.keyOf(e.kind.family) }

// apart returns a key whose row is no neighbour of key's.
func (e *env) apart() txlock.Key { return e.keyOf(e.kind.apart) }

func (e *env) keyOf(family txlock.Family[int64]) txlock.Key {
	e.Helper()
	key := family.Key(lastID.Add(1))
	for key.Hashed() && !claim(e.engine(), key.Slot()) {
		key = family.Key(lastID.Add(1))
	}
	if e.kind.ensure {
		if err := txlock.Ensure(e.Context(), e.db.Admin(), key); err != nil {
			e.Fatal(err)
		}
	}
	return key
}

// session is an open transaction and its locks.
type session struct {
	Session
	Locks
	e  *env
	id int64 // CONNECTION_ID()
}

// begin begins a transaction on a pool of its own with one connection, whose
// number is known without a statement in the transaction.
func (e *env) begin() *session {
	e.Helper()
	if e.memory != nil {
		return e.beginIn(e.memory)
	}
	pool := e.adapter.Open(e, e.db.Config(e.variant.set))
	pool.DB().SetMaxOpenConns(1)
	return e.beginOn(pool)
}

func (e *env) beginOn(pool Pool) *session {
	e.Helper()
	s := &session{e: e}
	if err := pool.DB().QueryRowContext(e.Context(), "SELECT CONNECTION_ID()").Scan(&s.id); err != nil {
		e.Fatal(err)
	}
	var err error
	if s.Session, err = pool.Begin(e.Context(), e.variant.level); err != nil {
		e.Fatalf("begin: %v", err)
	}
	e.Cleanup(func() {
		if err := s.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) && !errors.Is(err, sql.ErrConnDone) && !gone(err) {
			e.Errorf("roll back at the end: %v", err)
		}
	})
	s.join(txlock.NothingRead())
	return s
}

// join joins the transaction.
func (s *session) join(options ...txlock.JoinOption) {
	s.e.Helper()
	if s.e.memory != nil {
		return // its locks are there from the beginning
	}
	joined, err := s.Join(s.e.Context(), options...)
	if err != nil {
		s.e.Fatalf("join: %v", err)
	}
	s.Locks = scope{joined}
}

// lock locks and must succeed.
func (s *session) lock(key txlock.Key) txlock.Grant {
	s.e.Helper()
	grant, err := s.Lock(s.e.Context(), key)
	if err != nil {
		s.e.Fatalf("Lock(%v): %v", key, err)
	}
	return grant
}

// read fixes the snapshot.
func (s *session) read(table string) int64 {
	s.e.Helper()
	n, err := s.Int(s.e.Context(), "SELECT COALESCE(SUM(n), 0) FROM "+table)
	if err != nil {
		s.e.Fatalf("read: %v", err)
	}
	return n
}

// commit commits and must succeed.
func (s *session) commit() {
	s.e.Helper()
	if err := s.Commit(); err != nil {
		s.e.Fatalf("commit: %v", err)
	}
}

// wants fails the test unless the error matches the wanted.
func (e *env) wants(err, want error) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Fatalf("got error %v, want %v", err, want)
	}
}

// free tells that another transaction is given the key. It doesn't try: who has
// the next row may hold up the making of this one for a moment, see kind.apart.
func (e *env) free(key txlock.Key) txlock.Grant {
	e.Helper()
	s := e.begin()
	ctx, cancel := context.WithTimeout(e.Context(), 30*time.Second)
	defer cancel()
	grant, err := s.Lock(ctx, key)
	if err != nil {
		e.Fatalf("the lock of %v should be free: %v", key, err)
	}
	if err := s.Rollback(); err != nil {
		e.Fatal(err)
	}
	return grant
}

// made makes the row of a fresh key.
func (e *env) made(key txlock.Key) {
	e.Helper()
	if e.kind.name == "fresh" {
		s := e.begin()
		s.lock(key)
		s.commit()
	}
}

// busy tells that another transaction is refused the key.
func (e *env) busy(key txlock.Key) {
	e.Helper()
	s := e.begin()
	_, err := s.TryLock(e.Context(), key)
	e.wants(err, txlock.ErrBusy)
	if errors.Is(err, txlock.ErrWaitTimeout) {
		e.Fatalf("a refused try matches ErrWaitTimeout: %v", err)
	}
	if err := s.Rollback(); err != nil {
		e.Fatal(err)
	}
}

// answer is what a call in the background returned.
type answer struct {
	grant txlock.Grant
	err   error
}

// waiting calls in the background and returns when the server has it waiting.
func (s *session) waiting(call func() (txlock.Grant, error)) <-chan answer {
	s.e.Helper()
	answered := make(chan answer, 1)
	go func() {
		grant, err := call()
		answered <- answer{grant, err}
	}()
	defer func() {
		if !s.e.Failed() {
			return
		}
		select {
		case a := <-answered:
			s.e.Logf("it didn't wait: %+v", a)
		default:
		}
	}()
	if s.e.memory != nil {
		s.e.memory.AwaitWaiting(s.e, s.Session)
	} else {
		s.e.db.WaitForLockWait(s.e, s.id)
	}
	return answered
}

// poolIsAsBefore tells that no connection is in use when a behaviour has ended
// its transactions.
func (e *env) poolIsAsBefore() {
	e.Helper()
	if n := e.pool.DB().Stats().InUse; n != 0 {
		e.Errorf("%d connections are still in use", n)
	}
}
