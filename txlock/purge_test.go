package txlock_test

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"strings"
	"sync"
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
	onCenters(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{false, true} {
			gone, young, lot, made := old(t, db), named(), hashed(), named()
			committed(t, db, young)
			committed(t, db, lot)
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
			if n := number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_centers"); n != 65536 {
				t.Errorf("%d center rows", n)
			}
		}
	})
}

// TestCleanWaitsForNobody leaves the rows that others hold, wait for or share, and
// those that they are making.
func TestCleanWaitsForNobody(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		held, shared, wanted, free, fresh := old(t, db), old(t, db), old(t, db), old(t, db), named()
		holder(t, db, held)
		holder(t, db, fresh)
		reader := begin(t, newPool(t, db, true), nil)
		wants(t, "RLock", second(reader.RLock(t.Context(), shared)), nil)
		owner, waiter := holder(t, db, wanted), begin(t, newPool(t, db, true), nil)
		answered := db.Waiting(t, waiter.id, func() error { return second(waiter.Lock(t.Context(), wanted)) })
		if n := clean(t, newPool(t, db, false), time.Minute); n != 1 || rowsOf(t, db, free) != 0 {
			t.Errorf("%d rows were removed, want the one that nobody needs", n)
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
		verbs := map[string]func(s *session, key txlock.Key) (txlock.Grant, error){
			"Lock":     func(s *session, key txlock.Key) (txlock.Grant, error) { return s.Lock(t.Context(), key) },
			"TryLock":  func(s *session, key txlock.Key) (txlock.Grant, error) { return s.TryLock(t.Context(), key) },
			"RLock":    func(s *session, key txlock.Key) (txlock.Grant, error) { return s.RLock(t.Context(), key) },
			"TryRLock": func(s *session, key txlock.Key) (txlock.Grant, error) { return s.TryRLock(t.Context(), key) },
			"WaitAtMost.Lock": func(s *session, key txlock.Key) (txlock.Grant, error) {
				return s.WaitAtMost(9e9).Lock(t.Context(), key)
			},
			"WaitAtMost.RLock": func(s *session, key txlock.Key) (txlock.Grant, error) {
				return s.WaitAtMost(9e9).RLock(t.Context(), key)
			},
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
			_, err := verb(s, keys[name])
			wants(t, name, err, nil)
			other := begin(t, newPool(t, db, true), nil)
			_, err = other.TryLock(t.Context(), keys[name])
			wants(t, "TryLock after "+name, err, txlock.ErrBusy)
			wants(t, "Rollback", other.tx.Rollback(), nil)
			s.commit(t)
		}
	})
}

// fill makes n old rows.
func fill(t *testing.T, db *testdb.DB, n int) {
	t.Helper()
	exec(t, db.Admin(), "INSERT INTO lockstep_locks SELECT CONCAT('old:', 10000 + slot), 1, '-', 0, 1 FROM lockstep_centers WHERE slot < ?", n)
}

func TestCleanInBatches(t *testing.T) {
	onCenters(t, func(t *testing.T, db *testdb.DB) {
		for _, n := range []int{499, 500, 501, 1000, 1203} {
			fill(t, db, n)
			if got := clean(t, newPool(t, db, false), time.Hour); got != n {
				t.Errorf("%d of %d rows were removed", got, n)
			}
			if left := number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks"); left != 0 {
				t.Errorf("%d of %d rows are left", left, n)
			}
		}
		fill(t, db, 1203)
		for i := range 3 {
			holder(t, db, txlock.Named(fmt.Sprintf("old:%d", 10000+600*i)))
		}
		if got := clean(t, newPool(t, db, false), time.Hour); got != 1200 {
			t.Errorf("%d rows beside 3 that are held were removed, want 1200", got)
		}
	})
}

// TestCleanBySeveralAtOnce lets programs clean at the same time, which share the
// work.
func TestCleanBySeveralAtOnce(t *testing.T) {
	onCenters(t, func(t *testing.T, db *testdb.DB) {
		const rows = 3000
		fill(t, db, rows)
		pool := newPool(t, db, false)
		var mu sync.Mutex
		var wg sync.WaitGroup
		total := 0
		for range 4 {
			wg.Go(func() {
				n, err := txlock.Purge(t.Context(), pool, time.Hour)
				wants(t, "one of several", err, nil)
				mu.Lock()
				total += n
				mu.Unlock()
			})
		}
		wg.Wait()
		total += clean(t, pool, time.Hour) // what one has held when the others looked
		if left := number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks"); left != 0 || total != rows {
			t.Errorf("%d of %d rows were removed, %d are left", total, rows, left)
		}
	})
}

func TestCleanRefuses(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db, false), old(t, db)
		for _, olderThan := range []time.Duration{0, -1, -time.Hour, math.MinInt64} {
			wants(t, "Clean of no time", second(txlock.Purge(t.Context(), pool, olderThan)), txlock.ErrInvalidOption)
		}
		if n, err := txlock.Purge(t.Context(), pool, math.MaxInt64); n != 0 || err != nil {
			t.Errorf("Clean of 292 years: %d, %v", n, err)
		}
		if _, err := txlock.Purge(t.Context(), nil, time.Hour); err == nil || !strings.Contains(err.Error(), "*sql.DB is nil") {
			t.Errorf("Clean on nil: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wants(t, "Clean after the end", second(txlock.Purge(ended, pool, time.Second)), context.Canceled)
		if rowsOf(t, db, key) != 1 {
			t.Error("a call that was refused has removed a row")
		}
	})
}
