package locktest_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var orders = txlock.NewFamily[int64]("order")

var must, wants = leasetest.Must, leasetest.Wants

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }

// leasesOf returns a manager, which is closed when the test ends.
func leasesOf(t *testing.T, pool *sql.DB) *lease.Manager {
	t.Helper()
	m := leasetest.Got(lease.NewManager(pool))(t)
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

func (t *openTx) Savepoint(name string) error { return second(t.Exec("SAVEPOINT " + name)) }
func (t *openTx) RollbackTo(name string) error {
	return second(t.Exec("ROLLBACK TO SAVEPOINT " + name))
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
