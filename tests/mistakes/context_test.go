package mistakes

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// noContext is what is handed over by mistake.
var noContext context.Context

// TestNoContext calls every verb without a context: it is refused, or panics, before
// anything is taken, so that the one connection of the pool serves the next caller.
func TestNoContext(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Shared(t, engine).OpenLeases(t)
			for i, verbs := range []map[string]func(s *shop) error{onPools, inTransactions, ofManagers, onLeases, ofOthers} {
				for name, verb := range verbs {
					s := newShop(t, db, 1_000_000+i)
					s.pool.SetMaxOpenConns(1)
					s.order = txlock.Named(fmt.Sprintf("no context/%d/%s", i, name))
					survives(s, name, verb)
				}
			}
		})
	}
}

// survives calls a verb, and uses the pool afterwards. If the verb has left a mutex of the
// pool locked, idle of the pool returns.
func survives(s *shop, name string, verb func(s *shop) error) {
	s.Helper()
	inTime := func(call func() error) error {
		s.Helper()
		done := make(chan error, 1)
		go func() { done <- call() }()
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			panic(name + " without a context leaves the pool hung") // as would to close it, at the end of the test
		}
	}
	if err := inTime(func() (err error) {
		defer func() {
			if recover() != nil {
				err = nil
			}
		}()
		if verb(s) == nil {
			return errors.New("it succeeds")
		}
		return nil
	}); err != nil {
		s.Errorf("%s without a context: %v", name, err)
	}
	if s.tx != nil {
		_ = s.tx.Rollback()
	}
	s.must(inTime(func() error { return s.pool.PingContext(s.ctx) }))
}

// keys are those of a shop.
func (s *shop) keys() []txlock.Key { return []txlock.Key{s.order} }

var onPools = map[string]func(s *shop) error{
	"Run": func(s *shop) error {
		return locksqlc.Run(noContext, s.pool, s.keys(), func(*sql.Tx) error { return nil })
	},
	"Optimistic": func(s *shop) error {
		return locksqlc.Optimistic(noContext, s.pool, s.order, func(*sql.Tx) error { return nil })
	},
	"Do": func(s *shop) error {
		return locksqlc.Do(noContext, s.pool, s.order, func(context.Context) error { return nil })
	},
	"TryDo": func(s *shop) error {
		return locksqlc.TryDo(noContext, s.pool, s.order, func(context.Context) error { return nil })
	},
	"Once": func(s *shop) error {
		return second(locksqlc.Once(noContext, s.pool, s.order, func(*sql.Tx) error { return nil }))
	},
	"OnceValue": func(s *shop) error {
		_, _, err := locksqlc.OnceValue(noContext, s.pool, s.order, func(*sql.Tx) (int, error) { return 1, nil })
		return err
	},
	"Clean":        func(s *shop) error { return second(txlock.Purge(noContext, s.pool, 1000*time.Hour)) },
	"Ensure":       func(s *shop) error { return txlock.Ensure(noContext, s.pool, s.order) },
	"CheckGuarded": func(s *shop) error { return txlock.CheckGuarded(noContext, s.pool) },
	"Holders":      func(s *shop) error { return second(txlock.Holders(noContext, s.pool, s.order)) },
	"PurgeOnce":    func(s *shop) error { return second(txlock.PurgeOnce(noContext, s.pool)) },
	"ReadVersion":  func(s *shop) error { return second(txlock.ReadVersion(noContext, s.pool, s.order)) },
	"schema.Check": func(s *shop) error { return schema.Check(noContext, s.pool) },
	"CheckCluster": func(s *shop) error { return schema.CheckCluster(noContext, s.pool) },
	"Install":      func(s *shop) error { return schema.Install(noContext, s.pool) },
	"InstallViews": func(s *shop) error { return schema.InstallViews(noContext, s.pool) },
	"CheckColumns": func(s *shop) error {
		return txlock.NewFamily[int]("f").CheckColumns(noContext, s.pool, "lockstep_locks", "name")
	},
	"job.Tick": func(s *shop) error {
		return second(job.Tick(noContext, s.pool, s.order, time.Now(), func(context.Context, time.Time) error { return nil }))
	},
	"job.TickTx": func(s *shop) error {
		return second(job.TickTx(noContext, s.pool, s.order, time.Now(), func(context.Context, *sql.Tx, time.Time) error { return nil }))
	},
}

// scoped calls a verb of a scope.
func scoped(verb func(s *shop, scope *txlock.Scope) error) func(s *shop) error {
	return func(s *shop) error { return verb(s, s.begin()) }
}

var inTransactions = map[string]func(s *shop) error{
	"Join":         func(s *shop) error { s.begin(); return second(txlock.Join(noContext, s.tx)) },
	"AssertLocked": func(s *shop) error { s.begin(); return txlock.AssertLocked(noContext, s.tx, s.order) },
	"AssertRLocked": func(s *shop) error {
		s.begin()
		return txlock.AssertRLocked(noContext, s.tx, s.order)
	},
	"JoinConn": func(s *shop) error {
		conn, err := s.pool.Conn(s.ctx)
		s.must(err)
		defer func() { s.must(conn.Close()) }()
		return second(locksqlc.JoinConn(noContext, conn))
	},
	"Lock":     scoped(func(s *shop, scope *txlock.Scope) error { return second(scope.Lock(noContext, s.order)) }),
	"TryLock":  scoped(func(s *shop, scope *txlock.Scope) error { return second(scope.TryLock(noContext, s.order)) }),
	"RLock":    scoped(func(s *shop, scope *txlock.Scope) error { return second(scope.RLock(noContext, s.order)) }),
	"TryRLock": scoped(func(s *shop, scope *txlock.Scope) error { return second(scope.TryRLock(noContext, s.order)) }),
	"LockAll":  scoped(func(s *shop, scope *txlock.Scope) error { return second(scope.LockAll(noContext, s.order)) }),
	"RLockAll": scoped(func(s *shop, scope *txlock.Scope) error { return second(scope.RLockAll(noContext, s.order)) }),
	"LockAny":  scoped(func(s *shop, scope *txlock.Scope) error { return second(scope.LockAny(noContext, s.order)) }),
	"Version":  scoped(func(s *shop, scope *txlock.Scope) error { return second(scope.Version(noContext, s.order)) }),
	"Once":     scoped(func(s *shop, scope *txlock.Scope) error { return second(scope.Once(noContext, s.order)) }),
	"WaitAtMost": scoped(func(s *shop, scope *txlock.Scope) error {
		return second(scope.WaitAtMost(time.Second).Lock(noContext, s.order))
	}),
	"CompareAndBump": scoped(func(s *shop, scope *txlock.Scope) error { return scope.CompareAndBump(noContext, s.order, 0) }),
	"Verify":         scoped(func(_ *shop, scope *txlock.Scope) error { return scope.Verify(noContext) }),
	"CommitWith": scoped(func(s *shop, scope *txlock.Scope) error {
		return second(s.tx.ExecContext(scope.CommitWith(noContext, txlock.AnyRows), "DELETE FROM lockstep_once"))
	}),
	"LockWith": scoped(func(s *shop, scope *txlock.Scope) error {
		rows, err := s.tx.QueryContext(scope.LockWith(noContext, s.order), "SELECT 1")
		if err == nil {
			s.must(rows.Close())
		}
		return err
	}),
	"AcquireTx": func(s *shop) error {
		m := s.manager()
		s.begin()
		return second(m.AcquireTx(noContext, s.tx, s.order))
	},
}

func idle(context.Context, *lease.Lease) error { return nil }

// managed calls a verb of a manager of leases.
func managed(verb func(s *shop, m *lease.Manager) error) func(s *shop) error {
	return func(s *shop) error { return verb(s, s.manager()) }
}

var ofManagers = map[string]func(s *shop) error{
	"Acquire":              managed(func(s *shop, m *lease.Manager) error { return second(m.Acquire(noContext, s.order)) }),
	"TryAcquire":           managed(func(s *shop, m *lease.Manager) error { return second(m.TryAcquire(noContext, s.order)) }),
	"Do":                   managed(func(s *shop, m *lease.Manager) error { return m.Do(noContext, s.order, idle) }),
	"TryDo":                managed(func(s *shop, m *lease.Manager) error { return m.TryDo(noContext, s.order, idle) }),
	"AcquireAll":           managed(func(s *shop, m *lease.Manager) error { return second(m.AcquireAll(noContext, s.keys())) }),
	"TryAcquireAll":        managed(func(s *shop, m *lease.Manager) error { return second(m.TryAcquireAll(noContext, s.keys())) }),
	"AcquireShared":        managed(func(s *shop, m *lease.Manager) error { return second(m.AcquireShared(noContext, s.order)) }),
	"TryAcquireShared":     managed(func(s *shop, m *lease.Manager) error { return second(m.TryAcquireShared(noContext, s.order)) }),
	"DoShared":             managed(func(s *shop, m *lease.Manager) error { return m.DoShared(noContext, s.order, idle) }),
	"RequestRelease":       managed(func(s *shop, m *lease.Manager) error { return m.RequestRelease(noContext, s.order, "why") }),
	"Close":                managed(func(_ *shop, m *lease.Manager) error { return m.Close(noContext) }),
	"List":                 managed(func(_ *shop, m *lease.Manager) error { return second(m.List(noContext)) }),
	"Inspect":              managed(func(s *shop, m *lease.Manager) error { return second(m.Inspect(noContext, s.order)) }),
	"ForceRelease":         managed(func(s *shop, m *lease.Manager) error { return m.ForceRelease(noContext, s.order) }),
	"Purge":                managed(func(_ *shop, m *lease.Manager) error { return second(m.Purge(noContext)) }),
	"Semaphore.Acquire":    permitted(func(sem *lease.Semaphore) error { return second(sem.Acquire(noContext)) }),
	"Semaphore.TryAcquire": permitted(func(sem *lease.Semaphore) error { return second(sem.TryAcquire(noContext)) }),
	"Semaphore.Do":         permitted(func(sem *lease.Semaphore) error { return sem.Do(noContext, idle) }),
	"Semaphore.Resize":     permitted(func(sem *lease.Semaphore) error { return second(sem.Resize(noContext, 3)) }),
}

// permitted calls a verb of a semaphore.
func permitted(verb func(sem *lease.Semaphore) error) func(s *shop) error {
	return managed(func(s *shop, m *lease.Manager) error {
		sem, err := m.Semaphore(s.order, 2)
		s.must(err)
		return verb(sem)
	})
}

// leased calls a verb of a lease.
func leased(verb func(s *shop, l *lease.Lease) error) func(s *shop) error {
	return func(s *shop) error {
		l, err := s.manager().Acquire(s.ctx, s.order)
		s.must(err)
		return verb(s, l)
	}
}

var onLeases = map[string]func(s *shop) error{
	"Lease.Release": leased(func(_ *shop, l *lease.Lease) error { return l.Release(noContext) }),
	"Lease.Renew":   leased(func(_ *shop, l *lease.Lease) error { return l.Renew(noContext) }),
	"Lease.Guard":   leased(func(s *shop, l *lease.Lease) error { s.begin(); return l.Guard(noContext, s.tx) }),
	"Lease.Context": leased(func(_ *shop, l *lease.Lease) error {
		_, cancel := l.Context(noContext)
		cancel()
		return fmt.Errorf("Context returns no error")
	}),
	"Lease.Downgrade": leased(func(_ *shop, l *lease.Lease) error { return second(l.Downgrade(noContext)) }),
}

// jobs calls a verb of jobs.
func jobs(verb func(s *shop, j *job.Jobs) error) func(s *shop) error {
	return func(s *shop) error {
		j, err := job.New(s.pool, s.manager())
		s.must(err)
		return verb(s, j)
	}
}

// elected calls a verb of an election.
func elected(verb func(s *shop, e *elect.Election) error) func(s *shop) error {
	return func(s *shop) error {
		e, err := elect.New(s.manager(), s.order)
		s.must(err)
		return verb(s, e)
	}
}

// most calls a verb of leases over a majority.
func most(verb func(s *shop, m *quorum.Manager) error) func(s *shop) error {
	return func(s *shop) error {
		managers := []*lease.Manager{s.manager()}
		for range 2 {
			node, err := lease.NewManager(s.open(s.db.AdminDSN()), lease.PurgeEvery(0, time.Hour))
			s.must(err)
			managers = append(managers, node)
		}
		m, err := quorum.New(managers)
		s.must(err)
		return verb(s, m)
	}
}

var ofOthers = map[string]func(s *shop) error{
	"Jobs.Claim": jobs(func(s *shop, j *job.Jobs) error { return second(j.Claim(noContext, s.order, time.Now())) }),
	"Jobs.ClaimNearest": jobs(func(s *shop, j *job.Jobs) error {
		return second(j.ClaimNearest(noContext, s.order, job.Every(time.Hour)))
	}),
	"Jobs.Close": jobs(func(_ *shop, j *job.Jobs) error { return j.Close(noContext) }),
	"Jobs.Run": jobs(func(s *shop, j *job.Jobs) error {
		return j.Run(noContext, s.order, job.Every(time.Hour), func(context.Context, time.Time) error { return nil })
	}),
	"Jobs.RunTx": jobs(func(s *shop, j *job.Jobs) error {
		return j.RunTx(noContext, s.order, job.Every(time.Hour), func(context.Context, *sql.Tx, time.Time) error { return nil })
	}),
	"Jobs.Status": jobs(func(s *shop, j *job.Jobs) error { return second(j.Status(noContext, s.order)) }),
	"Jobs.List":   jobs(func(_ *shop, j *job.Jobs) error { return second(j.List(noContext)) }),
	"Jobs.Tick": jobs(func(s *shop, j *job.Jobs) error {
		return second(j.Tick(noContext, s.order, time.Now(), func(context.Context, time.Time) error { return nil }))
	}),
	"Jobs.TickTx": jobs(func(s *shop, j *job.Jobs) error {
		return second(j.TickTx(noContext, s.order, time.Now(), func(context.Context, *sql.Tx, time.Time) error { return nil }))
	}),
	"Election.Resign": elected(func(_ *shop, e *elect.Election) error { return e.Resign(noContext) }),
	"Election.Leader": elected(func(_ *shop, e *elect.Election) error { return second(e.Leader(noContext)) }),
	"Election.Run": elected(func(_ *shop, e *elect.Election) error {
		return e.Run(noContext, func(context.Context, *elect.Term) error { return nil })
	}),
	"Election.Observe": elected(func(_ *shop, e *elect.Election) error {
		for _, err := range e.Observe(noContext) {
			return err
		}
		return fmt.Errorf("Observe has ended")
	}),
	"quorum.Install":    most(func(_ *shop, m *quorum.Manager) error { return m.Install(noContext) }),
	"quorum.Acquire":    most(func(s *shop, m *quorum.Manager) error { return second(m.Acquire(noContext, s.order)) }),
	"quorum.TryAcquire": most(func(s *shop, m *quorum.Manager) error { return second(m.TryAcquire(noContext, s.order)) }),
	"quorum.Do": most(func(s *shop, m *quorum.Manager) error {
		return m.Do(noContext, s.order, func(context.Context, *quorum.Lease) error { return nil })
	}),
	"quorum.Close": most(func(_ *shop, m *quorum.Manager) error { return m.Close(noContext) }),
}

// TestAllVerbsWithoutContext proves that no verb is left out above.
func TestAllVerbsWithoutContext(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		verbs  reflect.Type
		prefix string
		listed map[string]func(s *shop) error
	}{
		{reflect.TypeFor[*txlock.Scope](), "", inTransactions},
		{reflect.TypeFor[*lease.Manager](), "", ofManagers},
		{reflect.TypeFor[*lease.Semaphore](), "Semaphore.", ofManagers},
		{reflect.TypeFor[*lease.Lease](), "Lease.", onLeases},
	} {
		for i := range of.verbs.NumMethod() {
			verb := of.verbs.Method(i)
			takes := verb.Type.NumIn() > 1 && verb.Type.In(1) == reflect.TypeFor[context.Context]()
			if takes && of.listed[of.prefix+verb.Name] == nil && inTransactions[verb.Name] == nil {
				t.Errorf("%v.%s isn't called without a context", of.verbs, verb.Name)
			}
		}
	}
}
