package locksqlc_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// verb is a call of a scope with one key.
type verb = func(ctx context.Context, s *txlock.Scope, key txlock.Key) error

// called is the verb of a method.
func called[T any](method func(*txlock.Scope, context.Context, txlock.Key) (T, error)) verb {
	return func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return second(method(s, ctx, key)) }
}

// within is the verb of a method that waits so long at most.
func within(limit time.Duration, method func(*txlock.Scope, context.Context, txlock.Key) (txlock.Grant, error)) verb {
	return func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return second(method(s.WaitAtMost(limit), ctx, key))
	}
}

// together is the verb of a method for several keys: the key, and those of these names besides it.
func together[T any](method func(*txlock.Scope, context.Context, ...txlock.Key) (T, error), names ...string) verb {
	return func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		keys := []txlock.Key{key}
		for _, name := range names {
			keys = append(keys, besides(key, name))
		}
		return second(method(s, ctx, keys...))
	}
}

// besides is another key of the same subtest.
func besides(key txlock.Key, name string) txlock.Key { return txlock.Named(key.String() + "/" + name) }

// writing are the calls of a scope that write to the row of a key.
var writing = map[string]verb{
	"Lock":           called((*txlock.Scope).Lock),
	"TryLock":        called((*txlock.Scope).TryLock),
	"WaitAtMost":     within(time.Minute, (*txlock.Scope).Lock),
	"LockAll":        together((*txlock.Scope).LockAll, "b"),
	"CompareAndBump": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return s.CompareAndBump(ctx, key, 0) },
	"Once":           func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return second(s.Once(ctx, key)) },
}

// verbs are writing, and the calls that lock or read the row of a key in other ways.
var verbs = func() map[string]verb {
	all := maps.Clone(writing)
	all["RLock"] = called((*txlock.Scope).RLock)
	all["TryRLock"] = called((*txlock.Scope).TryRLock)
	all["RLock in time"] = within(time.Minute, (*txlock.Scope).RLock)
	all["LockAny"] = together((*txlock.Scope).LockAny)
	all["Version"] = called((*txlock.Scope).Version)
	return all
}()

// way is a way to run a transaction with a key.
type way = func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error

// running are the ways that run their function each time.
var running = map[string]way{
	"Run": func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, pool, []txlock.Key{key}, fn)
	},
	"Optimistic": func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
		return locksqlc.Optimistic(ctx, pool, key, fn)
	},
}

// ways are running, one without the key, and those that run their function until it was committed
// once. They are the first if there is no error.
var ways = func() map[string]way {
	all := maps.Clone(running)
	all["Run, no key"] = func(ctx context.Context, pool *sql.DB, _ txlock.Key, fn func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, pool, nil, fn)
	}
	all["Once"] = func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
		first, err := locksqlc.Once(ctx, pool, key, fn)
		return firstOf(first, err)
	}
	all["OnceValue"] = func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
		_, first, err := locksqlc.OnceValue(ctx, pool, key, func(tx *sql.Tx) (int, error) { return 1, fn(tx) })
		return firstOf(first, err)
	}
	return all
}()

// firstOf is the error, and another one where who is the first has any, or who isn't has none.
func firstOf(first bool, err error) error {
	if first != (err == nil) {
		return fmt.Errorf("it is first: %t, %v", first, err) //nolint:errorlint // no error of lockstep
	}
	return err
}

// endingWith is the way of a transaction of Run that a last statement commits, and whose function
// then returns what is behind it.
func endingWith(last string, behind error) way {
	return func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			scope, err := locksqlc.Join(ctx, tx)
			if err == nil {
				err = fn(tx)
			}
			if err == nil {
				_, err = tx.ExecContext(scope.CommitWith(ctx, txlock.AnyRows), last)
			}
			return cmp.Or(err, behind)
		})
	}
}
