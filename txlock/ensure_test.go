package txlock_test

import (
	"context"
	"database/sql"
	"fmt"
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

// Those that insert with little patience, or lock what is missing, which closes the gap around it to others, have a database of their own.

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
				testdb.Equal(t, "new rows of a key", number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks WHERE name = ? AND token = 0 AND REPLACE(owner, X'00', '') = '-' AND conn_id = 0", key.String()), 1)
				testdb.Equal(t, "the first grant has a token", committed(t, db, key).Token() > 0, true)
			}
			testdb.Equal(t, "rows that were there with their token", number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks WHERE name = ? AND token = ?", old.String(), before.Token()), 1)
		}
	})
}

// TestEnsureWaitsForNobody ensures keys that others hold, on rows that are committed and on such as are not, with the only connection of its pool.
func TestEnsureWaitsForNobody(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		old, fresh, shared, missing := named(), named(), named(), named()
		committed(t, db, old)
		committed(t, db, shared)
		holder(t, db, old)
		maker := holder(t, db, fresh)
		reader := begin(t, newPool(t, db, true), nil)
		wants(t, "RLock", testdb.Err(reader.RLock(t.Context(), shared)), nil)
		for _, guarded := range []bool{false, true} {
			pool := newPool(t, db, guarded)
			pool.SetMaxOpenConns(1)
			wants(t, "Ensure", txlock.Ensure(t.Context(), pool, old, fresh, shared, missing), nil)
		}
		testdb.Equal(t, "rows that were missing", rowsOf(t, db, missing), 1)

		// The row that another made is gone again: that Ensure has seen it is no reason not to lock it.
		wants(t, "Rollback", maker.tx.Rollback(), nil)
		s := begin(t, newPool(t, db, true), nil)
		for _, verb := range []func(context.Context, txlock.Key) (txlock.Grant, error){s.TryRLock, s.WaitAtMost(5e9).RLock} {
			wants(t, "the shared lock of a row that is gone again", testdb.Err(verb(t.Context(), fresh)), nil)
		}
		s = begin(t, newPool(t, db, true), nil)
		wants(t, "the lock of a key that is shared", testdb.Err(s.TryLock(t.Context(), fresh)), txlock.ErrBusy)
	})
}

// TestEnsureByManyAtOnce ensures more keys than one statement takes, of which some are there, by many at the same time.
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
		left := number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks")
		testdb.ErrorIf(t, left != 1000 || rowsOf(t, db, lot) != 0, "%d rows, and of a hashed key %d", left, rowsOf(t, db, lot))
	})
}

// TestPoolsRefuse proves that what is called on a pool refuses bad input, and changes nothing then.
func TestPoolsRefuse(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		good, pool := old(t, db), newPool(t, db, false)
		for _, bad := range [][]txlock.Key{{}, {good, {}}, {good, txlock.Named("")}, {good, txlock.Named(strings.Repeat("k", 256))}, {named(), txlock.Named("\xff")}, {named(), txlock.NewFamily[int]("f").Key(0)}} {
			wants(t, "Ensure", txlock.Ensure(t.Context(), pool, bad...), txlock.ErrInvalidKey)
			wants(t, "Holders", testdb.Err(txlock.Holders(t.Context(), pool, bad...)), txlock.ErrInvalidKey)
		}
		for _, olderThan := range []time.Duration{0, -1, -time.Hour, math.MinInt64} {
			wants(t, "Purge of no time", testdb.Err(txlock.Purge(t.Context(), pool, olderThan)), txlock.ErrInvalidOption)
		}
		wants(t, "Purge of 292 years", testdb.Err(txlock.Purge(t.Context(), pool, math.MaxInt64)), nil)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for verb, call := range map[string]func(ctx context.Context, pool *sql.DB) error{
			"Ensure":    func(ctx context.Context, pool *sql.DB) error { return txlock.Ensure(ctx, pool, named()) },
			"Holders":   func(ctx context.Context, pool *sql.DB) error { return testdb.Err(txlock.Holders(ctx, pool, good)) },
			"Purge":     func(ctx context.Context, pool *sql.DB) error { return testdb.Err(txlock.Purge(ctx, pool, time.Second)) },
			"PurgeOnce": func(ctx context.Context, pool *sql.DB) error { return testdb.Err(txlock.PurgeOnce(ctx, pool)) },
		} {
			wants(t, verb+" after the end", call(ended, pool), context.Canceled)
			err := call(t.Context(), nil)
			testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "*sql.DB is nil"), "%s on nil: %v", verb, err)
		}
		n := number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks")
		testdb.ErrorIf(t, n != 1 || rowsOf(t, db, good) != 1, "%d rows after calls that were refused, want the one of before", n)
	})
}

// TestMissingTables drops the tables under the application, and has the administrator forget to make them.
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
					wants(t, "Holders", testdb.Err(txlock.Holders(t.Context(), pool, key)), txlock.ErrSchema)
					s := begin(t, pool, nil)
					s.refuses(t, key, txlock.ErrSchema, "Lock", "TryLock", "RLock", "TryRLock", "WaitAtMost", "LockAll")
					s.commit(t)
				}
				wants(t, "Clean", testdb.Err(txlock.Purge(t.Context(), pool, 1)), txlock.ErrSchema)
			})
		}
	}
}

// TestMissingCenter: a lock whose center row is gone is refused, in transactions that begin with it and in others.
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
				s.refuses(t, key, txlock.ErrSchema, "Lock", "TryLock", "RLock", "TryRLock", "WaitAtMost")
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
				s.refuses(t, key, txlock.ErrReadOnly, "Lock", "TryLock", "WaitAtMost")
			}
			s.refuses(t, old, txlock.ErrReadOnly, "LockAll")
			wants(t, "RLock of a key without a row", testdb.Err(s.RLock(t.Context(), named())), txlock.ErrReadOnly)
			for _, key := range []txlock.Key{old, lot} {
				grant, err := s.RLock(t.Context(), key)
				wants(t, "RLock", err, nil)
				testdb.Equal(t, "it is shared", grant.Shared(), true)
				other := begin(t, newPool(t, db, true), nil)
				wants(t, "TryLock of what a read-only transaction shares", testdb.Err(other.TryLock(t.Context(), key)), txlock.ErrBusy)
				wants(t, "Rollback", other.tx.Rollback(), nil)
			}
			s.commit(t)
		}
	})
}

// Every test of Clean has a database of its own, since it removes the rows of all.

// age makes the committed row of a key old: locked an hour ago and a minute, by a token of the same time.
func age(t *testing.T, db *testdb.DB, key txlock.Key) {
	t.Helper()
	exec(t, db.Admin(), "UPDATE lockstep_locks SET locked_us = locked_us - 3660000000, token = token - 3660000000 WHERE name = ?", key.String())
}

// old is a key whose row is old.
func old(t *testing.T, db *testdb.DB) txlock.Key {
	t.Helper()
	key := named()
	committed(t, db, key)
	age(t, db, key)
	return key
}

func clean(t *testing.T, pool *sql.DB, olderThan time.Duration) int {
	t.Helper()
	return testdb.Got(txlock.Purge(t.Context(), pool, olderThan))(t)
}

func TestCleanRemovesOldRows(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{false, true} {
			gone, young, made := old(t, db), named(), named()
			committed(t, db, young)
			noError(t, txlock.Ensure(t.Context(), db.Admin(), made))
			age(t, db, young) // locked by a program of long ago, and again now
			again := committed(t, db, young)
			pool := newPool(t, db, guarded)
			pool.SetMaxOpenConns(1)
			testdb.Equal(t, "rows older than two hours", clean(t, pool, 2*time.Hour), 0)
			testdb.Equal(t, "rows older than an hour", clean(t, pool, time.Hour), 1)
			testdb.ErrorIf(t, rowsOf(t, db, gone) != 0 || rowsOf(t, db, young) != 1 || rowsOf(t, db, made) != 1, "the wrong rows were removed")
			grant := committed(t, db, young)
			testdb.ErrorIf(t, grant.Token() <= again.Token(), "token %d after %d", grant.Token(), again.Token())
		}
	})
}

// TestCleanWaitsForNobody leaves the rows that others hold, wait for or share, and those that they are making, of more than one transaction removes.
func TestCleanWaitsForNobody(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		fill(t, db, "old:%d", 1000)
		held, shared, wanted, free, fresh := old(t, db), old(t, db), old(t, db), old(t, db), named()
		holder(t, db, held)
		holder(t, db, fresh)
		reader := begin(t, newPool(t, db, true), nil)
		wants(t, "RLock", testdb.Err(reader.RLock(t.Context(), shared)), nil)
		owner, waiter := holder(t, db, wanted), begin(t, newPool(t, db, true), nil)
		answered := db.Waiting(t, waiter.id, func() error { return testdb.Err(waiter.Lock(t.Context(), wanted)) })
		n := clean(t, newPool(t, db, false), time.Minute)
		testdb.ErrorIf(t, n != 1001 || rowsOf(t, db, free) != 0, "%d rows were removed, want the 1,001 that nobody needs", n)
		for _, key := range []txlock.Key{held, shared, wanted} {
			testdb.Equal(t, "rows of "+key.String(), rowsOf(t, db, key), 1)
		}
		other := begin(t, newPool(t, db, true), nil)
		for _, key := range []txlock.Key{held, shared, wanted, fresh} {
			wants(t, "TryLock beside Clean", testdb.Err(other.TryLock(t.Context(), key)), txlock.ErrBusy)
		}
		wants(t, "Rollback", owner.tx.Rollback(), nil)
		wants(t, "the waiter", <-answered, nil)
	})
}

// TestCleanKeepsTokensRising removes a row only when the clock has passed its token, so that the key starts above it.
func TestCleanKeepsTokensRising(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		pool, ahead, key := newPool(t, db, false), old(t, db), named()
		exec(t, db.Admin(), "UPDATE lockstep_locks SET token = (UNIX_TIMESTAMP() + 3600) * 1000000 WHERE name = ?", ahead.String())
		n := clean(t, pool, time.Minute)
		testdb.ErrorIf(t, n != 0 || rowsOf(t, db, ahead) != 1, "a row whose token is ahead of the clock was removed (%d)", n)
		before := number(t, db.Admin(), "SELECT token FROM lockstep_locks WHERE name = ?", ahead.String())
		testdb.Equal(t, "the token after one that is ahead of the clock", committed(t, db, ahead).Token(), uint64(before)+1)

		for range 3 {
			first := committed(t, db, key)
			began := time.Now()
			for clean(t, pool, time.Nanosecond) == 0 { // until the second of the token is over
				testdb.FatalIf(t, time.Since(began) > time.Minute, "the row is never removed")
			}
			second := committed(t, db, key)
			testdb.ErrorIf(t, second.Token() <= first.Token(), "token %d of the row that was made again, %d before", second.Token(), first.Token())
		}
	})
}

// fill makes old rows, whose names have the numbers below n.
func fill(t *testing.T, db *testdb.DB, name string, n int) {
	t.Helper()
	var names []any
	for i := range n {
		names = append(names, fmt.Sprintf(name, i))
	}
	exec(t, db.Admin(), "INSERT INTO lockstep_locks VALUES "+strings.TrimPrefix(strings.Repeat(", (?, 1, '-', 0, 1)", n), ", "), names...)
}
