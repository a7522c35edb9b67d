package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

var (
	hashed   = txlock.NewFamily[int64]("soak-hashed", txlock.Hashed())
	fresh    = txlock.NewFamily[int64]("soak-fresh")
	messages = txlock.NewFamily[int64]("soak-message")
)

// unused is the number of a named key whose row was removed since its last use, four
// minutes ago. It is no number that was never used, since txlock remembers up to 65,536
// named keys of each database, so that a program with ever new ones grows to that.
func (o *op) unused() int64 { return 1 + 10*(o.burst/1e6%240) }

// errOnPurpose is what a function returns that is to be rolled back.
var errOnPurpose = errors.New("rolled back on purpose")

// lockKinds are the locks in transactions of database/sql.
func lockKinds() []kind {
	return []kind{
		{name: "Run", every: often, burst: 3, run: runKeys(func(o *op) []txlock.Key { return []txlock.Key{o.key()} })},
		{name: "Run, hashed", every: often, burst: 3, run: runKeys(func(o *op) []txlock.Key { return hashed.Keys(o.burst, 1+o.burst%records) })},
		{name: "Run, new keys", every: often, burst: 3, run: runKeys(func(o *op) []txlock.Key { return fresh.Keys(o.unused()) })},
		{name: "Run, rolled back", every: often, burst: 2, run: rolledBack, expected: []error{errOnPurpose}},
		{name: "Run, Join, Lock", every: often, burst: 3, run: joined},
		{name: "Lock on a plain pool", every: often, burst: 2, run: lockedPlain},
		{name: "TryLock", every: often, burst: 3, run: tryLocked, expected: []error{txlock.ErrBusy}},
		{name: "WaitAtMost, Lock", every: often, burst: 3, run: lockedInTime, expected: []error{txlock.ErrWaitTimeout}},
		{name: "Lock, cancelled", every: seldom, burst: 1, run: cancelled},
		{name: "LockAll", every: often, burst: 3, run: lockedAll},
		{name: "LockAny", every: often, burst: 3, run: lockedAny, expected: []error{txlock.ErrBusy}},
		{name: "RLock", every: often, burst: 3, run: shared},
		{name: "Optimistic", every: often, burst: 2, run: optimistic},
		{name: "CompareAndBump", every: often, burst: 2, run: compared, expected: []error{txlock.ErrConflict}},
		{name: "locksqlc.Do", every: often, burst: 2, run: done},
		{name: "locksqlc.TryDo", every: often, burst: 2, run: tryDone, expected: []error{txlock.ErrBusy}},
		{name: "Once", every: often, burst: 3, run: once},
		{name: "OnceValue", every: often, burst: 2, run: onceValue},
		{name: "Holders", every: seldom, burst: 1, run: looked},
	}
}

// runKeys is locksqlc.Run with the keys that of gives.
func runKeys(of func(o *op) []txlock.Key) func(ctx context.Context, o *op) error {
	return func(ctx context.Context, o *op) error {
		return locksqlc.Run(ctx, o.pool, of(o), func(tx *sql.Tx) error {
			o.again()
			return o.raise(ctx, tx)
		})
	}
}

// rolledBack locks a new key and rolls back.
func rolledBack(ctx context.Context, o *op) error {
	return locksqlc.Run(ctx, o.pool, fresh.Keys(-o.unused()), func(tx *sql.Tx) error {
		o.again()
		return errors.Join(o.raise(ctx, tx), errOnPurpose)
	})
}

// transact runs a transaction in which lock is called, and then the record is raised.
func (o *op) transact(ctx context.Context, pool *sql.DB, lock func(scope *txlock.Scope) error) error {
	isolation := sql.LevelRepeatableRead
	if o.index%2 == 1 {
		isolation = sql.LevelReadCommitted
	}
	return locksqlc.Run(ctx, pool, nil, func(tx *sql.Tx) error {
		scope, err := locksqlc.Join(ctx, tx)
		if err != nil {
			return err
		}
		if err := lock(scope); err != nil {
			return err
		}
		o.again()
		return o.raise(ctx, tx)
	}, &sql.TxOptions{Isolation: isolation})
}

// joined locks in a transaction that is open, and enters the lock again.
func joined(ctx context.Context, o *op) error {
	return o.transact(ctx, o.pool, func(scope *txlock.Scope) error {
		first, err := scope.Lock(ctx, o.key())
		if err != nil {
			return err
		}
		again, err := scope.Lock(ctx, o.key())
		if err == nil && again.Token() != first.Token() {
			err = fmt.Errorf("the lock was entered again with token %d instead of %d", again.Token(), first.Token())
		}
		return err
	})
}

func lockedPlain(ctx context.Context, o *op) error {
	return o.transact(ctx, o.plain, func(scope *txlock.Scope) error {
		_, err := scope.Lock(ctx, o.key())
		return err
	})
}

func tryLocked(ctx context.Context, o *op) error {
	return o.transact(ctx, o.pool, func(scope *txlock.Scope) error {
		_, err := scope.TryLock(ctx, o.key())
		return err
	})
}

func lockedInTime(ctx context.Context, o *op) error {
	return o.transact(ctx, o.pool, func(scope *txlock.Scope) error {
		_, err := scope.WaitAtMost(100*time.Millisecond).Lock(ctx, o.key())
		return err
	})
}

// cancelled waits for a lock under a context that ends before it is free.
func cancelled(ctx context.Context, o *op) error {
	return locksqlc.Do(ctx, o.pool, o.key(), func(context.Context) error {
		o.granted()
		waiting, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		waited := make(chan error)
		go func() { // by this one it would wait for itself
			waited <- locksqlc.Run(waiting, o.pool, []txlock.Key{o.key()}, func(*sql.Tx) error {
				return errors.New("two have the lock at the same time")
			})
		}()
		err := <-waited
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		return fmt.Errorf("a wait whose context has ended returns %w", err)
	})
}

// lockedAll takes keys of all sorts, some of them shared.
func lockedAll(ctx context.Context, o *op) error {
	return o.transact(ctx, o.pool, func(scope *txlock.Scope) error {
		_, err := scope.LockAll(ctx, o.key(), hashed.Key(o.burst), txlock.Shared(hashed.Key(-1)), fresh.Key(o.unused()+int64(1+o.index)), txlock.Shared(txlock.Named("soak-read")))
		return err
	})
}

// lockedAny takes one of the segments of the record's key, and raises nothing.
func lockedAny(ctx context.Context, o *op) error {
	return locksqlc.Run(ctx, o.pool, nil, func(tx *sql.Tx) error {
		scope, err := locksqlc.Join(ctx, tx)
		if err != nil {
			return err
		}
		if _, err = scope.LockAny(ctx, txlock.Segments(o.key(), 2)...); err == nil {
			o.granted()
			think(5 * time.Millisecond)
		}
		return err
	})
}

// shared reads the record, or raises it, among readers.
func shared(ctx context.Context, o *op) error {
	if o.index == 0 {
		return runKeys(func(o *op) []txlock.Key { return []txlock.Key{o.key()} })(ctx, o)
	}
	return locksqlc.Run(ctx, o.pool, nil, func(tx *sql.Tx) error {
		scope, err := locksqlc.Join(ctx, tx)
		if err != nil {
			return err
		}
		if _, err = scope.RLock(ctx, o.key()); err == nil {
			o.granted()
			think(5 * time.Millisecond)
		}
		return err
	})
}

func optimistic(ctx context.Context, o *op) error {
	return locksqlc.Optimistic(ctx, o.pool, o.key(), func(tx *sql.Tx) error {
		o.wrote = nil
		err := o.raise(ctx, tx)
		o.granted()
		return err
	})
}

// compared reads a version, and compares it in a transaction.
func compared(ctx context.Context, o *op) error {
	version, err := txlock.ReadVersion(ctx, o.pool, o.key())
	if err != nil {
		return err
	}
	return o.transact(ctx, o.pool, func(scope *txlock.Scope) error { return scope.CompareAndBump(ctx, o.key(), version) })
}

// done raises the record under a lock of another connection.
func done(ctx context.Context, o *op) error {
	return locksqlc.Do(ctx, o.pool, o.key(), func(ctx context.Context) error {
		o.again()
		return o.raise(ctx, o.plain)
	})
}

func tryDone(ctx context.Context, o *op) error {
	return locksqlc.TryDo(ctx, o.pool, o.key(), func(ctx context.Context) error {
		o.again()
		return o.raise(ctx, o.plain)
	})
}

// once raises the record in one operation of each burst.
func once(ctx context.Context, o *op) error {
	_, err := locksqlc.Once(ctx, o.pool, messages.Key(o.burst), func(tx *sql.Tx) error {
		o.again()
		return o.raise(ctx, tx)
	}, txlock.Keep(retention))
	return err
}

func onceValue(ctx context.Context, o *op) error {
	value, _, err := locksqlc.OnceValue(ctx, o.pool, messages.Key(-o.burst), func(tx *sql.Tx) (int64, error) {
		o.again()
		return o.burst, o.raise(ctx, tx)
	}, txlock.Keep(retention), txlock.Fingerprint([]byte(o.name())))
	if err == nil && value != o.burst {
		err = fmt.Errorf("the answer is %d, and was %d", value, o.burst)
	}
	return err
}

// looked lists what operators look at.
func looked(ctx context.Context, o *op) error {
	if _, err := txlock.Holders(ctx, o.pool, o.key()); err != nil {
		return err
	}
	if _, err := o.leases.List(ctx); err != nil {
		return err
	}
	_, err := o.jobs.List(ctx)
	o.granted()
	return err
}
