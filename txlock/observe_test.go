package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// recorder is an observer that writes down what it is told.
type recorder struct {
	mu     sync.Mutex
	events []string
	odd    []string // what no event may look like
}

func (r *recorder) note(what string, e txlock.Event, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, what+" "+e.Key.String())
	if e.Lease || e.Took < 0 || e.Took > time.Minute || (err == nil) != (e.Err == nil) || err != nil && !errors.Is(e.Err, err) {
		r.odd = append(r.odd, fmt.Sprintf("%s %+v", what, e))
	}
}

func (r *recorder) Granted(_ context.Context, e txlock.Event)  { r.note("granted", e, nil) }
func (r *recorder) Refused(_ context.Context, e txlock.Event)  { r.note("refused", e, e.Err) }
func (r *recorder) Waited(_ context.Context, e txlock.Event)   { r.note("waited", e, e.Err) }
func (r *recorder) Renewed(_ context.Context, e txlock.Event)  { r.note("renewed", e, nil) }
func (r *recorder) Lost(_ context.Context, e txlock.Event)     { r.note("lost", e, txlock.ErrTxDoomed) }
func (r *recorder) Released(_ context.Context, e txlock.Event) { r.note("released", e, nil) }
func (r *recorder) Dropped(_ context.Context, e txlock.Event)  { r.note("dropped", e, e.Err) }

func (r *recorder) wants(t *testing.T, events ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.events, events) {
		t.Errorf("observed %q, want %q", r.events, events)
	}
	if len(r.odd) > 0 {
		t.Errorf("odd events: %q", r.odd)
	}
	r.events = nil
}

// The observer of a pool is told of grants, refusals and ends, once each.
func TestObservePool(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		base, err := mysql.NewConnector(db.Config())
		if err != nil {
			t.Fatal(err)
		}
		r := new(recorder)
		pool := sql.OpenDB(locksqlc.Connector(base, txlock.Observe(r)))
		t.Cleanup(func() { _ = pool.Close() })
		a, b, held := named(), named(), named()
		other := holder(t, db, held)

		s := begin(t, pool, nil)
		s.lock(t, a)
		s.lock(t, a) // held already: no news
		if _, err := s.TryLock(t.Context(), held); !errors.Is(err, txlock.ErrBusy) {
			t.Fatalf("TryLock: %v", err)
		}
		if _, err := s.RLock(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		r.wants(t, "granted "+a.String(), "refused "+held.String(), "granted "+b.String())
		s.commit(t)
		slices.Sort(r.events)
		want := []string{"released " + a.String(), "released " + b.String()}
		slices.Sort(want)
		r.wants(t, want...)

		s = begin(t, pool, nil)
		if _, err := s.LockAll(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		db.Kill(t, s.id)
		if _, err := s.Lock(t.Context(), b); err == nil {
			t.Fatal("a killed connection locks")
		}
		_ = s.tx.Rollback() // of a connection that is gone
		r.wants(t, "granted "+a.String(), "refused "+b.String(), "lost "+a.String())
		other.commit(t)
	})
}

// On a plain pool the observer of Join is told of grants and refusals.
func TestObserveJoin(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		a, held := named(), named()
		holder(t, db, held)
		tx, err := newPool(t, db, false).BeginTx(context.WithoutCancel(t.Context()), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback() })
		r := new(recorder)
		s, err := txlock.Join(t.Context(), tx, txlock.Observe(r), txlock.NothingRead())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Lock(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if _, err := s.TryLock(t.Context(), held); !errors.Is(err, txlock.ErrBusy) {
			t.Fatalf("TryLock: %v", err)
		}
		r.wants(t, "granted "+a.String(), "refused "+held.String())
	})
}
