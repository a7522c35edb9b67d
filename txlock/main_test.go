package txlock_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var exec, number, limited, newPool, noError, wants = testdb.Exec, testdb.Number, leasetest.Limited, leasetest.Pool, testdb.Must, testdb.Wants

// onServers runs a test on every server.
func onServers(t *testing.T, test func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) { test(t, testdb.Open(t, engine)) })
}

// onOwn is onServers with a database for the test alone, without rows for hashed keys.
func onOwn(t *testing.T, test func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) { test(t, testdb.Shared(t, engine).OpenNamed(t)) })
}

// onCenters is onOwn with all rows for hashed keys.
func onCenters(t *testing.T, test func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) { test(t, testdb.Shared(t, engine).Open(t)) })
}

// ungranted is a database whose tables the application's user may not use.
func ungranted(t *testing.T, engine testdb.Engine) *testdb.DB {
	t.Helper()
	db := testdb.Fresh(t, engine)
	statements := testdb.Got(schema.Statements())(t)
	for _, statement := range statements {
		if strings.HasPrefix(statement, "CREATE") {
			db.Exec(t, statement)
		}
	}
	return db
}

// impatience ends waits for a row after a second.
func impatience(cfg *mysql.Config) { cfg.Params = map[string]string{"innodb_lock_wait_timeout": "1"} }

func impatient(t *testing.T, db *testdb.DB, guarded bool) *sql.DB {
	t.Helper()
	return newPool(t, db, guarded, impatience)
}

// session is a transaction on a pool of its own, and its locks.
type session struct {
	*txlock.Scope
	tx    *sql.Tx
	id    int64
	begun time.Time // of till
}

// inTx is a new transaction in which nothing was sent, joined. It is rolled back at the end at the latest, and not behind the test.
func inTx(t *testing.T, pool *sql.DB, options ...txlock.JoinOption) *session {
	t.Helper()
	tx := testdb.Begin(t, pool)
	scope := testdb.Got(txlock.Join(t.Context(), tx, options...))(t)
	return &session{Scope: scope, tx: tx}
}

// begin begins a transaction that is rolled back at the end at the latest.
func begin(t *testing.T, pool *sql.DB, options *sql.TxOptions) *session {
	t.Helper()
	tx := testdb.Begin(t, pool, options)
	return &session{Scope: testdb.Got(txlock.Join(t.Context(), tx, txlock.NothingRead()))(t), tx: tx, id: testdb.ConnID(t, tx)}
}

func (s *session) lock(t *testing.T, key txlock.Key) txlock.Grant {
	t.Helper()
	return testdb.Got(s.Lock(t.Context(), key))(t)
}

func (s *session) commit(t *testing.T) {
	t.Helper()
	noError(t, s.tx.Commit())
}

// refuses demands that each of these verbs is refused so, grants nothing, and leaves the transaction open.
func (s *session) refuses(t *testing.T, key txlock.Key, want error, names ...string) {
	t.Helper()
	for _, name := range names {
		grant, err := verbs[name](s.Scope, t.Context(), key)
		wants(t, name+" of "+key.String(), err, want)
		testdb.Equal(t, "granted", grant, txlock.Grant{})
	}
	wants(t, "Verify: the transaction goes on", s.Verify(t.Context()), nil)
}

// holder is a transaction that holds a key.
func holder(t *testing.T, db *testdb.DB, key txlock.Key) *session {
	t.Helper()
	s := begin(t, newPool(t, db, true), nil)
	s.lock(t, key)
	return s
}

// committed locks a key and commits, so that it has a row.
func committed(t *testing.T, db *testdb.DB, key txlock.Key) txlock.Grant {
	t.Helper()
	s := begin(t, newPool(t, db, true), nil)
	grant := s.lock(t, key)
	s.commit(t)
	return grant
}

// verb acquires a key in one of the ways of a Scope.
type verb func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error)

var verbs = map[string]verb{
	"Lock":    (*txlock.Scope).Lock,
	"TryLock": (*txlock.Scope).TryLock,
	"RLock":   (*txlock.Scope).RLock, "TryRLock": (*txlock.Scope).TryRLock,
	"WaitAtMost": verb((*txlock.Scope).Lock).within(time.Second),
	"LockAny": func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
		return s.LockAny(ctx, key, key)
	},
	"LockAll": func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
		grants, err := s.LockAll(ctx, key, another(key))
		return append(grants, txlock.Grant{})[0], err
	},
	"LockAll of one": func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
		grants, err := s.LockAll(ctx, key)
		return append(grants, txlock.Grant{})[0], err
	},
	"LockAll, shared": func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
		return txlock.Grant{}, testdb.Err(s.LockAll(ctx, another(key), txlock.Shared(key)))
	},
	"Version": func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
		return txlock.Grant{}, testdb.Err(s.Version(ctx, key))
	},
	"CompareAndBump": func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
		version, err := s.Version(ctx, key)
		if err == nil {
			err = s.CompareAndBump(ctx, key, version)
		}
		grant, _ := s.Held(key)
		return grant, err
	},
	"CompareAndBump of 7": func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
		if err := s.CompareAndBump(ctx, key, 7); !errors.Is(err, txlock.ErrConflict) {
			return txlock.Grant{}, err
		}
		return txlock.Grant{}, nil
	},
}

// within is a verb with a limit.
func (v verb) within(limit time.Duration) verb {
	return func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
		return v(s.WaitAtMost(limit), ctx, key)
	}
}

// another is a key of the same kind, which LockAll locks first if its keys are named.
func another(key txlock.Key) txlock.Key {
	if key.Hashed() {
		other, _ := anothers.LoadOrStore(key, hashed())
		return other.(txlock.Key)
	}
	name := key.String()
	return txlock.Named(fmt.Sprintf("%s%c/another", name[:len(name)-1], name[len(name)-1]-1))
}

var anothers sync.Map

// named is a key of this test alone.
func named() txlock.Key { return txlock.Named("test:" + rand.Text()) }

var (
	lots  = txlock.NewFamily[int64]("lot", txlock.Hashed())
	lotID atomic.Int64
	slots sync.Map
)

// hashed is a hashed key whose center lock no other test has.
func hashed() txlock.Key {
	for {
		key := lots.Key(lotID.Add(1))
		if _, taken := slots.LoadOrStore(key.Slot(), true); !taken {
			return key
		}
	}
}

// neighbour is another key of the same center lock.
func neighbour(key txlock.Key) txlock.Key {
	for id := int64(1 << 40); ; id++ {
		if other := lots.Key(id); other.Slot() == key.Slot() {
			return other
		}
	}
}

// rowsOf counts the committed rows of a key: one or none.
func rowsOf(t *testing.T, db *testdb.DB, key txlock.Key) int64 {
	t.Helper()
	return number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks WHERE name = ?", key.String())
}
