package locksqlc_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestTryOfAKeyThatIsBeingMade tries keys whose first holder commits during the try, in
// transactions that hold another key. To look for the row fixes the snapshot of the
// transaction, so that a grant after that commit would come with old data.
func TestTryOfAKeyThatIsBeingMade(t *testing.T) {
	t.Parallel()
	ways := map[string]func(scope *txlock.Scope, key txlock.Key) (txlock.Grant, error){
		"TryLock":  func(s *txlock.Scope, key txlock.Key) (txlock.Grant, error) { return s.TryLock(t.Context(), key) },
		"TryRLock": func(s *txlock.Scope, key txlock.Key) (txlock.Grant, error) { return s.TryRLock(t.Context(), key) },
		"LockAny":  func(s *txlock.Scope, key txlock.Key) (txlock.Grant, error) { return s.LockAny(t.Context(), key) },
		"Lock in time": func(s *txlock.Scope, key txlock.Key) (txlock.Grant, error) {
			return s.WaitAtMost(time.Minute).Lock(t.Context(), key)
		},
		"RLock in time": func(s *txlock.Scope, key txlock.Key) (txlock.Grant, error) {
			return s.WaitAtMost(time.Minute).RLock(t.Context(), key)
		},
	}
	for _, engine := range testdb.Engines() {
		dbs := []*testdb.DB{testdb.Open(t, engine)}
		if engine == testdb.MySQL && !testdb.WithoutProcedures() {
			without := testdb.Shared(t, engine).OpenNamed(t)
			without.DropProcedures(t)
			dbs = append(dbs, without)
		}
		for _, db := range dbs {
			table := db.CreateTable(t, "making", "id INT PRIMARY KEY, n INT NOT NULL")
			db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0)")
			pool := newPool(t, db.Config(), true)
			for name, try := range ways {
				tryWhileMade(t, db, pool, table, name, try)
			}
		}
	}
}

// tryWhileMade tries a key once, and commits its first holder as soon as the try waits.
func tryWhileMade(t *testing.T, db *testdb.DB, pool *sql.DB, table, name string, try func(scope *txlock.Scope, key txlock.Key) (txlock.Grant, error)) {
	key := uniqueKey(t, "making")
	before := count(t, pool, "SELECT n FROM "+table+" WHERE id = 1")
	holding := begin(t, pool)
	lock(t, join(t, holding), key)
	exec(t, holding, "UPDATE "+table+" SET n = n + 1 WHERE id = 1")

	conn := takeConn(t, pool)
	id := testdb.ConnID(t, conn)
	tx := begin(t, conn)
	scope := join(t, tx)
	lock(t, scope, uniqueKey(t, "other")) // which reads nothing
	tried := make(chan error, 1)
	go func() { tried <- second(try(scope, key)) }()
	if !testdb.Await(time.Minute, func() bool {
		waits, err := db.WaitsForLock(t.Context(), id)
		return len(tried) > 0 || err != nil || waits
	}) {
		t.Fatalf("%s on %s: the try neither waits nor ends", name, db.Engine())
	}
	check(t, holding.Commit())
	if err := <-tried; err != nil {
		if !errors.Is(err, txlock.ErrBusy) && !errors.Is(err, txlock.ErrStaleSnapshot) {
			t.Errorf("%s on %s of a key that is being made: %v", name, db.Engine(), err)
		}
		return
	}
	if n := count(t, tx, "SELECT n FROM "+table+" WHERE id = 1"); n != before+1 {
		t.Errorf("%s on %s of a key that is being made is granted, and shows %d, not the %d that its first holder has committed", name, db.Engine(), n, before+1)
	}
	check(t, tx.Commit())
}
