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
			for i, verbs := range append(ofLocks, onPools, inTransactions) {
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
	"WaitAtMost": func(s *shop) error { return second(s.begin().WaitAtMost(time.Second).Lock(noContext, s.order)) },
	"CommitWith": func(s *shop) error {
		scope := s.begin()
		return second(s.tx.ExecContext(scope.CommitWith(noContext, txlock.AnyRows), "DELETE FROM lockstep_once"))
	},
	"LockWith": func(s *shop) error {
		scope := s.begin()
		rows, err := s.tx.QueryContext(scope.LockWith(noContext, s.order), "SELECT 1")
		if err == nil {
			s.must(rows.Close())
		}
		return err
	},
}

// methods returns the calls of all methods of T that take a context and return an error.
func methods[T any](of func(s *shop) T) map[string]func(s *shop) error {
	all, t := make(map[string]func(s *shop) error), reflect.TypeFor[T]()
	for i := range t.NumMethod() {
		verb := t.Method(i).Type
		in, out := verb.NumIn(), verb.NumOut()
		if in < 2 || verb.In(1) != reflect.TypeFor[context.Context]() || verb.Out(out-1) != reflect.TypeFor[error]() {
			continue
		}
		all[fmt.Sprintf("%v.%s", t, t.Method(i).Name)] = func(s *shop) error {
			args := []reflect.Value{reflect.ValueOf(of(s)), reflect.Zero(verb.In(1))}
			for j := 2; j < in; j++ {
				if arg := s.argument(verb.In(j)); !verb.IsVariadic() || j < in-1 {
					args = append(args, arg)
				} else if verb.In(j) == reflect.TypeFor[[]txlock.Key]() { // others are options
					args = append(args, arg.Index(0))
				}
			}
			err, _ := t.Method(i).Func.Call(args)[out-1].Interface().(error)
			return err
		}
	}
	return all
}

// argument returns a value of a type that a verb takes, behind its context.
func (s *shop) argument(of reflect.Type) reflect.Value {
	s.Helper()
	switch of {
	case reflect.TypeFor[txlock.Key]():
		return reflect.ValueOf(s.order)
	case reflect.TypeFor[[]txlock.Key]():
		return reflect.ValueOf(s.keys())
	case reflect.TypeFor[txlock.Tx]():
		s.begin()
		return reflect.ValueOf(s.tx)
	case reflect.TypeFor[time.Time]():
		return reflect.ValueOf(time.Now())
	case reflect.TypeFor[job.Schedule]():
		return reflect.ValueOf(job.Every(time.Hour))
	}
	if of.Kind() == reflect.Func {
		return reflect.MakeFunc(of, func([]reflect.Value) []reflect.Value { return []reflect.Value{reflect.Zero(of.Out(0))} })
	}
	return reflect.Zero(of)
}

var ofLocks = []map[string]func(s *shop) error{
	methods((*shop).begin),
	methods(func(s *shop) *lease.Manager { return s.manager() }),
	methods(func(s *shop) *lease.Semaphore { return s.permit(2) }),
	methods(func(s *shop) *lease.Lease {
		l, err := s.manager().Acquire(s.ctx, s.order)
		s.must(err)
		return l
	}),
	methods((*shop).jobs),
	methods((*shop).election),
	methods(func(s *shop) *quorum.Manager {
		managers := []*lease.Manager{s.manager()}
		for range 2 {
			node, err := lease.NewManager(s.open(s.db.AdminDSN()), lease.PurgeEvery(0, time.Hour))
			s.must(err)
			managers = append(managers, node)
		}
		m, err := quorum.New(managers)
		s.must(err)
		return m
	}),
	{"Observe": func(s *shop) error {
		for _, err := range s.election().Observe(noContext) {
			return err
		}
		return errors.New("Observe has ended")
	}},
}

func (s *shop) election() *elect.Election {
	s.Helper()
	e, err := elect.New(s.manager(), s.order)
	s.must(err)
	return e
}
