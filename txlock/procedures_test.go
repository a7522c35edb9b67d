package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// lot and its another are the hashed keys of takeAll.
var lot = hashed()

// onMySQL runs a test on a database of its own, if MySQL is among the servers. Of the center rows it
// has those of lot and its another.
func onMySQL(t *testing.T, test func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	t.Parallel()
	if testdb.WithoutProcedures() {
		t.Skip("without procedures")
	}
	for _, engine := range testdb.Engines() {
		if engine != testdb.MariaDB {
			test(t, testdb.Shared(t, engine).OpenNamed(t, lot.Slot(), another(lot).Slot()))
		}
	}
}

// calls counts the CALLs of lockstep's procedures that the database has seen.
func calls(t *testing.T, db *testdb.DB) int64 {
	t.Helper()
	return number(t, db.Admin(), `SELECT COALESCE(SUM(count_star), 0) FROM performance_schema.events_statements_summary_by_program
		WHERE object_schema = DATABASE() AND object_type = 'PROCEDURE' AND object_name LIKE 'lockstep%'`)
}

// takeAll takes locks in all ways, each in a transaction of its own, and returns an error of one that wasn't granted.
func takeAll(t *testing.T, pool *sql.DB) error {
	t.Helper()
	var all []error
	key := named()
	for _, read := range []bool{false, true} {
		for _, take := range []verb{
			verbs["Lock"], verbs["TryLock"], verbs["Lock"].within(time.Minute), verbs["RLock"], verbs["TryRLock"], verbs["RLock"].within(time.Minute), verbs["LockAll"], verbs["CompareAndBump"],
			func(s *txlock.Scope, ctx context.Context, _ txlock.Key) (txlock.Grant, error) {
				return s.RLock(ctx, named())
			},
			func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
				return txlock.Grant{}, second(s.Once(ctx, key))
			},
			nil, // with statements of the program
		} {
			for _, key := range []txlock.Key{key, lot} {
				s := inTx(t, pool)
				if read {
					testdb.ConnID(t, s.tx)
				}
				if take == nil {
					all = append(all, sells(t, s, key))
					continue
				}
				all = append(all, second(take(s.Scope, t.Context(), key)), s.tx.Commit())
			}
		}
	}
	return errors.Join(all...)
}

// sells locks with a read, and commits with a write.
func sells(t *testing.T, s *session, key txlock.Key) error {
	t.Helper()
	n := int64(0)
	err := s.tx.QueryRowContext(s.LockWith(t.Context(), key), "SELECT COUNT(*) FROM lockstep_leases WHERE slot < ?", 7).Scan(&n)
	grant, held := s.Held(key)
	equal(t, "LockWith has locked", held && grant.Token() > 1000, true)
	return errors.Join(err, second(s.tx.ExecContext(s.CommitWith(t.Context(), txlock.AnyRows), "DELETE FROM lockstep_once WHERE name = ?", key.String())))
}

// TestWithoutProcedures proves that locks need no procedures: if they are missing, in whole
// or in part, are those of another version or not allowed, a guarded pool does without.
func TestWithoutProcedures(t *testing.T) {
	for name, breaks := range map[string]func(t *testing.T, db *testdb.DB){
		"all are missing": func(t *testing.T, db *testdb.DB) { db.DropProcedures(t) },
		"one is missing":  func(t *testing.T, db *testdb.DB) { db.DropProcedures(t, "lockstep_raise_1") },
		"other parameters": func(t *testing.T, db *testdb.DB) {
			db.DropProcedures(t, "lockstep_lock_1")
			db.Exec(t, "CREATE PROCEDURE lockstep_lock_1(n INT) SELECT n")
		},
		"not allowed": func(t *testing.T, db *testdb.DB) {
			for _, host := range []string{"%", "localhost"} {
				db.Exec(t, fmt.Sprintf("REVOKE EXECUTE ON `%s`.* FROM '%s'@'%s'", db.Name(), db.Config().User, host))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			onMySQL(t, func(t *testing.T, db *testdb.DB) {
				breaks(t, db)
				pool := newPool(t, db, true)
				wants(t, "locks", takeAll(t, pool), nil)
				before := calls(t, db)
				wants(t, "locks again", takeAll(t, pool), nil)
				equal(t, "procedures that were called after one was missing", calls(t, db)-before, 0)
			})
		})
	}
}

// TestProceduresDroppedMeanwhile drops the procedures while transactions have called them, and while they go on.
func TestProceduresDroppedMeanwhile(t *testing.T) {
	onMySQL(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		wants(t, "locks", takeAll(t, pool), nil)
		if calls(t, db) == 0 {
			t.Error("no procedure was called")
		}
		s := begin(t, pool, nil)
		db.DropProcedures(t)
		key := named()
		first := s.lock(t, key)
		s.commit(t)
		next := begin(t, pool, nil)
		if grant := next.lock(t, key); grant.Token() <= first.Token() {
			t.Errorf("token %d after %d", grant.Token(), first.Token())
		}
		next.commit(t)
		wants(t, "locks without", takeAll(t, pool), nil)
		procedures, err := schema.Procedures()
		noError(t, err)
		for _, statement := range procedures {
			db.Exec(t, statement)
		}
		before := calls(t, db)
		wants(t, "locks of a new pool", takeAll(t, newPool(t, db, true)), nil)
		if calls(t, db) == before {
			t.Error("no procedure was called after Install")
		}
	})
}

// TestTriesOfNewKeys lets sessions try the same keys, which nobody has locked before, at the same time: no gap stays
// locked, and nobody is rolled back.
func TestTriesOfNewKeys(t *testing.T) {
	onMySQL(t, func(t *testing.T, db *testdb.DB) {
		pool, prefix := newPool(t, db, true), named().String()
		var granted [40]atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for i := range granted {
					err := lockOnce(t.Context(), pool, func(s *txlock.Scope) error {
						return second(s.TryLock(t.Context(), txlock.Named(fmt.Sprint(prefix, i))))
					})
					if err == nil {
						granted[i].Add(1)
					} else if !errors.Is(err, txlock.ErrBusy) {
						t.Errorf("TryLock: %v", err)
					}
				}
			})
		}
		all.Wait()
		for i := range granted {
			equal(t, "the key was granted", granted[i].Load() > 0, true)
		}
	})
}

// TestRowThatAnotherPrimaryMakes: a row that can't be made before, as a cluster or a deadlock refuses it, is made by the lock.
func TestRowThatAnotherPrimaryMakes(t *testing.T) {
	onMySQL(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		for _, number := range []string{"3101", "1213"} {
			db.Exec(t, "CREATE TRIGGER refuses BEFORE INSERT ON lockstep_locks FOR EACH ROW BEGIN IF NEW.conn_id = 0 THEN SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = "+number+"; END IF; END")
			wants(t, number, locksqlc.Run(t.Context(), pool, []txlock.Key{named()}, func(*sql.Tx) error { return nil }), nil)
			db.Exec(t, "DROP TRIGGER refuses")
		}
	})
}

// TestInterruptedStatements: MariaDB answers OK, with no changed row, to an UPDATE or DELETE that
// KILL QUERY or its time limit has interrupted.
func TestInterruptedStatements(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		var interrupted atomic.Value // what the statement has that is interrupted next
		interrupted.Store("nothing")
		wire, mutate := testdb.Rewritten(t, func(text string) string {
			if strings.Contains(text, interrupted.Load().(string)) {
				interrupted.Store("nothing")
				text += " AND 1 = 0"
			}
			return text
		})
		pool := newPool(t, db, true, mutate)

		const prolong = "UPDATE lockstep_once SET done_us"
		interrupted.Store(prolong)
		noError(t, second(locksqlc.Once(t.Context(), pool, named(), func(*sql.Tx) error { return nil }, txlock.Keep(time.Microsecond))))
		equal(t, "how often the time of the key was prolonged", strings.Count(strings.Join(wire.Sent(), "\n"), prolong), 2)

		interrupted.Store("DELETE FROM lockstep_once")
		for want := range 2 {
			n, err := txlock.PurgeOnce(t.Context(), pool)
			noError(t, err)
			equal(t, "keys that PurgeOnce has deleted", n, want)
		}
	})
}
