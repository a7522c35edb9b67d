package txlock_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

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

func TestEnsureByManyAtOnce(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, false)
		pool.SetMaxOpenConns(32)
		keys := make([]txlock.Key, 20)
		for i := range keys {
			keys[i] = named()
		}
		errs := make(chan error, 32)
		var wg sync.WaitGroup
		for range cap(errs) {
			mine := make([]txlock.Key, len(keys))
			for i, j := range mathrand.Perm(len(keys)) {
				mine[i] = keys[j]
			}
			wg.Go(func() { errs <- txlock.Ensure(t.Context(), pool, mine...) })
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			wants(t, "one of many", err, nil)
		}
		for _, key := range keys {
			if rowsOf(t, db, key) != 1 {
				t.Errorf("%v has no row", key)
			}
		}
	})
}

func TestEnsureOfManyKeys(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		prefix := "many" + rand.Text()
		ids := make([]int, 3000)
		for i := range ids {
			ids[i] = i + 1
		}
		keys := txlock.NewFamily[int](prefix).Keys(ids...)
		pool, lot := newPool(t, db, false), hashed()
		wants(t, "Ensure of half", txlock.Ensure(t.Context(), pool, keys[:1500]...), nil)
		wants(t, "Ensure of all", txlock.Ensure(t.Context(), pool, append(keys, named(), lot)...), nil)
		wants(t, "Ensure of a hashed key", txlock.Ensure(t.Context(), pool, lot), nil)
		if rowsOf(t, db, lot) != 0 {
			t.Error("a hashed key was given a row")
		}
		if n := number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks WHERE name LIKE '"+prefix+"%'"); n != 3000 {
			t.Errorf("%d rows", n)
		}
	})
}

func TestEnsureRefuses(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		good, pool := named(), newPool(t, db, false)
		for _, bad := range []txlock.Key{{}, txlock.Named(""), txlock.Named(strings.Repeat("k", 256)), txlock.Named("\xff"), txlock.NewFamily[int]("f").Key(0)} {
			wants(t, "Ensure", txlock.Ensure(t.Context(), pool, good, bad), txlock.ErrInvalidKey)
		}
		wants(t, "Ensure of nothing", txlock.Ensure(t.Context(), pool), txlock.ErrInvalidKey)
		if err := txlock.Ensure(t.Context(), nil, good); err == nil || !strings.Contains(err.Error(), "*sql.DB is nil") {
			t.Errorf("Ensure on nil: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wants(t, "Ensure after the end", txlock.Ensure(ended, pool, good), context.Canceled)
		if rowsOf(t, db, good) != 0 {
			t.Error("a call that was refused has made a row")
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
					db := testdb.Shared(t, engine).Open(t)
					db.Exec(t, "DROP TABLE lockstep_locks, lockstep_centers")
					pool = newPool(t, db, true)
				} else {
					pool = testdb.Fresh(t, engine).Admin()
				}
				wants(t, "Ensure", txlock.Ensure(t.Context(), pool, named()), txlock.ErrSchema)
				for _, key := range []txlock.Key{named(), hashed()} {
					_, err := txlock.Holders(t.Context(), pool, key)
					wants(t, "Holders", err, txlock.ErrSchema)
					s := begin(t, pool, nil)
					for _, verb := range []func(context.Context, txlock.Key) (txlock.Grant, error){s.Lock, s.TryLock, s.RLock, s.TryRLock, s.WaitAtMost(1e9).Lock} {
						wants(t, "a lock", second(verb(t.Context(), key)), txlock.ErrSchema)
					}
					_, err = s.LockAll(t.Context(), key, named())
					wants(t, "LockAll", err, txlock.ErrSchema)
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
	onCenters(t, func(t *testing.T, db *testdb.DB) {
		key := hashed()
		exec(t, db.Admin(), "DELETE FROM lockstep_centers WHERE slot = ?", key.Slot())
		for _, guarded := range []bool{false, true} {
			pool := newPool(t, db, guarded)
			for _, open := range []func() *session{func() *session { return unread(t, pool) }, func() *session { return begin(t, pool, nil) }} {
				s := open()
				s.lock(t, hashed())
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

// TestReadOnlyServer asks a replica, which takes no writes of the application's.
// TestReadOnlyServer needs a server of its own, and so does what comes before.
func TestReadOnlyServer(t *testing.T) {
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine).Open(t)
		if engine == testdb.MySQL {
			limitWhileUsersAreChanged(t, db)
		}
		old := named()
		before := committed(t, db, old)
		exec(t, db.Admin(), "INSERT INTO lockstep_locks VALUES ('long ago', 1, '-', 0, 1)")
		variable := map[testdb.Engine]string{testdb.MariaDB: "read_only", testdb.MySQL: "super_read_only"}[engine]
		db.Exec(t, "SET GLOBAL "+variable+" = ON")
		defer func() { db.Exec(t, "SET GLOBAL "+variable+" = OFF") }() // so that the database can be dropped

		for _, guarded := range []bool{false, true} {
			pool := newPool(t, db, guarded)
			wants(t, "Ensure", txlock.Ensure(t.Context(), pool, named()), txlock.ErrReadOnly)
			wants(t, "Ensure of what is there", txlock.Ensure(t.Context(), pool, old), nil)
			_, err := txlock.Purge(t.Context(), pool, 1)
			wants(t, "Clean", err, txlock.ErrReadOnly)
			_, err = txlock.Holders(t.Context(), pool, old)
			wants(t, "Holders", err, nil)
			s := begin(t, pool, nil)
			_, err = s.Lock(t.Context(), old)
			wants(t, "Lock", err, txlock.ErrReadOnly)
			_, err = s.LockAll(t.Context(), old, named())
			wants(t, "LockAll", err, txlock.ErrReadOnly)
			_, err = s.Lock(t.Context(), hashed())
			wants(t, "Lock of a hashed key", err, txlock.ErrReadOnly)
			_, err = s.Once(t.Context(), named())
			wants(t, "Once", err, txlock.ErrReadOnly)
			wants(t, "Verify: the transaction goes on", s.Verify(t.Context()), nil)
			grant, err := s.RLock(t.Context(), old)
			wants(t, "RLock", err, nil)
			if grant.Token() != before.Token() {
				t.Errorf("the shared grant has token %d, the last exclusive one %d", grant.Token(), before.Token())
			}
			s.commit(t)
		}
	})
}

// limitWhileUsersAreChanged: MySQL lets nobody look at privileges while a user is changed.
// When the limit of a SELECT is over by then, it says so by other numbers.
func limitWhileUsersAreChanged(t *testing.T, db *testdb.DB) {
	key := named()
	committed(t, db, key)
	holder(t, db, key) // of a free one the limit would not matter
	changing, cancel := context.WithCancel(t.Context())
	var changes sync.WaitGroup
	defer changes.Wait()
	defer cancel()
	for range 2 {
		changes.Go(func() {
			for changing.Err() == nil {
				if _, err := db.Admin().ExecContext(context.WithoutCancel(changing), "FLUSH PRIVILEGES"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	pools := []*sql.DB{impatient(t, db, true), impatient(t, db, false)}
	seen := make(map[uint16]int)
	for i, end := 0, time.Now().Add(time.Minute); seen[3547] == 0 || seen[1142] == 0; i++ {
		if time.Now().After(end) {
			t.Fatalf("the numbers of %d tries were %v, want 3547 and 1142", i, seen)
		}
		tx, err := pools[i%2].BeginTx(t.Context(), nil)
		noError(t, err)
		scope, err := txlock.Join(t.Context(), tx, txlock.NothingRead())
		noError(t, err)
		_, err = scope.WaitAtMost(time.Millisecond).Lock(t.Context(), key)
		if server := new(mysql.MySQLError); errors.As(err, &server) {
			seen[server.Number]++
		}
		if err != nil {
			wants(t, "WaitAtMost while users are changed", err, txlock.ErrWaitTimeout)
			wants(t, "Verify", scope.Verify(t.Context()), nil)
		}
		if err := tx.Commit(); err != nil {
			t.Fatalf("commit after %v: %v", err, seen)
		}
	}
	t.Logf("ended by the limit: %v", seen)
}

func TestReadOnlyTransaction(t *testing.T) {
	onCenters(t, func(t *testing.T, db *testdb.DB) {
		old := named()
		committed(t, db, old)
		lot := hashed()
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
