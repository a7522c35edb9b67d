package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// transaction is one try of an operation.
type transaction struct {
	*sql.Tx
	w     *worker
	id    string
	wrote []string
	read  int64
}

// runner is locksqlc.Run or Transaction of lockgorm, with what they need.
type runner func(ctx context.Context, fn func(tx *sql.Tx) error) error

// transact runs a transaction, in as many tries as that takes, and notes what came
// of it.
func (w *worker) transact(o op, run runner, body func(ctx context.Context, t *transaction) error) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	done := op{ID: o.ID}
	whole := false // the last try came to its end
	err := run(ctx, func(tx *sql.Tx) error {
		done.Tries++
		t := &transaction{Tx: tx, w: w, id: tryID(o.ID, fmt.Sprint(done.Tries))}
		whole = false
		err := body(ctx, t)
		done.Wrote, done.Value, whole = t.wrote, t.read, err == nil
		return err
	})
	done.Return, done.Outcome = w.now(), outcomeOf(err, whole)
	if err != nil {
		done.Err = err.Error()
	}
	w.journal.write(done)
	return done.Outcome
}

// begun is the runner of transactions that lock by themselves.
func (w *worker) begun(pool *sql.DB, keys ...txlock.Key) runner {
	options := w.isolation()
	return func(ctx context.Context, fn func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, pool, keys, fn, options)
	}
}

// value reads a counter.
func (t *transaction) value(ctx context.Context, name string) (value int64, err error) {
	err = t.QueryRowContext(ctx, "SELECT value FROM counters WHERE name = ?", name).Scan(&value)
	return value, err
}

// bump reads a counter and raises it.
func (t *transaction) bump(ctx context.Context, name string, token uint64) error {
	value, err := t.value(ctx, name)
	if err != nil {
		return err
	}
	t.w.think(3 * time.Millisecond)
	return t.set(ctx, name, value+1, token)
}

// set writes a counter.
func (t *transaction) set(ctx context.Context, name string, value int64, token uint64) error {
	if _, err := t.ExecContext(ctx, "UPDATE counters SET value = ?, token = ? WHERE name = ?", value, token, name); err != nil {
		return err
	}
	return t.note(ctx, name, value, token)
}

// note adds the row of a commit that has written a counter.
func (t *transaction) note(ctx context.Context, name string, value int64, token uint64) error {
	t.wrote = append(t.wrote, name)
	_, err := t.ExecContext(ctx, "INSERT INTO commits VALUES (?, ?, ?, ?)", t.id, name, value, token)
	return err
}

// locked takes a lock and raises its counter.
func (t *transaction) locked(ctx context.Context, name string, lock func(scope *txlock.Scope) (txlock.Grant, error), options ...txlock.JoinOption) error {
	if t.w.Without == "lock" {
		return t.bump(ctx, name, 0)
	}
	scope, err := locksqlc.Join(ctx, t.Tx, options...)
	if err != nil {
		return err
	}
	grant, err := lock(scope)
	if err != nil {
		return err
	}
	return t.bump(ctx, grant.Key().String(), grant.Token())
}

// run is Run of several keys.
func (w *worker) run() outcome {
	names := w.some(lockKeys, 1)
	keys := keysOf(names)
	if w.Without == "lock" {
		keys = nil
	}
	o := w.begin("run", names...)
	return w.transact(o, w.begun(w.pool, keys...), func(ctx context.Context, t *transaction) error {
		for _, name := range names {
			grant := txlock.Grant{}
			if scope, err := locksqlc.Join(ctx, t.Tx); err != nil {
				return err
			} else if w.guarded { // elsewhere each Join makes a scope of its own
				grant, _ = scope.Held(keyOf(name))
			}
			if err := t.bump(ctx, name, grant.Token()); err != nil {
				return err
			}
		}
		return nil
	})
}

// lock is Scope.Lock as the first statement.
func (w *worker) lock() outcome {
	name := w.one(lockKeys)
	return w.transact(w.begin("lock", name), w.begun(w.pool), func(ctx context.Context, t *transaction) error {
		return t.locked(ctx, name, func(s *txlock.Scope) (txlock.Grant, error) { return s.Lock(ctx, keyOf(name)) })
	})
}

// stale is Scope.Lock after a read, which may be stale.
func (w *worker) stale() outcome {
	name, pool := w.one(lockKeys), w.pool
	var options []txlock.JoinOption
	if w.Without == "snapshot" {
		pool, options = w.plain, append(options, txlock.NothingRead()) // a lie
	}
	return w.transact(w.begin("lock after a read", name), w.begun(pool), func(ctx context.Context, t *transaction) error {
		if _, err := t.value(ctx, name); err != nil {
			return err
		}
		w.think(10 * time.Millisecond)
		return t.locked(ctx, name, func(s *txlock.Scope) (txlock.Grant, error) { return s.Lock(ctx, keyOf(name)) }, options...)
	})
}

// tryLock is Scope.TryLock.
func (w *worker) tryLock() outcome {
	name := w.one(lockKeys)
	return w.transact(w.begin("try lock", name), w.begun(w.pool), func(ctx context.Context, t *transaction) error {
		return t.locked(ctx, name, func(s *txlock.Scope) (txlock.Grant, error) { return s.TryLock(ctx, keyOf(name)) })
	})
}

// waitAtMost is Scope.Lock with a limit.
func (w *worker) waitAtMost() outcome {
	name := w.one(lockKeys)
	limit := time.Duration(1 + w.Int64N(int64(100*time.Millisecond)))
	return w.transact(w.begin("lock in time", name), w.begun(w.pool), func(ctx context.Context, t *transaction) error {
		return t.locked(ctx, name, func(s *txlock.Scope) (txlock.Grant, error) { return s.WaitAtMost(limit).Lock(ctx, keyOf(name)) })
	})
}

// lockAny is Scope.LockAny.
func (w *worker) lockAny() outcome {
	names := w.some(lockKeys, 2)
	return w.transact(w.begin("lock any", names...), w.begun(w.pool), func(ctx context.Context, t *transaction) error {
		return t.locked(ctx, names[0], func(s *txlock.Scope) (txlock.Grant, error) { return s.LockAny(ctx, keysOf(names)...) })
	})
}

// read reads a counter under a shared lock.
func (w *worker) read() outcome {
	name := w.one(lockKeys)
	return w.transact(w.begin("read", name), w.begun(w.pool), func(ctx context.Context, t *transaction) error {
		scope, err := locksqlc.Join(ctx, t.Tx)
		if err != nil {
			return err
		}
		if _, err = scope.RLock(ctx, keyOf(name)); err == nil {
			t.read, err = t.value(ctx, name)
		}
		return err
	})
}

// crossed takes two locks in a random order, so that there are deadlocks, and goes on
// after one as a careless program does. The pool must not let it commit anything then.
func (w *worker) crossed() outcome {
	pool := w.pool
	if w.Without == "doom" {
		pool = w.plain
	} else if !w.guarded {
		return w.lock() // a plain pool doesn't promise that
	}
	names := []string{lockKeys[0], lockKeys[1]}
	if w.IntN(2) == 0 {
		slices.Reverse(names)
	}
	return w.transact(w.begin("crossed locks", names...), w.begun(pool), func(ctx context.Context, t *transaction) error {
		for _, name := range names {
			err := t.locked(ctx, name, func(s *txlock.Scope) (txlock.Grant, error) { return s.Lock(ctx, keyOf(name)) })
			if errors.Is(err, txlock.ErrDeadlock) {
				if err = t.bump(ctx, name, 0); errors.Is(err, txlock.ErrTxDoomed) {
					err = nil
				}
			}
			if err != nil {
				return err
			}
			w.think(20 * time.Millisecond)
		}
		return nil
	})
}

// optimistic is locksqlc.Optimistic.
func (w *worker) optimistic() outcome {
	name := w.one(lockKeys)
	options := w.isolation()
	run := func(ctx context.Context, fn func(tx *sql.Tx) error) error {
		return locksqlc.Optimistic(ctx, w.pool, keyOf(name), fn, options)
	}
	if w.Without == "version" {
		run = w.begun(w.pool)
	}
	return w.transact(w.begin("optimistic", name), run, func(ctx context.Context, t *transaction) error {
		return t.bump(ctx, name, 0)
	})
}

// compare reads a version and a counter, thinks, and writes by CompareAndBump.
func (w *worker) compare() outcome {
	name := w.one(lockKeys)
	o := w.begin("compare", name)
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	version, err := txlock.ReadVersion(ctx, w.pool, keyOf(name))
	var before int64
	if err == nil {
		err = w.pool.QueryRowContext(ctx, "SELECT value FROM counters WHERE name = ?", name).Scan(&before)
	}
	if err != nil {
		w.journal.write(op{ID: o.ID, Return: w.now(), Outcome: failed, Err: err.Error()})
		return failed
	}
	w.think(10 * time.Millisecond)
	return w.transact(o, w.begun(w.pool), func(ctx context.Context, t *transaction) error {
		scope, err := locksqlc.Join(ctx, t.Tx)
		if err != nil {
			return err
		}
		if w.Without != "version" {
			if err := scope.CompareAndBump(ctx, keyOf(name), version); err != nil {
				return err
			}
		}
		grant, _ := scope.Held(keyOf(name))
		return t.set(ctx, name, before+1, grant.Token())
	})
}
