package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
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
	asked  int      // and not answered
	last   error    // of the last event

	deadlock bool // is why a transaction was doomed or is run again
}

func (r *recorder) note(what string, e txlock.Event, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deadlock = r.deadlock || (what == "doomed" || what == "retried") && errors.Is(e.Err, txlock.ErrDeadlock)
	switch {
	case e.Once && e.Again:
		what = "repeated"
	case e.Once:
		what += " once"
	case e.Again:
		what += " again"
	}
	if strings.HasPrefix(what, "granted") || strings.HasPrefix(what, "refused") || what == "repeated" {
		r.asked--
	}
	r.events, r.last = append(r.events, what+" "+e.Key.String()), e.Err
	if e.Lease || e.Took < 0 || e.Took > time.Minute || (err == nil) != (e.Err == nil) || err != nil && !errors.Is(e.Err, err) {
		r.odd = append(r.odd, fmt.Sprintf("%s %+v", what, e))
	}
}

func (r *recorder) observe(_ context.Context, e txlock.Event) {
	switch e.Kind {
	case txlock.Requested:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked++
	case txlock.Doomed:
		if errors.Is(e.Err, txlock.ErrUnknownOutcome) {
			r.note("unknown", e, txlock.ErrUnknownOutcome)
		} else {
			r.note("doomed", e, txlock.ErrTxDoomed)
		}
	case txlock.Lost:
		r.note("lost", e, txlock.ErrTxDoomed)
	case txlock.Granted, txlock.Renewed, txlock.Released:
		r.note(string(e.Kind), e, nil)
	default:
		r.note(string(e.Kind), e, e.Err)
	}
}

func (r *recorder) wants(t *testing.T, events ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.events, events) {
		t.Errorf("observed %q, want %q", r.events, events)
	}
	if r.asked != 0 {
		t.Errorf("%d calls are asked and not answered", r.asked)
	}
	if len(r.odd) > 0 {
		t.Errorf("odd events: %q", r.odd)
	}
	r.events = nil
}

// The observer of a pool is told of grants, refusals and ends, once each.
func TestObservePool(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, r := observed(t, db)
		a, b, held := named(), named(), named()
		other := holder(t, db, held)

		s := begin(t, pool, nil)
		s.lock(t, a)
		s.lock(t, a) // held already: no news
		wants(t, "TryLock", second(s.TryLock(t.Context(), held)), txlock.ErrBusy)
		noError(t, second(s.RLock(t.Context(), b)))
		r.wants(t, "granted "+a.String(), "refused "+held.String(), "granted "+b.String())
		s.commit(t)
		slices.Sort(r.events)
		want := []string{"released " + a.String(), "released " + b.String()}
		slices.Sort(want)
		r.wants(t, want...)

		s = begin(t, pool, nil)
		noError(t, second(s.LockAll(t.Context(), a)))
		db.Kill(t, s.id)
		if _, err := s.Lock(t.Context(), b); err == nil {
			t.Fatal("a killed connection locks")
		}
		_ = s.tx.Rollback() // of a connection that is gone
		r.wants(t, "granted "+a.String(), "refused "+b.String(), "lost "+a.String(), "doomed "+b.String())
		other.commit(t)
	})
}

// On a plain pool the observer of Join is told of grants and refusals.
func TestObserveJoin(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		a, held := named(), named()
		holder(t, db, held)
		r := new(recorder)
		s := inTx(t, newPool(t, db, false), txlock.Observe(r.observe), txlock.NothingRead())
		s.lock(t, a)
		wants(t, "TryLock", second(s.TryLock(t.Context(), held)), txlock.ErrBusy)
		r.wants(t, "granted "+a.String(), "refused "+held.String())
		wants(t, "LockAll", second(s.WaitAtMost(time.Second).LockAll(t.Context(), a, held)), txlock.ErrWaitTimeout)
		slices.Sort(r.events)
		want := []string{"refused " + a.String(), "refused " + held.String()}
		slices.Sort(want)
		r.wants(t, want...)
		s.lock(t, a) // a plain pool asks the server
		r.wants(t, "granted again "+a.String())
	})
}

// observed is a guarded pool and its observer.
func observed(t *testing.T, db *testdb.DB, mutators ...func(*mysql.Config)) (*sql.DB, *recorder) {
	t.Helper()
	return observedBy(t, db, nil, mutators...)
}

// observedBy is observed, with another observer behind that.
func observedBy(t *testing.T, db *testdb.DB, other txlock.Observer, mutators ...func(*mysql.Config)) (*sql.DB, *recorder) {
	t.Helper()
	r := new(recorder)
	base, err := mysql.NewConnector(db.Config(mutators...))
	noError(t, err)
	pool := sql.OpenDB(locksqlc.Connector(base, txlock.Observe(txlock.MultiObserver(r.observe, other))))
	t.Cleanup(func() { _ = pool.Close() })
	return pool, r
}

// An observer is told of a COMMIT that was not answered.
func TestObserveUnanswered(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, r := observed(t, db, testdb.LosingCommits(true))
		s, a := begin(t, pool, nil), named()
		s.lock(t, a)
		wants(t, "Commit", s.tx.Commit(), txlock.ErrUnknownOutcome)
		r.wants(t, "granted "+a.String(), "released "+a.String(), "unknown "+a.String())
	})
}

// A lock whose transaction ends by its context, before the program has the grant, ends for the
// observer too, and is in nobody's way.
func TestObserveEndBeforeGrant(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		var pool *sql.DB
		ctx, cancel := context.WithCancel(t.Context())
		var r *recorder
		pool, r = observedBy(t, db, func(_ context.Context, e txlock.Event) {
			if e.Kind == txlock.Granted {
				cancel()
				for pool.Stats().InUse > 0 { // until database/sql has rolled back
					testdb.Refresh()
				}
			}
		})
		tx, err := pool.BeginTx(ctx, nil)
		noError(t, err)
		s, err := txlock.Join(t.Context(), tx)
		noError(t, err)
		a := named()
		noError(t, second(s.Lock(t.Context(), a)))
		r.wants(t, "granted "+a.String(), "released "+a.String())
	})
}

// An observer that ends its goroutine, as one does that panics, leaves no transaction open and no
// connection in use; and a lock that it was told of ends.
func TestObserverEndsItsGoroutine(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, in := range []txlock.Kind{txlock.Released, txlock.Lost, txlock.Granted, txlock.Refused} {
			pool, r := observedBy(t, db, func(_ context.Context, e txlock.Event) {
				if e.Kind == in {
					runtime.Goexit()
				}
			}, impatience)
			for name, ends := range map[string]func(*sql.Tx) error{"Commit": (*sql.Tx).Commit, "Rollback": (*sql.Tx).Rollback} {
				tx, err := pool.BeginTx(t.Context(), nil)
				noError(t, err)
				s, err := txlock.Join(t.Context(), tx)
				noError(t, err)
				a := named()
				committed(t, db, a)
				if in == txlock.Refused {
					holder(t, db, a)
				}
				_, err = tx.ExecContext(s.LockWith(t.Context(), a), "DO 1")
				if within := in == txlock.Granted || in == txlock.Refused; (err != nil) != within {
					t.Errorf("%s, %s: the statement returns %v", in, name, err)
				}
				if in == txlock.Lost {
					exec(t, tx, "COMMIT")
				}
				if err := ends(tx); (err != nil) != (in == txlock.Lost && name == "Commit") {
					t.Errorf("%s, %s: %v", in, name, err)
				}
				if n := testdb.InUse(pool); n != 0 {
					t.Errorf("%s, %s: %d connections are in use", in, name, n)
				}
				if in == txlock.Granted && !slices.Contains(r.events, "released "+a.String()) {
					t.Errorf("%s: a lock that was granted has no end: %q", name, r.events)
				}
				if in != txlock.Refused {
					holder(t, db, a).commit(t)
				}
			}
			if r.asked != 0 {
				t.Errorf("%s: %d are asked and not answered: %q", in, r.asked, r.events)
			}
		}
	})
}

// A lock of LockWith is asked for when a statement is sent, and not where none is.
func TestObserveLockWith(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, r := observed(t, db)
		tx, err := pool.BeginTx(t.Context(), nil)
		noError(t, err)
		s, err := txlock.Join(t.Context(), tx)
		noError(t, err)
		a := named()
		ctx := s.LockWith(t.Context(), a)
		if _, err := tx.ExecContext(ctx, "DO ?", struct{}{}); err == nil {
			t.Error("a struct is an argument")
		}
		r.wants(t)
		noError(t, second(tx.ExecContext(ctx, "DO 1")))
		noError(t, tx.Commit())
		r.wants(t, "granted "+a.String(), "released "+a.String())
	})
}

// A lock that is taken again after a savepoint has undone it is one lock to the observer.
func TestObserveAgain(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, r := observed(t, db)
		s, a := begin(t, pool, nil), named()
		for _, query := range []string{"SAVEPOINT before_it", "ROLLBACK TO SAVEPOINT before_it"} {
			exec(t, s.tx, query)
			s.lock(t, a)
		}
		s.commit(t)
		r.wants(t, "granted "+a.String(), "granted again "+a.String(), "released "+a.String())
	})
}

// The observer is told of a doomed transaction once: of the victim of a deadlock, and of
// one that has only asked for a key, or has ended itself.
func TestObserveDoomed(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		a, b := named(), named()
		noError(t, txlock.Ensure(t.Context(), db.Admin(), a, b))
		type side struct {
			*session
			seen      *recorder
			has, asks txlock.Key
			err       error
		}
		var sides [2]*side
		for i, keys := range [][2]txlock.Key{{a, b}, {b, a}} {
			pool, seen := observed(t, db)
			sides[i] = &side{session: begin(t, pool, nil), seen: seen, has: keys[0], asks: keys[1]}
			sides[i].lock(t, keys[0])
		}
		var both sync.WaitGroup
		for i, s := range sides {
			both.Go(func() {
				if _, s.err = s.Lock(t.Context(), s.asks); s.err == nil {
					s.err = s.tx.Commit()
					return
				}
				_ = s.tx.Rollback()
			})
			if i == 0 {
				db.WaitForLockWait(t, s.id)
			}
		}
		both.Wait()
		victims := 0
		for _, s := range sides {
			if s.err == nil {
				continue
			}
			victims++
			if !errors.Is(s.err, txlock.ErrDeadlock) || !s.seen.deadlock {
				t.Errorf("%v, and the observer knows of a deadlock: %t", s.err, s.seen.deadlock)
			}
			s.seen.wants(t, "granted "+s.has.String(), "refused "+s.asks.String(), "lost "+s.has.String(), "doomed "+s.asks.String())
		}
		if victims != 1 {
			t.Errorf("%d victims of a deadlock", victims)
		}

		pool, r := observed(t, db)
		s := begin(t, pool, nil)
		db.Kill(t, s.id)
		if _, err := s.Lock(t.Context(), a); err == nil {
			t.Fatal("a killed connection locks")
		}
		_ = s.tx.Rollback()
		r.wants(t, "refused "+a.String(), "doomed "+a.String())

		s = begin(t, pool, nil)
		s.lock(t, a)
		exec(t, s.tx, "COMMIT")
		wants(t, "Commit", s.tx.Commit(), txlock.ErrTxDoomed)
		r.wants(t, "granted "+a.String(), "lost "+a.String(), "doomed "+a.String())
	})
}

// The observer is told of calls of Once, which of them are repeats, and of transactions
// that are run again.
func TestObserveRun(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, r := observed(t, db)
		a, o := named(), named()
		for _, want := range []string{"granted once ", "repeated "} {
			calls := 0
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{a}, func(tx *sql.Tx) error {
				calls++
				s, err := locksqlc.Join(t.Context(), tx)
				noError(t, err)
				noError(t, second(s.Once(t.Context(), o)))
				if calls == 1 {
					return &mysql.MySQLError{Number: 1213}
				}
				return nil
			})
			if err != nil || calls != 2 {
				t.Fatalf("Run: %v, %d calls", err, calls)
			}
			try := []string{"granted " + a.String(), want + o.String(), "released " + a.String()}
			if !r.deadlock {
				t.Error("the observer doesn't know of the deadlock")
			}
			r.wants(t, slices.Concat(try, []string{"retried " + a.String()}, try)...)
		}
		fresh := named()
		begin(t, pool, nil).once(t, fresh, true)
		waits := begin(t, pool, nil)
		wants(t, "Once of what is asked for", second(waits.WaitAtMost(time.Second).Once(t.Context(), fresh)), txlock.ErrWaitTimeout)
		r.wants(t, "granted once "+fresh.String(), "refused once "+fresh.String())
	})
}
