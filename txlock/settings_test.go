package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// TestServerSettings runs on a server whose settings no other test may have.
func TestServerSettings(t *testing.T) {
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine, testdb.Args("--innodb-rollback-on-timeout=ON")).OpenNamed(t)
		rollsBackOnTimeout(t, db)
		startsWithoutAutocommit(t, db)
		if engine == testdb.MySQL {
			limitWhileUsersAreChanged(t, db)
		}
		isReadOnly(t, db)
	})
}

// rollsBackOnTimeout: where a wait that ends rolls the transaction back, a try of a key
// that has a row leaves it alive, and who is told that nothing is free is told that it isn't.
func rollsBackOnTimeout(t *testing.T, db *testdb.DB) {
	t.Helper()
	fresh, known := apart(t, db), named()
	committed(t, db, known)
	for _, key := range []txlock.Key{fresh, known} {
		holder(t, db, key)
		s := begin(t, newPool(t, db, true), nil)
		_, err := s.LockAny(t.Context(), key)
		wants(t, "LockAny", err, txlock.ErrBusy)
		verify := s.Verify(t.Context())
		if key == known {
			wants(t, "Verify", verify, nil)
		}
		if errors.Is(verify, txlock.ErrTxDoomed) != errors.Is(err, txlock.ErrTxDoomed) {
			t.Errorf("LockAny: %v; Verify: %v", err, verify)
		}
	}
}

// startsWithoutAutocommit: the setting is found where it is that of init_connect, of which no client is
// told.
func startsWithoutAutocommit(t *testing.T, db *testdb.DB) {
	t.Helper()
	db.Exec(t, "SET GLOBAL init_connect = 'SET autocommit = 0'")
	defer db.Exec(t, "SET GLOBAL init_connect = ''")
	for _, guarded := range []bool{false, true} {
		pool := newPool(t, db, guarded)
		tx, err := pool.BeginTx(t.Context(), nil)
		noError(t, err)
		wants(t, "Join", second(txlock.Join(t.Context(), tx)), schema.ErrAutocommit)
		wants(t, "Rollback", tx.Rollback(), nil)
		wants(t, "Check", schema.Check(t.Context(), pool), schema.ErrAutocommit)
	}
}

// isReadOnly asks a replica, which takes no writes of the application's.
func isReadOnly(t *testing.T, db *testdb.DB) {
	t.Helper()
	old := named()
	before := committed(t, db, old)
	exec(t, db.Admin(), "INSERT INTO lockstep_locks VALUES ('long ago', 1, '-', 0, 1)")
	variable := map[testdb.Engine]string{testdb.MariaDB: "read_only", testdb.MySQL: "super_read_only"}[db.Engine()]
	db.Exec(t, "SET GLOBAL "+variable+" = ON")
	defer func() { db.Exec(t, "SET GLOBAL "+variable+" = OFF") }() // so that the database can be dropped

	for _, guarded := range []bool{false, true} {
		pool := newPool(t, db, guarded)
		wants(t, "Ensure", txlock.Ensure(t.Context(), pool, named()), txlock.ErrReadOnly)
		wants(t, "Ensure of what is there", txlock.Ensure(t.Context(), pool, old), nil)
		wants(t, "Purge", second(txlock.Purge(t.Context(), pool, 1)), txlock.ErrReadOnly)
		wants(t, "Holders", second(txlock.Holders(t.Context(), pool, old)), nil)
		s := begin(t, pool, nil)
		wants(t, "Lock", second(s.Lock(t.Context(), old)), txlock.ErrReadOnly)
		wants(t, "LockAll", second(s.LockAll(t.Context(), old, named())), txlock.ErrReadOnly)
		wants(t, "Lock of a hashed key", second(s.Lock(t.Context(), hashed())), txlock.ErrReadOnly)
		wants(t, "Once", second(s.Once(t.Context(), named())), txlock.ErrReadOnly)
		wants(t, "Verify: the transaction goes on", s.Verify(t.Context()), nil)
		grant, err := s.RLock(t.Context(), old)
		wants(t, "RLock", err, nil)
		if grant.Token() != before.Token() {
			t.Errorf("the shared grant has token %d, the last exclusive one %d", grant.Token(), before.Token())
		}
		s.commit(t)
	}
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
