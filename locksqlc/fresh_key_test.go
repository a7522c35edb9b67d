package locksqlc_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
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
			without := testdb.Shared(t, engine).Open(t)
			without.DropProcedures(t)
			dbs = append(dbs, without)
		}
		for _, db := range dbs {
			table := db.CreateTable(t, "making", "id INT PRIMARY KEY, n INT NOT NULL")
			db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0)")
			pool, err := locksqlc.Open(db.DSN())
			check(t, err)
			defer func() { check(t, pool.Close()) }()
			for name, try := range ways {
				tryWhileMade(t, db, pool, table, name, try)
			}
		}
	}
}

// tryWhileMade tries a key once, and commits its first holder as soon as the try waits.
func tryWhileMade(t *testing.T, db *testdb.DB, pool *sql.DB, table, name string, try func(scope *txlock.Scope, key txlock.Key) (txlock.Grant, error)) {
	key := uniqueKey(t, "making")
	var before int
	check(t, pool.QueryRowContext(t.Context(), "SELECT n FROM "+table+" WHERE id = 1").Scan(&before))
	holding, err := pool.BeginTx(t.Context(), nil)
	check(t, err)
	defer func() { _ = holding.Rollback() }()
	holder, err := locksqlc.Join(t.Context(), holding)
	check(t, err)
	_, err = holder.Lock(t.Context(), key)
	check(t, err)
	_, err = holding.ExecContext(t.Context(), "UPDATE "+table+" SET n = n + 1 WHERE id = 1")
	check(t, err)

	conn, err := pool.Conn(t.Context())
	check(t, err)
	defer func() { check(t, conn.Close()) }()
	id := testdb.ConnID(t, conn)
	tx, err := conn.BeginTx(t.Context(), nil)
	check(t, err)
	defer func() { _ = tx.Rollback() }()
	scope, err := locksqlc.Join(t.Context(), tx)
	check(t, err)
	_, err = scope.Lock(t.Context(), uniqueKey(t, "other")) // which reads nothing
	check(t, err)
	tried := make(chan error, 1)
	go func() {
		_, err := try(scope, key)
		tried <- err
	}()
	ended := false
	waits := testdb.Await(time.Minute, func() bool {
		select {
		case err = <-tried:
			ended = true
			return true
		default:
			waits, err := db.WaitsForLock(t.Context(), id)
			return err != nil || waits
		}
	})
	if !waits {
		t.Fatalf("%s on %s: the try neither waits nor ends", name, db.Engine())
	}
	check(t, holding.Commit())
	if !ended {
		err = <-tried
	}
	if err != nil {
		if !errors.Is(err, txlock.ErrBusy) && !errors.Is(err, txlock.ErrStaleSnapshot) {
			t.Errorf("%s on %s of a key that is being made: %v", name, db.Engine(), err)
		}
		return
	}
	var n int
	check(t, tx.QueryRowContext(t.Context(), "SELECT n FROM "+table+" WHERE id = 1").Scan(&n))
	if n != before+1 {
		t.Errorf("%s on %s of a key that is being made is granted, and shows %d, not the %d that its first holder has committed", name, db.Engine(), n, before+1)
	}
	check(t, tx.Commit())
}
