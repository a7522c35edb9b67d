package txlock_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// Every test of Clean has a database of its own, since it removes the rows of all.

// age makes the committed row of a key old: locked an hour ago and a minute, by a
// token of the same time.
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
	n, err := txlock.Purge(t.Context(), pool, olderThan)
	if err != nil {
		t.Fatalf("Clean after %d rows: %v", n, err)
	}
	return n
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
			if n := clean(t, pool, 2*time.Hour); n != 0 {
				t.Errorf("%d rows were older than two hours", n)
			}
			if n := clean(t, pool, time.Hour); n != 1 {
				t.Errorf("%d rows were older than an hour", n)
			}
			if rowsOf(t, db, gone) != 0 || rowsOf(t, db, young) != 1 || rowsOf(t, db, made) != 1 {
				t.Error("the wrong rows were removed")
			}
			if grant := committed(t, db, young); grant.Token() <= again.Token() {
				t.Errorf("token %d after %d", grant.Token(), again.Token())
			}
		}
	})
}

// TestCleanWaitsForNobody leaves the rows that others hold, wait for or share, and
// those that they are making, of more than one transaction removes.
func TestCleanWaitsForNobody(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		fill(t, db, "old:%d", 1000)
		held, shared, wanted, free, fresh := old(t, db), old(t, db), old(t, db), old(t, db), named()
		holder(t, db, held)
		holder(t, db, fresh)
		reader := begin(t, newPool(t, db, true), nil)
		wants(t, "RLock", second(reader.RLock(t.Context(), shared)), nil)
		owner, waiter := holder(t, db, wanted), begin(t, newPool(t, db, true), nil)
		answered := db.Waiting(t, waiter.id, func() error { return second(waiter.Lock(t.Context(), wanted)) })
		if n := clean(t, newPool(t, db, false), time.Minute); n != 1001 || rowsOf(t, db, free) != 0 {
			t.Errorf("%d rows were removed, want the 1,001 that nobody needs", n)
		}
		for _, key := range []txlock.Key{held, shared, wanted} {
			if rowsOf(t, db, key) != 1 {
				t.Errorf("the row of %v was removed", key)
			}
		}
		other := begin(t, newPool(t, db, true), nil)
		for _, key := range []txlock.Key{held, shared, wanted, fresh} {
			wants(t, "TryLock beside Clean", second(other.TryLock(t.Context(), key)), txlock.ErrBusy)
		}
		wants(t, "Rollback", owner.tx.Rollback(), nil)
		wants(t, "the waiter", <-answered, nil)
	})
}

// TestCleanKeepsTokensRising removes a row only when the clock has passed its
// token, so that the key starts above it.
func TestCleanKeepsTokensRising(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		pool, ahead, key := newPool(t, db, false), old(t, db), named()
		exec(t, db.Admin(), "UPDATE lockstep_locks SET token = (UNIX_TIMESTAMP() + 3600) * 1000000 WHERE name = ?", ahead.String())
		if n := clean(t, pool, time.Minute); n != 0 || rowsOf(t, db, ahead) != 1 {
			t.Errorf("a row whose token is ahead of the clock was removed (%d)", n)
		}
		before := number(t, db.Admin(), "SELECT token FROM lockstep_locks WHERE name = ?", ahead.String())
		if grant := committed(t, db, ahead); grant.Token() != uint64(before)+1 {
			t.Errorf("token %d after %d, which is ahead of the clock", grant.Token(), before)
		}

		for range 3 {
			first := committed(t, db, key)
			began := time.Now()
			for clean(t, pool, time.Nanosecond) == 0 { // until the second of the token is over
				if time.Since(began) > time.Minute {
					t.Fatal("the row is never removed")
				}
			}
			if second := committed(t, db, key); second.Token() <= first.Token() {
				t.Errorf("token %d of the row that was made again, %d before", second.Token(), first.Token())
			}
		}
	})
}

// TestLocksAfterClean takes locks in all ways by a process that has seen the rows
// which are gone.
func TestLocksAfterClean(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		verbs := map[string]verb{
			"Lock": verbs["Lock"], "TryLock": verbs["TryLock"], "RLock": verbs["RLock"], "TryRLock": verbs["TryRLock"],
			"WaitAtMost.Lock": verbs["Lock"].within(9e9), "WaitAtMost.RLock": verbs["RLock"].within(9e9),
		}
		keys := map[string]txlock.Key{}
		for name := range verbs {
			keys[name] = old(t, db)
		}
		if n := clean(t, newPool(t, db, false), time.Minute); n != len(verbs) {
			t.Fatalf("%d rows were removed", n)
		}
		for name, verb := range verbs {
			s := begin(t, newPool(t, db, true), nil)
			wants(t, name, second(verb(s.Scope, t.Context(), keys[name])), nil)
			other := begin(t, newPool(t, db, true), nil)
			wants(t, "TryLock after "+name, second(other.TryLock(t.Context(), keys[name])), txlock.ErrBusy)
			wants(t, "Rollback", other.tx.Rollback(), nil)
			s.commit(t)
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
