package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// ofItself reports whether an error says that a call would wait for itself.
func ofItself(err error) bool {
	var held *txlock.HeldError
	return errors.Is(err, txlock.ErrWaitTimeout) && !txlock.Retryable(err) && errors.As(err, &held) && held.Here && held.Session > 0 &&
		strings.Contains(err.Error(), "would wait for itself")
}

// TestWaitForItself proves that a call inside of a transaction's function that would wait for
// that transaction is refused before it waits.
func TestWaitForItself(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		ctx, hashed := t.Context(), txlock.NewFamily[int64]("own", txlock.Hashed())
		for _, key := range []txlock.Key{named(), hashed.Key(time.Now().UnixNano())} {
			nested := func(keys ...txlock.Key) error {
				return locksqlc.Run(ctx, pool, keys, func(*sql.Tx) error { return nil })
			}
			nothing := func(context.Context) error { return nil }
			calls := map[string]func() error{
				"Run":        func() error { return nested(key) },
				"Run shared": func() error { return nested(txlock.Shared(key)) },
				"Run of two": func() error { return nested(key, named()) },
				"Do":         func() error { return locksqlc.Do(ctx, pool, key, nothing) },
				"Optimistic": func() error { return locksqlc.Optimistic(ctx, pool, key, func(*sql.Tx) error { return nil }) },
				"WaitAtMost": func() error {
					return lockIn(ctx, pool, func(s *txlock.Scope) error { return second(s.WaitAtMost(time.Hour).Lock(ctx, key)) })
				},
				"RLock": func() error {
					return lockIn(ctx, pool, func(s *txlock.Scope) error { return second(s.RLock(ctx, key)) })
				},
				"two in a row": func() error {
					return locksqlc.Run(ctx, pool, []txlock.Key{named()}, func(*sql.Tx) error { return nested(key) })
				},
			}
			for what, call := range calls {
				err := locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return call() })
				if !ofItself(err) {
					t.Errorf("%s inside of Run: %v", what, err)
				}
				err = locksqlc.Do(ctx, pool, key, func(context.Context) error { return call() })
				if !ofItself(err) {
					t.Errorf("%s inside of Do: %v", what, err)
				}
			}
			shared := []txlock.Key{txlock.Shared(key)}
			wants(t, "shared in shared", locksqlc.Run(ctx, pool, shared, func(*sql.Tx) error { return nested(shared...) }), nil)
			if err := locksqlc.Run(ctx, pool, shared, func(*sql.Tx) error { return errors.Join(nested(shared...), nested(key)) }); !ofItself(err) {
				t.Errorf("exclusive in shared, behind another one that shared: %v", err)
			}
			wants(t, "another key", locksqlc.Run(ctx, pool, shared, func(*sql.Tx) error { return nested(named()) }), nil)
			wants(t, "afterwards", nested(key), nil)
			if n := txlock.Remembered(key); n != 0 {
				t.Errorf("%d transactions that are over are remembered", n)
			}
		}
	})
}

// TestWaitOnAPlainPool proves that a plain pool, which doesn't know whether the transaction of
// the function has ended, waits, and then says that this program has the key, in another transaction.
func TestWaitOnAPlainPool(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, ctx, key := impatient(t, db, false), t.Context(), named()
		committed(t, db, key)
		nested := func() error { return locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }) }
		err := locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nested() })
		var held *txlock.HeldError
		if !errors.Is(err, txlock.ErrWaitTimeout) || !errors.As(err, &held) || !held.Here || ofItself(err) {
			t.Errorf("Run inside of Run: %v", err)
		}
		wants(t, "Run that is over on the server", locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			return errors.Join(tx.Rollback(), nested(), errNoUse)
		}), errNoUse)
		if n := txlock.Remembered(key); n != 0 {
			t.Errorf("%d transactions that are over are remembered", n)
		}
		of := txlock.Named(key.String() + "z") // LockAll comes to it last
		begin(t, newPool(t, db, true), nil).lock(t, of)
		err = locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			again, err := locksqlc.Join(ctx, tx)
			return errors.Join(err, second(again.LockAll(ctx, key, of)))
		})
		if !errors.As(err, &held) || held.Key != of {
			t.Errorf("LockAll of the own key and another's: %v", err)
		}
	})
}

// lockIn runs a transaction that locks by its Scope.
func lockIn(ctx context.Context, pool *sql.DB, lock func(s *txlock.Scope) error) error {
	return locksqlc.Run(ctx, pool, nil, func(tx *sql.Tx) error {
		s, err := locksqlc.Join(ctx, tx)
		if err != nil {
			return err
		}
		return lock(s)
	})
}

// TestNoWaitForWhatIsOver proves that a call inside of a transaction that the server has
// rolled back, or that has rolled back to before its lock, isn't refused.
func TestNoWaitForWhatIsOver(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, ctx, key := newPool(t, db, true), t.Context(), named()
		wants(t, "Ensure", txlock.Ensure(ctx, pool, key), nil)
		nested := func() error { return locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }) }
		err := locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			var session uint64
			wants(t, "the session", tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&session), nil)
			db.Exec(t, fmt.Sprintf("KILL %d", session))
			_, err := tx.ExecContext(ctx, "DO 1")
			for err == nil { // it may be a moment before the server ends it
				_, err = tx.ExecContext(ctx, "DO 1")
			}
			if err := nested(); ofItself(err) { // or the server still rolls back
				t.Error(err)
			}
			return errNoUse
		})
		wants(t, "Run", err, errNoUse)
		wants(t, "Run", locksqlc.Run(ctx, pool, nil, func(tx *sql.Tx) error {
			wants(t, "SAVEPOINT", second(tx.ExecContext(ctx, "SAVEPOINT early")), nil)
			s, err := locksqlc.Join(ctx, tx)
			wants(t, "Join", err, nil)
			wants(t, "Lock", second(s.Lock(ctx, key)), nil)
			wants(t, "ROLLBACK TO", second(tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT early")), nil)
			if err := nested(); ofItself(err) { // the server keeps some locks even so
				t.Error(err)
			}
			return nil
		}), nil)
	})
}

var errNoUse = errors.New("of no use")

// TestOnceWaitsForItself proves it of a key of Once, which no lock excludes.
func TestOnceWaitsForItself(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, ctx, key := newPool(t, db, true), t.Context(), named()
		once := func(then func() error) error {
			return lockIn(ctx, pool, func(s *txlock.Scope) error {
				if first, err := s.Once(ctx, key); err != nil || !first {
					return errors.Join(err, errors.New("not the first"))
				}
				return then()
			})
		}
		if err := once(func() error { return once(nil) }); !ofItself(err) {
			t.Errorf("Once: %v", err)
		}
		wants(t, "a lock of that key", once(func() error { return locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }) }), nil)
		if n := txlock.Remembered(key); n != 0 {
			t.Errorf("%d transactions that are over are remembered", n)
		}
	})
}

// TestWaitForThisProgram proves that a wait for another goroutine's transaction is none for
// itself, and that its refusal says that the transaction is one of this program, without
// NameHolders.
func TestWaitForThisProgram(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, ctx, key := newPool(t, db, true), t.Context(), named()
		refusals := map[string]func(s *txlock.Scope) error{
			"TryLock": func(s *txlock.Scope) error { return second(s.TryLock(ctx, key)) },
			"Lock":    func(s *txlock.Scope) error { return second(s.WaitAtMost(10*time.Millisecond).Lock(ctx, key)) },
			"LockAll": func(s *txlock.Scope) error {
				return second(s.WaitAtMost(10*time.Millisecond).LockAll(ctx, named(), key))
			},
			"LockAny":            func(s *txlock.Scope) error { return second(s.LockAny(ctx, key)) },
			"RLock of exclusive": func(s *txlock.Scope) error { return second(s.WaitAtMost(10*time.Millisecond).RLock(ctx, key)) },
		}
		for what, refusal := range refusals {
			wants(t, what, locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error {
				refused := make(chan error)
				go func() { refused <- lockIn(ctx, pool, refusal) }()
				err := <-refused
				var held *txlock.HeldError
				if !errors.As(err, &held) || !held.Here || held.Key.String() != key.String() || !strings.Contains(err.Error(), "of this program") || ofItself(err) {
					t.Errorf("%s: %v", what, err)
				}
				return nil
			}), nil)
		}
		granted, waits := make(chan error), locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nil })
		wants(t, "Run", waits, nil)
		wants(t, "a goroutine that goes on", locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error {
			go func() { granted <- locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }) }()
			return nil
		}), nil)
		wants(t, "the goroutine", <-granted, nil)
	})
}
