package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// exclusives are the verbs that wait for a token.
var exclusives = map[string]verb{
	"Lock": verbs["Lock"], "WaitAtMost": verbs["Lock"].within(time.Minute), "LockAll": verbs["LockAll"], "CompareAndBump": verbs["CompareAndBump"],
}

// withTries are those that don't wait, too.
func withTries() map[string]verb {
	all := maps.Clone(exclusives)
	all["TryLock"] = verbs["TryLock"]
	return all
}

// clockOf is the server's clock as tokens have it.
func clockOf(t *testing.T, db *testdb.DB) uint64 {
	t.Helper()
	return uint64(number(t, db.Admin(), "SELECT UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6))"))
}

// apart is a key without a row between two that have theirs: no other test needs the gaps that a rollback locks.
func apart(t *testing.T, db *testdb.DB) txlock.Key {
	t.Helper()
	key := named()
	wants(t, "Ensure", txlock.Ensure(t.Context(), db.Admin(), txlock.Named(key.String()+"/a"), txlock.Named(key.String()+"/z")), nil)
	return txlock.Named(key.String() + "/m")
}

// onExclusives runs a test for ways to a token, for keys with a row and without.
func onExclusives(t *testing.T, verbs map[string]verb, test func(t *testing.T, db *testdb.DB, key txlock.Key, lock verb)) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for name, lock := range verbs {
			for kind, key := range map[string]txlock.Key{"fresh": apart(t, db), "known": named(), "hashed": hashed()} {
				t.Run(name+"/"+kind, func(t *testing.T) {
					t.Parallel()
					if kind == "known" {
						committed(t, db, key)
						committed(t, db, another(key))
					}
					test(t, db, key, lock)
				})
			}
		}
	})
}

// TestTokenIsOfTheGrant: a token is not older than the grant: not that of the moment at which a statement has begun to wait.
func TestTokenIsOfTheGrant(t *testing.T) {
	onExclusives(t, exclusives, func(t *testing.T, db *testdb.DB, key txlock.Key, lock verb) {
		first, waiter := holder(t, db, key), unread(t, newPool(t, db, true))
		var grant txlock.Grant
		answered := db.Waiting(t, waiter.id, func() (err error) {
			grant, err = lock(waiter.Scope, t.Context(), key)
			return err
		})
		before := clockOf(t, db)
		wants(t, "Rollback", first.tx.Rollback(), nil)
		wants(t, "who has waited", <-answered, nil)
		testdb.ErrorIf(t, grant.Token() < before, "the token %d is %d us older than the grant", grant.Token(), before-grant.Token())
		waiter.commit(t)
	})
}

// TestTokenAheadOfTheClock: the token of a row which is ahead of the clock rises all the same.
func TestTokenAheadOfTheClock(t *testing.T) {
	onExclusives(t, withTries(), func(t *testing.T, db *testdb.DB, key txlock.Key, lock verb) {
		ahead := clockOf(t, db) + 3600e6
		if key.Hashed() {
			exec(t, db.Admin(), "UPDATE lockstep_centers SET token = ? WHERE slot = ?", ahead, key.Slot())
		} else {
			exec(t, db.Admin(), "REPLACE INTO lockstep_locks VALUES (?, ?, '-', 0, 0)", key.String(), ahead)
		}
		for _, guarded := range []bool{true, true, false} {
			s := unread(t, newPool(t, db, guarded))
			grant, err := lock(s.Scope, t.Context(), key)
			wants(t, "Lock", err, nil)
			testdb.ErrorIf(t, grant.Token() <= ahead, "token %d after %d", grant.Token(), ahead)
			ahead = grant.Token()
			s.commit(t)
		}
	})
}

// TestTokenAfterASharedLock: an exclusive lock behind a shared one that was undone has a token of its own.
func TestTokenAfterASharedLock(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, name := range []string{"Lock", "TryLock", "LockAny", "LockAll of one", "CompareAndBump"} {
			for _, key := range []txlock.Key{named(), hashed()} {
				t.Run(fmt.Sprintf("%s/hashed=%t", name, key.Hashed()), func(t *testing.T) {
					before := committed(t, db, key)
					s := unread(t, newPool(t, db, true))
					exec(t, s.tx, "SAVEPOINT before_lock")
					if shared, err := s.RLock(t.Context(), key); err != nil || shared.Token() != before.Token() {
						t.Fatalf("RLock: token %d after %d, %v", shared.Token(), before.Token(), err)
					}
					exec(t, s.tx, "ROLLBACK TO SAVEPOINT before_lock")
					grant, err := verbs[name](s.Scope, t.Context(), key)
					testdb.ErrorIf(t, err != nil || grant.Token() <= before.Token() || grant.Shared(),
						"%s: %+v after token %d, %v", name, grant, before.Token(), err)
				})
			}
		}
	})
}

// TestTokenOfALockThatStays: a lock that may be gone for all that the guard knows is given again with its token.
func TestTokenOfALockThatStays(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for name, lock := range withTries() {
			for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead} {
				for kind, key := range map[string]txlock.Key{"fresh": apart(t, db), "known": named(), "hashed": hashed()} {
					t.Run(fmt.Sprintf("%s/%v/%s", name, level, kind), func(t *testing.T) {
						t.Parallel()
						var version uint64
						if kind != "fresh" {
							version = committed(t, db, key).Token()
						}
						s := begin(t, newPool(t, db, true, func(c *mysql.Config) { c.MultiStatements = true }), &sql.TxOptions{Isolation: level})
						exec(t, s.tx, "SAVEPOINT before_lock")
						wants(t, "CompareAndBump", s.CompareAndBump(t.Context(), key, version), nil)
						before, _ := s.Held(key)
						exec(t, s.tx, "SAVEPOINT behind_lock; DO 0")
						_, certain := s.Held(key)
						testdb.FatalIf(t, certain || before.Token() <= version, "the lock has token %d, and is certain: %t", before.Token(), certain)
						again := lock
						switch name {
						case "LockAll": // several in one statement have new tokens
							again = verbs["LockAll of one"]
						case "CompareAndBump":
							again = func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
								err := s.CompareAndBump(ctx, key, version)
								grant, _ := s.Held(key)
								return grant, err
							}
						}
						grant, err := again(s.Scope, t.Context(), key)
						testdb.ErrorIf(t, err != nil || grant.Token() != before.Token(), "token %d after %d, %v", grant.Token(), before.Token(), err)
					})
				}
			}
		}
	})
}

// TestVersionsWaitForNobody reads the version of a key that another transaction holds, as the first that a transaction does, too.
func TestVersionsWaitForNobody(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, key := range []txlock.Key{named(), hashed()} {
			before := committed(t, db, key).Token()
			holder(t, db, key)
			for _, guarded := range []bool{true, false} {
				s := unread(t, newPool(t, db, guarded))
				version, err := s.Version(t.Context(), key)
				testdb.ErrorIf(t, err != nil || version != before, "hashed=%t, guarded=%t: Version: %d, %v, want %d", key.Hashed(), guarded, version, err, before)
			}
			version, err := txlock.ReadVersion(t.Context(), newPool(t, db, true), key)
			testdb.ErrorIf(t, err != nil || version != before, "hashed=%t: ReadVersion: %d, %v, want %d", key.Hashed(), version, err, before)
		}
	})
}

// TestNoContext: a call without a context is refused before anything is sent, and so is a version that no row has.
func TestNoContext(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			pool := newPool(t, db, guarded)
			s := begin(t, pool, nil)
			var none context.Context
			for verb, call := range map[string]func() error{
				"Lock":           func() error { return testdb.Err(s.Lock(none, named())) },
				"TryRLock":       func() error { return testdb.Err(s.TryRLock(none, named())) },
				"LockAll":        func() error { return testdb.Err(s.LockAll(none, named(), named())) },
				"LockAny":        func() error { return testdb.Err(s.LockAny(none, named())) },
				"Once":           func() error { return testdb.Err(s.Once(none, named())) },
				"Version":        func() error { return testdb.Err(s.Version(none, named())) },
				"CompareAndBump": func() error { return s.CompareAndBump(none, named(), 1) },
				"Verify":         func() error { return s.Verify(none) },
			} {
				wants(t, verb, call(), txlock.ErrInvalidOption)
			}
			s.commit(t)
			s = inTx(t, pool, txlock.NothingRead())
			wants(t, "the largest version", s.CompareAndBump(t.Context(), named(), math.MaxUint64), txlock.ErrConflict) // its first statement
			s.commit(t)
		}
	})
}

// TestSharedKeys demands that only calls which take several keys take a marked one.
func TestSharedKeys(t *testing.T) {
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		pool := newPool(t, db, true)
		key := named()
		marked := txlock.Shared(key)
		testdb.ErrorIf(t, marked == key || txlock.Shared(marked) != marked || marked.String() != key.String(), "marked: %#v of %#v", marked, key)
		s := begin(t, pool, nil)
		wants(t, "Validate", marked.Validate(), txlock.ErrInvalidKey)
		wants(t, "Lock", testdb.Err(s.Lock(t.Context(), marked)), txlock.ErrInvalidKey)
		wants(t, "TryLock", testdb.Err(s.TryLock(t.Context(), marked)), txlock.ErrInvalidKey)
		wants(t, "RLock", testdb.Err(s.RLock(t.Context(), marked)), txlock.ErrInvalidKey)
		wants(t, "LockAny", testdb.Err(s.LockAny(t.Context(), key, marked)), txlock.ErrInvalidKey)
		wants(t, "Once", testdb.Err(s.Once(t.Context(), marked)), txlock.ErrInvalidKey)
		wants(t, "Version", testdb.Err(s.Version(t.Context(), marked)), txlock.ErrInvalidKey)
		wants(t, "Ensure", txlock.Ensure(t.Context(), pool, marked), txlock.ErrInvalidKey)
		wants(t, "LockAll of a marked zero key", testdb.Err(s.LockAll(t.Context(), txlock.Shared(txlock.Key{}))), txlock.ErrInvalidKey)
		segments := txlock.Segments(marked, 3)
		grants, err := s.LockAll(t.Context(), append(segments, key)...)
		wants(t, "LockAll of shared segments", err, nil)
		for i, grant := range grants {
			testdb.Equal(t, "it is shared", grant.Shared(), i < 3)
		}
		wants(t, "Commit", s.tx.Commit(), nil)
	})
}

// TestUpgradeAfterTheEnd: who has shared in a transaction that has ended is told of the end, and not of an upgrade.
func TestUpgradeAfterTheEnd(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			for _, end := range []string{"COMMIT", "ROLLBACK"} {
				s, key := begin(t, newPool(t, db, guarded), nil), named()
				wants(t, "RLock", testdb.Err(s.RLock(t.Context(), key)), nil)
				_ = testdb.Err(s.tx.ExecContext(t.Context(), end)) // a guarded pool says what it does
				for name, err := range map[string]error{"Lock": testdb.Err(s.Lock(t.Context(), key)), "LockAll": testdb.Err(s.LockAll(t.Context(), named(), key))} {
					testdb.ErrorIf(t, !errors.Is(err, txlock.ErrTxDoomed) || errors.Is(err, txlock.ErrUpgrade),
						"%s after %s (guarded=%t): %v", name, end, guarded, err)
				}
			}
		}
	})
}

// TestSystemVersioning: locks hold with rising tokens WITH SYSTEM VERSIONING, where MariaDB counts other rows as affected.
func TestSystemVersioning(t *testing.T) {
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).OpenLeases(t)
		if engine == testdb.MariaDB {
			db.Exec(t, "ALTER TABLE lockstep_locks ADD SYSTEM VERSIONING")
		}
		pool := db.Connect(t)
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead} {
			for known := range 5 {
				var keys []txlock.Key
				for i := range 4 {
					keys = append(keys, txlock.Named(fmt.Sprintf("versioned:%d:%d:%d", level, known, i)))
				}
				first := lockAllRead(t, pool, level, keys[:known])
				second := lockAllRead(t, pool, level, keys)
				third := lockAllRead(t, pool, level, keys)
				for i := range keys {
					testdb.ErrorIf(t, second[i] == 0 || third[i] <= second[i] || i < known && second[i] <= first[i],
						"%v, %d known: the tokens of %d are %v, %v, %v", level, known, i, first, second, third)
				}
			}
		}
	})
}

// lockAllRead takes locks in a transaction that has read, and returns their tokens.
func lockAllRead(t *testing.T, pool *sql.DB, level sql.IsolationLevel, keys []txlock.Key) (tokens []uint64) {
	t.Helper()
	if len(keys) == 0 {
		return nil
	}
	tx := testdb.Got(pool.BeginTx(t.Context(), &sql.TxOptions{Isolation: level}))(t)
	defer func() { _ = tx.Rollback() }()
	number(t, tx, "SELECT COUNT(*) FROM lockstep_once")
	scope := testdb.Got(txlock.Join(t.Context(), tx))(t)
	grants := testdb.Got(scope.LockAll(context.WithoutCancel(t.Context()), slices.Clone(keys)...))(t)
	for _, g := range grants {
		tokens = append(tokens, g.Token())
	}
	noError(t, tx.Commit())
	return tokens
}
