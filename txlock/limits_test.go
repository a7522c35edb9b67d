package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// bounded are the verbs that WaitAtMost limits. LockAll waits for the key behind another.
var bounded = []string{"Lock", "RLock", "LockAll", "CompareAndBump of 7"}

// limits are those that are small and large for a server.
var limits = map[bool][]time.Duration{
	false: {1, 499, 500, 501, time.Microsecond, time.Millisecond - 1, time.Millisecond, time.Millisecond + 1},
	true:  {math.MaxUint32*time.Millisecond + 1, 31536001 * time.Second, math.MaxInt64 - time.Second + 1, math.MaxInt64},
}

// onLimits runs a test for every bounded call and limit, on guarded and plain pools, for keys that are known and unknown.
func onLimits(t *testing.T, large bool, test func(t *testing.T, db *testdb.DB, pool *sql.DB, key txlock.Key, lock verb)) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for i, name := range bounded {
			for _, known := range []bool{false, true} {
				for _, guarded := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/known=%t/guarded=%t", name, known, guarded), func(t *testing.T) {
						t.Parallel()
						pool := newPool(t, db, guarded, func(c *mysql.Config) { c.InterpolateParams = known })
						for j, limit := range limits[large] {
							if testdb.Meet(i, known, guarded, j) {
								test(t, db, pool, withRow(t, db, known), verbs[name].within(limit))
							}
						}
					})
				}
			}
		}
	})
}

// withRow is a key whose row has version 7, which this process knows or not.
func withRow(t *testing.T, db *testdb.DB, known bool) txlock.Key {
	t.Helper()
	key := named()
	for _, k := range []txlock.Key{another(key), key} {
		if known {
			wants(t, "Ensure", txlock.Ensure(t.Context(), db.Admin(), k), nil)
		}
		exec(t, db.Admin(), "REPLACE INTO lockstep_locks VALUES (?, 7, '-', 0, 0)", k.String())
	}
	return key
}

// held is a key that another program holds, which commits when told to.
func held(t *testing.T, db *testdb.DB, key txlock.Key) *sql.Tx {
	t.Helper()
	tx := testdb.Begin(t, db.Admin())
	exec(t, tx, "UPDATE lockstep_locks SET owner = 'other' WHERE name = ?", key.String())
	return tx
}

// TestSmallLimitsEnd: no limit is none, and that it is for the wait: a lock that is free is granted.
func TestSmallLimitsEnd(t *testing.T) {
	onLimits(t, false, func(t *testing.T, db *testdb.DB, pool *sql.DB, key txlock.Key, lock verb) {
		other, s, delays, began := held(t, db, key), begin(t, pool, nil), testdb.Delays(t), time.Now()
		wants(t, "a lock that is held", testdb.Err(lock(s.Scope, t.Context(), key)), txlock.ErrWaitTimeout)
		if waited := time.Since(began); waited > 20*time.Second+delays() { // the server's own limit is 50 s
			t.Errorf("it has ended after %v", waited)
		}
		wants(t, "Verify", s.Verify(t.Context()), nil)
		for _, k := range []txlock.Key{key, another(key)} {
			_, holds := s.Held(k)
			testdb.Equal(t, "it is held after a call that failed", holds, false)
		}
		wants(t, "Rollback", other.Rollback(), nil)
		wants(t, "the same lock when it is free", testdb.Err(lock(s.Scope, t.Context(), key)), nil)
		s.commit(t)
	})
}

// TestLargeLimitsWait: the largest limits are waited for, and a token that the holder commits meanwhile makes nothing stale.
func TestLargeLimitsWait(t *testing.T) {
	onLimits(t, true, func(t *testing.T, db *testdb.DB, pool *sql.DB, key txlock.Key, lock verb) {
		other, s := held(t, db, key), unread(t, pool)
		exec(t, other, "UPDATE lockstep_locks SET token = token + 1 WHERE name = ?", key.String())
		answered := db.Waiting(t, s.id, func() error { return testdb.Err(lock(s.Scope, t.Context(), key)) })
		wants(t, "Commit", other.Commit(), nil)
		wants(t, "a lock that is free in time", <-answered, nil)
		s.commit(t)
	})
}

// unread is a transaction in which nothing was sent, on a pool of its own.
func unread(t *testing.T, pool *sql.DB) *session {
	t.Helper()
	pool.SetMaxOpenConns(1)
	id := testdb.ConnID(t, pool)
	s := inTx(t, pool, txlock.NothingRead())
	s.id = id
	return s
}

// TestLimitIsExact: a wait for a known key ends soon after its limit: the quickest of some.
func TestLimitIsExact(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		const limit = 50 * time.Millisecond
		for _, name := range bounded {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				key, s := withRow(t, db, true), begin(t, impatient(t, db, true), nil)
				held(t, db, key)
				quickest := time.Hour
				for try := 0; try < 10 && quickest > limit+800*time.Millisecond; try++ {
					began := time.Now()
					wants(t, "a lock that is held", testdb.Err(verbs[name].within(limit)(s.Scope, t.Context(), key)), txlock.ErrWaitTimeout)
					quickest = min(quickest, time.Since(began))
				}
				testdb.ErrorIf(t, quickest < limit || quickest > limit+800*time.Millisecond,
					"a limit of %v has ended after %v at the earliest", limit, quickest)
			})
		}
	})
}

// TestTryIsForFreeLocks: a try takes what is free and refuses what is not, on keys that are new, known or hashed.
func TestTryIsForFreeLocks(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for name, key := range map[string]txlock.Key{"fresh": apart(t, db), "unknown": withRow(t, db, false), "known": withRow(t, db, true), "hashed": hashed()} {
			for _, guarded := range []bool{false, true} {
				s := begin(t, newPool(t, db, guarded), nil)
				wants(t, "a try of a free key, "+name, testdb.Err(s.TryLock(t.Context(), key)), nil)
				for _, other := range []*session{begin(t, impatient(t, db, guarded), nil), unread(t, impatient(t, db, guarded))} {
					for _, try := range []func(context.Context, txlock.Key) (txlock.Grant, error){other.TryLock, other.TryRLock} {
						_, err := try(t.Context(), key)
						wants(t, "a try of a held key, "+name, err, txlock.ErrBusy)
						if server := new(mysql.MySQLError); db.Engine() == testdb.MySQL && name != "fresh" && errors.As(err, &server) && server.Number == 1205 {
							t.Errorf("a try of a key, %s, has waited: %v", name, err)
						}
					}
					wants(t, "Verify", other.Verify(t.Context()), nil)
					wants(t, "Rollback", other.tx.Rollback(), nil)
				}
				wants(t, "Rollback", s.tx.Rollback(), nil)
			}
		}
		for _, guarded := range []bool{false, true} {
			key := withRow(t, db, false)
			held(t, db, key)
			_, err := unread(t, impatient(t, db, guarded)).TryLock(t.Context(), key)
			wants(t, "a try of a key that only another program knows", err, txlock.ErrBusy)
			if server := new(mysql.MySQLError); db.Engine() == testdb.MySQL && errors.As(err, &server) && server.Number == 1205 {
				t.Errorf("a try of a key that only another program knows has waited: %v", err)
			}
		}
	})
}

// TestTriesAtSerializable tries a key whose row another has made and not committed: a plain read of it would wait.
func TestTriesAtSerializable(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := named()
		holder(t, db, key)
		for _, name := range []string{"TryLock", "TryRLock"} {
			s := begin(t, newPool(t, db, true), &sql.TxOptions{Isolation: sql.LevelSerializable})
			delays, began := testdb.Delays(t), time.Now()
			s.refuses(t, key, txlock.ErrBusy, name)
			if took := time.Since(began); took > 20*time.Second+delays() { // one on MySQL, and 50 for who waits
				t.Errorf("%s took %v", name, took)
			}
		}
	})
}

// TestLimitOfTheSession: the session's own limit ends a longer one, also where a key is waited for that nobody has ever committed.
func TestLimitOfTheSession(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			key := apart(t, db)
			holder(t, db, key)
			s := begin(t, impatient(t, db, guarded), nil)
			err := testdb.Err(s.WaitAtMost(time.Minute).Lock(limited(t, 20*time.Second), key))
			wants(t, "a wait of a minute where a second is the session's limit", err, txlock.ErrWaitTimeout)
			wants(t, "Verify", s.Verify(t.Context()), nil)
		}
	})
}

// TestLimitsAreNotLost: limits may end while the server begins the transaction in the same text: MariaDB would forget them.
func TestLimitsAreNotLost(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := apart(t, db)
		holder(t, db, key)
		pool := newPool(t, db, true, func(c *mysql.Config) { c.Params = map[string]string{"innodb_lock_wait_timeout": "3600"} })
		ctx := limited(t, 3*time.Minute)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for i := 0; i < 150 && !t.Failed(); i++ {
					wants(t, "a wait of two milliseconds at most", lockOnce(ctx, pool, func(s *txlock.Scope) error {
						return testdb.Err(s.WaitAtMost(rand.N(2*time.Millisecond)+1).Lock(ctx, key))
					}), txlock.ErrWaitTimeout)
				}
			})
		}
		all.Wait()
	})
}

// lockOnce locks in a transaction, and commits it.
func lockOnce(ctx context.Context, pool *sql.DB, lock func(s *txlock.Scope) error) error {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	s, err := txlock.Join(ctx, tx)
	if err == nil {
		err = lock(s)
	}
	return errors.Join(err, tx.Commit())
}

// TestNothingReadOnce: NothingRead is good for one lock, and not after a version was read.
func TestNothingReadOnce(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for name, first := range map[string]func(s *session) error{
			"Lock":    func(s *session) error { return testdb.Err(s.Lock(t.Context(), named())) },
			"Version": func(s *session) error { return testdb.Err(s.Version(t.Context(), named())) },
		} {
			key := named()
			committed(t, db, key)
			s := unread(t, newPool(t, db, false))
			wants(t, name, first(s), nil)
			number(t, s.tx, "SELECT COUNT(*) FROM lockstep_leases")
			committed(t, db, key)
			wants(t, "a lock after a read, behind "+name, testdb.Err(s.Lock(t.Context(), key)), txlock.ErrStaleSnapshot)
		}
	})
}

// TestTryFixesTheSnapshot: what is locked behind a try that has looked for a row is as new as its lock.
func TestTryFixesTheSnapshot(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			table, key := db.CreateTable(t, "fixed", "n INT NOT NULL"), named()
			s := unread(t, newPool(t, db, guarded))
			s.lock(t, named())
			wants(t, "TryLock", testdb.Err(s.TryLock(t.Context(), apart(t, db))), nil)
			other := begin(t, newPool(t, db, true), nil)
			other.lock(t, key)
			exec(t, other.tx, "INSERT INTO "+table+" VALUES (1)")
			other.commit(t)
			if _, err := s.Lock(t.Context(), key); err != nil {
				wants(t, "Lock", err, txlock.ErrStaleSnapshot)
				continue
			}
			testdb.Equal(t, "rows that are seen of what was done under the lock", number(t, s.tx, "SELECT COUNT(*) FROM "+table), 1)
		}
	})
}

// TestCallMayRead: what is locked after a CALL, which may have read, is as new as its lock.
func TestCallMayRead(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table, key := db.CreateTable(t, "called", "n INT NOT NULL"), named()
		db.CreateProcedure(t, "read_"+table, "BEGIN DECLARE n INT; SELECT COUNT(*) INTO n FROM "+table+"; END")
		committed(t, db, key)
		s := unread(t, newPool(t, db, true, func(c *mysql.Config) { c.User, c.Passwd = db.AdminConfig().User, db.AdminConfig().Passwd }))
		exec(t, s.tx, "CALL read_"+table+"()")
		committed(t, db, key)
		wants(t, "a lock after a CALL", testdb.Err(s.Lock(t.Context(), key)), txlock.ErrStaleSnapshot)
	})
}

// TestTryOfAGoneRow tries keys whose rows this process has seen, or made, and that are gone since: keys beside them are free.
func TestTryOfAGoneRow(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		for name, gone := range map[string]func(key txlock.Key) *session{
			"made first": func(key txlock.Key) *session {
				s := unread(t, newPool(t, db, true))
				s.lock(t, key)
				return s
			},
			"made second": func(key txlock.Key) *session {
				s := unread(t, newPool(t, db, true))
				s.lock(t, named())
				s.lock(t, key)
				return s
			},
			"made after a read": func(key txlock.Key) *session {
				s := begin(t, newPool(t, db, true), nil)
				s.lock(t, key)
				return s
			},
			"removed": func(key txlock.Key) *session {
				wants(t, "Ensure", txlock.Ensure(t.Context(), db.Admin(), key), nil)
				exec(t, db.Admin(), "TRUNCATE TABLE lockstep_locks") // DELETE leaves a mark for a while, which has no gap
				for _, beside := range []string{"/a", "/z"} {
					exec(t, db.Admin(), "INSERT INTO lockstep_locks VALUES (?, 0, '-', 0, 0)", strings.TrimSuffix(key.String(), "/m")+beside)
				}
				s := begin(t, newPool(t, db, true), nil)
				wants(t, "TryLock", testdb.Err(s.TryLock(t.Context(), key)), nil)
				return s
			},
		} {
			key := apart(t, db)
			wants(t, "Rollback", gone(key).tx.Rollback(), nil)
			s := unread(t, newPool(t, db, true))
			s.lock(t, named())
			wants(t, "TryLock", testdb.Err(s.TryLock(t.Context(), key)), nil)
			other := begin(t, newPool(t, db, true), nil)
			for _, beside := range []string{"/k", "/n"} {
				wants(t, name+": a key beside it", testdb.Err(other.Lock(t.Context(), txlock.Named(strings.TrimSuffix(key.String(), "/m")+beside))), nil)
			}
			wants(t, "Rollback", errors.Join(s.tx.Rollback(), other.tx.Rollback()), nil)
		}
	})
}

// TestWaitsAtSerializable: who waits at SERIALIZABLE is granted the lock in every way, and reads what is fresh.
func TestWaitsAtSerializable(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		refusing := func(cfg *mysql.Config) {
			if db.HasSnapshotIsolation(t) {
				cfg.Params = map[string]string{"innodb_snapshot_isolation": "ON"}
			}
		}
		asks := map[string]verb{
			"Lock": verbs["Lock"], "RLock": verbs["RLock"], "WaitAtMost": verbs["Lock"].within(time.Minute), "LockAll": verbs["LockAll"], "Version": verbs["Version"],
			"Once": func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
				if first, err := s.Once(ctx, key); err != nil || first {
					return txlock.Grant{}, fmt.Errorf("first is %t, %w", first, err)
				}
				return txlock.Grant{}, nil
			},
		}
		table := db.CreateTable(t, "serial", "id INT PRIMARY KEY, n INT NOT NULL")
		exec(t, db.Admin(), "INSERT INTO "+table+" VALUES (1, 0)")
		for _, guarded := range []bool{true, false} {
			pool := newPool(t, db, guarded, refusing)
			for way, ask := range asks {
				for _, key := range []txlock.Key{named(), hashed()} {
					if way == "Once" && key.Hashed() {
						continue // its keys are never hashed
					}
					t.Run(fmt.Sprintf("%s/guarded=%t/hashed=%t", way, guarded, key.Hashed()), func(t *testing.T) {
						if way != "Once" {
							committed(t, db, key)
						}
						first := begin(t, pool, nil)
						if way == "Once" {
							first.once(t, key, true)
						} else {
							first.lock(t, key)
						}
						next := begin(t, pool, &sql.TxOptions{Isolation: sql.LevelSerializable})
						granted := db.Waiting(t, next.id, func() error { return testdb.Err(ask(next.Scope, t.Context(), key)) })
						exec(t, first.tx, "UPDATE "+table+" SET n = n + 1")
						first.commit(t)
						wants(t, way, <-granted, nil)
						testdb.Equal(t, "what was read", number(t, next.tx, "SELECT n FROM "+table), number(t, db.Admin(), "SELECT n FROM "+table))
						next.commit(t)
					})
				}
			}
		}
	})
}

// asking is a context that calls a function once, when the label is asked for: between a call's look at the transaction and what it sends.
type asking struct {
	context.Context
	between func()
}

func (a *asking) Value(key any) any {
	if between := a.between; between != nil && fmt.Sprintf("%T", key) == "txlock.labelKey" {
		a.between = nil
		between()
	}
	return a.Context.Value(key)
}

// TestReadWhileLocking: a lock knows of a read that another goroutine sends right before it, and is refused as stale.
func TestReadWhileLocking(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "read", "n INT")
		for name, lock := range map[string]verb{
			"Lock": verbs["Lock"], "RLock": verbs["RLock"], "TryLock": verbs["TryLock"], "LockAll": verbs["LockAll"],
			"WaitAtMost": verbs["Lock"].within(time.Minute), "LockAll within a limit": verbs["LockAll"].within(time.Minute),
		} {
			for kind, key := range map[string]txlock.Key{"known": named(), "hashed": hashed()} {
				t.Run(name+"/"+kind, func(t *testing.T) {
					t.Parallel()
					committed(t, db, key)
					s := unread(t, newPool(t, db, true))
					ctx := &asking{Context: t.Context(), between: func() {
						number(t, s.tx, "SELECT COUNT(*) FROM "+table)
						committed(t, db, key)
					}}
					wants(t, name, testdb.Err(lock(s.Scope, ctx, key)), txlock.ErrStaleSnapshot)
					testdb.Equal(t, "somebody has read", ctx.between == nil, true)
				})
			}
		}
	})
}

// TestLockAllInOrderOfSlots: LockAll takes center rows in the order of their slots, whatever the names.
func TestLockAllInOrderOfSlots(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, limit := range []time.Duration{0, time.Minute} {
			for _, guarded := range []bool{false, true} {
				low, high := hashed(), hashed()
				for (low.Slot() < high.Slot()) == (low.String() < high.String()) {
					low, high = hashed(), hashed()
				}
				if low.Slot() > high.Slot() {
					low, high = high, low
				}
				for _, held := range []txlock.Key{low, high} {
					blocker, s := holder(t, db, held), unread(t, newPool(t, db, guarded))
					scope := s.Scope
					if limit > 0 {
						scope = s.WaitAtMost(limit)
					}
					answered := db.Waiting(t, s.id, func() error { return testdb.Err(scope.LockAll(t.Context(), high, low)) })
					other := begin(t, newPool(t, db, true), nil)
					if held == low {
						wants(t, "the higher slot behind one that is waited for", testdb.Err(other.TryLock(t.Context(), high)), nil)
					} else {
						wants(t, "the lower slot before one that is waited for", testdb.Err(other.TryLock(t.Context(), low)), txlock.ErrBusy)
					}
					wants(t, "Rollback", other.tx.Rollback(), nil)
					wants(t, "Rollback", blocker.tx.Rollback(), nil)
					wants(t, "LockAll", <-answered, nil)
					s.commit(t)
				}
			}
		}
	})
}
