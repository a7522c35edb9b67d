package txlock_test

import (
	"context"
	"database/sql"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// Those that insert with little patience, or lock what is missing, which closes the
// gap around it to others, have a database of their own.

func TestEnsureMakesMissingRows(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{false, true} {
			pool := newPool(t, db, guarded)
			old, a, b := named(), named(), named()
			before := committed(t, db, old)
			for range 2 {
				wants(t, "Ensure", txlock.Ensure(t.Context(), pool, b, old, a, b), nil)
			}
			for _, key := range []txlock.Key{a, b} {
				if n := number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks WHERE name = ? AND token = 0 AND REPLACE(owner, X'00', '') = '-' AND conn_id = 0", key.String()); n != 1 {
					t.Errorf("%v has %d new rows", key, n)
				}
				if grant := committed(t, db, key); grant.Token() == 0 {
					t.Errorf("the first grant is %+v", grant)
				}
			}
			if n := number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks WHERE name = ? AND token = ?", old.String(), before.Token()); n != 1 {
				t.Error("the token of a row that was there has changed")
			}
		}
	})
}

// TestEnsureWaitsForNobody ensures keys that others hold, on rows that are
// committed and on such as are not, with the only connection of its pool.
func TestEnsureWaitsForNobody(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		old, fresh, shared, missing := named(), named(), named(), named()
		committed(t, db, old)
		committed(t, db, shared)
		holder(t, db, old)
		maker := holder(t, db, fresh)
		reader := begin(t, newPool(t, db, true), nil)
		wants(t, "RLock", second(reader.RLock(t.Context(), shared)), nil)
		for _, guarded := range []bool{false, true} {
			pool := newPool(t, db, guarded)
			pool.SetMaxOpenConns(1)
			wants(t, "Ensure", txlock.Ensure(t.Context(), pool, old, fresh, shared, missing), nil)
		}
		if rowsOf(t, db, missing) != 1 {
			t.Error("the missing row was not made")
		}

		// The row that another made is gone again: that Ensure has seen it is no
		// reason not to lock it.
		wants(t, "Rollback", maker.tx.Rollback(), nil)
		s := begin(t, newPool(t, db, true), nil)
		for _, verb := range []func(context.Context, txlock.Key) (txlock.Grant, error){s.TryRLock, s.WaitAtMost(5e9).RLock} {
			wants(t, "the shared lock of a row that is gone again", second(verb(t.Context(), fresh)), nil)
		}
		s = begin(t, newPool(t, db, true), nil)
		wants(t, "the lock of a key that is shared", second(s.TryLock(t.Context(), fresh)), txlock.ErrBusy)
	})
}

// TestEnsureByManyAtOnce ensures more keys than one statement takes, of which some are there, by many
// at the same time.
func TestEnsureByManyAtOnce(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		const n = 1000
		fill(t, db, "many:%d", n)
		exec(t, db.Admin(), "DELETE FROM lockstep_locks WHERE name LIKE 'many:99_'")
		ids := make([]int, n-1)
		for i := range ids {
			ids[i] = i + 1
		}
		keys, lot, pool := txlock.NewFamily[int]("many").Keys(ids...), hashed(), newPool(t, db, false)
		var wg sync.WaitGroup
		for range 8 {
			mine := append(slices.Clone(keys), lot)
			mathrand.Shuffle(n, func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
			wg.Go(func() { wants(t, "one of many", txlock.Ensure(t.Context(), pool, mine...), nil) })
		}
		wg.Wait()
		if n := number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks"); n != 1000 || rowsOf(t, db, lot) != 0 {
			t.Errorf("%d rows, and of a hashed key %d", n, rowsOf(t, db, lot))
		}
	})
}

// TestPoolsRefuse proves that what is called on a pool refuses bad input, and changes nothing then.
func TestPoolsRefuse(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		good, pool := old(t, db), newPool(t, db, false)
		for _, bad := range [][]txlock.Key{{}, {good, {}}, {good, txlock.Named("")}, {good, txlock.Named(strings.Repeat("k", 256))}, {named(), txlock.Named("\xff")}, {named(), txlock.NewFamily[int]("f").Key(0)}} {
			wants(t, "Ensure", txlock.Ensure(t.Context(), pool, bad...), txlock.ErrInvalidKey)
			wants(t, "Holders", second(txlock.Holders(t.Context(), pool, bad...)), txlock.ErrInvalidKey)
		}
		for _, olderThan := range []time.Duration{0, -1, -time.Hour, math.MinInt64} {
			wants(t, "Purge of no time", second(txlock.Purge(t.Context(), pool, olderThan)), txlock.ErrInvalidOption)
		}
		wants(t, "Purge of 292 years", second(txlock.Purge(t.Context(), pool, math.MaxInt64)), nil)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for verb, call := range map[string]func(ctx context.Context, pool *sql.DB) error{
			"Ensure":    func(ctx context.Context, pool *sql.DB) error { return txlock.Ensure(ctx, pool, named()) },
			"Holders":   func(ctx context.Context, pool *sql.DB) error { return second(txlock.Holders(ctx, pool, good)) },
			"Purge":     func(ctx context.Context, pool *sql.DB) error { return second(txlock.Purge(ctx, pool, time.Second)) },
			"PurgeOnce": func(ctx context.Context, pool *sql.DB) error { return second(txlock.PurgeOnce(ctx, pool)) },
		} {
			wants(t, verb+" after the end", call(ended, pool), context.Canceled)
			if err := call(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "*sql.DB is nil") {
				t.Errorf("%s on nil: %v", verb, err)
			}
		}
		if n := number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks"); n != 1 || rowsOf(t, db, good) != 1 {
			t.Errorf("%d rows after calls that were refused, want the one of before", n)
		}
	})
}

// TestMissingTables drops the tables under the application, and has the
// administrator forget to make them.
func TestMissingTables(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, dropped := range []bool{false, true} {
			t.Run(string(engine), func(t *testing.T) {
				t.Parallel()
				var pool *sql.DB
				if dropped {
					db := testdb.Shared(t, engine).OpenNamed(t)
					db.Exec(t, "DROP TABLE lockstep_locks, lockstep_centers")
					pool = newPool(t, db, true)
				} else {
					pool = testdb.Fresh(t, engine).Admin()
				}
				wants(t, "Ensure", txlock.Ensure(t.Context(), pool, named()), txlock.ErrSchema)
				for _, key := range []txlock.Key{named(), hashed()} {
					wants(t, "Holders", second(txlock.Holders(t.Context(), pool, key)), txlock.ErrSchema)
					s := begin(t, pool, nil)
					for _, verb := range []func(context.Context, txlock.Key) (txlock.Grant, error){s.Lock, s.TryLock, s.RLock, s.TryRLock, s.WaitAtMost(1e9).Lock} {
						wants(t, "a lock", second(verb(t.Context(), key)), txlock.ErrSchema)
					}
					wants(t, "LockAll", second(s.LockAll(t.Context(), key, named())), txlock.ErrSchema)
					wants(t, "Verify: the transaction goes on", s.Verify(t.Context()), nil)
					s.commit(t)
				}
				wants(t, "Clean", second(txlock.Purge(t.Context(), pool, 1)), txlock.ErrSchema)
			})
		}
	}
}

// TestMissingCenter locks on a center row that somebody has deleted, on connections that have
// locked another one before, in transactions that begin with that and in others.
func TestMissingCenter(t *testing.T) {
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		key, there := hashed(), hashed()
		db := testdb.Shared(t, engine).OpenNamed(t, there.Slot())
		for _, guarded := range []bool{false, true} {
			pool := newPool(t, db, guarded)
			for _, open := range []func() *session{func() *session { return unread(t, pool) }, func() *session { return begin(t, pool, nil) }} {
				s := open()
				s.lock(t, there)
				s.commit(t)
				s = open()
				for _, verb := range []func(context.Context, txlock.Key) (txlock.Grant, error){s.Lock, s.TryLock, s.RLock, s.TryRLock, s.WaitAtMost(1e9).Lock} {
					wants(t, "a lock", second(verb(t.Context(), key)), txlock.ErrSchema)
				}
				wants(t, "Verify: the transaction goes on", s.Verify(t.Context()), nil)
				s.commit(t)
			}
		}
	})
}

func TestReadOnlyTransaction(t *testing.T) {
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		old, lot := named(), hashed()
		db := testdb.Shared(t, engine).OpenNamed(t, lot.Slot())
		committed(t, db, old)
		for _, guarded := range []bool{false, true} {
			s := begin(t, newPool(t, db, guarded), &sql.TxOptions{ReadOnly: true})
			for _, key := range []txlock.Key{old, named(), lot} {
				for _, verb := range []func(context.Context, txlock.Key) (txlock.Grant, error){s.Lock, s.TryLock, s.WaitAtMost(1e9).Lock} {
					grant, err := verb(t.Context(), key)
					wants(t, "the lock of "+key.String(), err, txlock.ErrReadOnly)
					if grant != (txlock.Grant{}) {
						t.Errorf("granted %+v", grant)
					}
				}
			}
			_, err := s.LockAll(t.Context(), old, named())
			wants(t, "LockAll", err, txlock.ErrReadOnly)
			wants(t, "Verify: the transaction goes on", s.Verify(t.Context()), nil)

			_, err = s.RLock(t.Context(), named())
			wants(t, "RLock of a key without a row", err, txlock.ErrReadOnly)
			for _, key := range []txlock.Key{old, lot} {
				grant, err := s.RLock(t.Context(), key)
				wants(t, "RLock", err, nil)
				if !grant.Shared() {
					t.Errorf("granted %+v", grant)
				}
				other := begin(t, newPool(t, db, true), nil)
				_, err = other.TryLock(t.Context(), key)
				wants(t, "TryLock of what a read-only transaction shares", err, txlock.ErrBusy)
				wants(t, "Rollback", other.tx.Rollback(), nil)
			}
			s.commit(t)
		}
	})
}
