package mistakes

import (
	"context"
	"errors"
	"fmt"
	"path"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
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
			for i, verbs := range append(ofLocks, onPools, others) {
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

var onPools = calls(
	locksqlc.Run, locksqlc.Optimistic, locksqlc.Do, locksqlc.TryDo, locksqlc.Once, locksqlc.OnceValue[int], job.Tick, job.TickTx,
	txlock.Purge, txlock.Ensure, txlock.CheckGuarded, txlock.Holders, txlock.PurgeOnce, txlock.ReadVersion,
	schema.Check, schema.CheckCluster, schema.Install, schema.InstallViews,
	txlock.Join, txlock.AssertLocked, txlock.AssertRLocked, // in transactions
)

var others = map[string]func(s *shop) error{
	"CheckColumns": func(s *shop) error {
		return txlock.NewFamily[int]("f").CheckColumns(noContext, s.pool, "lockstep_locks", "name")
	},
	"JoinConn": func(s *shop) error {
		conn := leasetest.Got(s.pool.Conn(s.ctx))(s)
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

// calls returns the calls of functions that take a context and return an error, by their names.
func calls(verbs ...any) map[string]func(s *shop) error {
	all := make(map[string]func(s *shop) error)
	for _, verb := range verbs {
		f := reflect.ValueOf(verb)
		all[path.Base(runtime.FuncForPC(f.Pointer()).Name())] = func(s *shop) error { return s.call(f) }
	}
	return all
}

// methods returns the calls of all methods of T that take a context and return an error.
func methods[T any](of func(s *shop) T) map[string]func(s *shop) error {
	all, t := make(map[string]func(s *shop) error), reflect.TypeFor[T]()
	for i := range t.NumMethod() {
		verb := t.Method(i).Type
		if verb.NumIn() < 2 || verb.In(1) != reflect.TypeFor[context.Context]() || verb.Out(verb.NumOut()-1) != reflect.TypeFor[error]() {
			continue
		}
		all[fmt.Sprintf("%v.%s", t, t.Method(i).Name)] = func(s *shop) error { return s.call(t.Method(i).Func, reflect.ValueOf(of(s))) }
	}
	return all
}

// call calls a function, or a method of a receiver, without a context.
func (s *shop) call(f reflect.Value, args ...reflect.Value) error {
	s.Helper()
	of := f.Type()
	args = append(args, reflect.Zero(reflect.TypeFor[context.Context]()))
	for j := len(args); j < of.NumIn(); j++ {
		if arg := s.argument(of.In(j)); !of.IsVariadic() || j < of.NumIn()-1 {
			args = append(args, arg)
		} else if of.In(j) == reflect.TypeFor[[]txlock.Key]() { // others are options
			args = append(args, arg.Index(0))
		}
	}
	results := f.Call(args)
	err, _ := results[len(results)-1].Interface().(error)
	return err
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
	case reflect.TypeFor[time.Duration]():
		return reflect.ValueOf(1000 * time.Hour)
	case reflect.TypeFor[job.Schedule]():
		return reflect.ValueOf(job.Every(time.Hour))
	}
	if of.Kind() == reflect.Func {
		return reflect.MakeFunc(of, func([]reflect.Value) (results []reflect.Value) {
			for i := range of.NumOut() {
				results = append(results, reflect.Zero(of.Out(i)))
			}
			return results
		})
	}
	if pool := reflect.ValueOf(s.pool); pool.Type().AssignableTo(of) {
		return pool
	}
	return reflect.Zero(of)
}

var ofLocks = []map[string]func(s *shop) error{
	methods((*shop).begin),
	methods(func(s *shop) *lease.Manager { return s.manager() }),
	methods(func(s *shop) *lease.Semaphore { return s.permit(2) }),
	methods(func(s *shop) *lease.Lease {
		l := leasetest.Got(s.manager().Acquire(s.ctx, s.order))(s)
		return l
	}),
	methods((*shop).jobs),
	methods((*shop).election),
	methods(func(s *shop) *quorum.Manager {
		managers := []*lease.Manager{s.manager()}
		for range 2 {
			node := leasetest.Got(lease.NewManager(s.open(s.db.AdminDSN()), lease.PurgeEvery(0, time.Hour)))(s)
			managers = append(managers, node)
		}
		m := leasetest.Got(quorum.New(managers))(s)
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
	e := leasetest.Got(elect.New(s.manager(), s.order))(s)
	return e
}
