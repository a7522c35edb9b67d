package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// lot and its another are the hashed keys of takeAll.
var lot = hashed()

// onMySQL runs a test on a database of its own, if MySQL is among the servers. Of the center rows it has those of lot and its another.
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
				return txlock.Grant{}, testdb.Err(s.Once(ctx, key))
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
				all = append(all, testdb.Err(take(s.Scope, t.Context(), key)), s.tx.Commit())
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
	testdb.Equal(t, "LockWith has locked", held && grant.Token() > 1000, true)
	return errors.Join(err, testdb.Err(s.tx.ExecContext(s.CommitWith(t.Context(), txlock.AnyRows), "DELETE FROM lockstep_once WHERE name = ?", key.String())))
}

// TestWithoutProcedures: a guarded pool does without procedures that are missing, of another version or not allowed.
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
				testdb.Equal(t, "procedures that were called after one was missing", calls(t, db)-before, 0)
			})
		})
	}
}

// TestProceduresDroppedMeanwhile drops the procedures while transactions have called them, and while they go on.
func TestProceduresDroppedMeanwhile(t *testing.T) {
	onMySQL(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		wants(t, "locks", takeAll(t, pool), nil)
		testdb.ErrorIf(t, calls(t, db) == 0, "no procedure was called")
		s := begin(t, pool, nil)
		db.DropProcedures(t)
		key := named()
		first := s.lock(t, key)
		s.commit(t)
		next := begin(t, pool, nil)
		grant := next.lock(t, key)
		testdb.ErrorIf(t, grant.Token() <= first.Token(), "token %d after %d", grant.Token(), first.Token())
		next.commit(t)
		wants(t, "locks without", takeAll(t, pool), nil)
		procedures := testdb.Got(schema.Procedures())(t)
		for _, statement := range procedures {
			db.Exec(t, statement)
		}
		before := calls(t, db)
		wants(t, "locks of a new pool", takeAll(t, newPool(t, db, true)), nil)
		testdb.ErrorIf(t, calls(t, db) == before, "no procedure was called after Install")
	})
}

// TestTriesOfNewKeys: of sessions that try the same new keys at once none is rolled back, and no gap stays locked.
func TestTriesOfNewKeys(t *testing.T) {
	onMySQL(t, func(t *testing.T, db *testdb.DB) {
		pool, prefix := newPool(t, db, true), named().String()
		var granted [40]atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for i := range granted {
					err := lockOnce(t.Context(), pool, func(s *txlock.Scope) error {
						return testdb.Err(s.TryLock(t.Context(), txlock.Named(fmt.Sprint(prefix, i))))
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
			testdb.Equal(t, "the key was granted", granted[i].Load() > 0, true)
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

// TestInterruptedStatements: MariaDB answers OK, with no changed row, to an UPDATE or DELETE that KILL QUERY or its time limit has interrupted.
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
		noError(t, testdb.Err(locksqlc.Once(t.Context(), pool, named(), func(*sql.Tx) error { return nil }, txlock.Keep(time.Microsecond))))
		testdb.Equal(t, "how often the time of the key was prolonged", strings.Count(strings.Join(wire.Sent(), "\n"), prolong), 2)

		interrupted.Store("DELETE FROM lockstep_once")
		for want := range 2 {
			n := testdb.Got(txlock.PurgeOnce(t.Context(), pool))(t)
			testdb.Equal(t, "keys that PurgeOnce has deleted", n, want)
		}
	})
}

// once asks and must get this answer.
func (s *session) once(t *testing.T, key txlock.Key, want bool, options ...txlock.OnceOption) {
	t.Helper()
	first, err := s.Once(t.Context(), key, options...)
	testdb.FatalIf(t, err != nil || first != want, "Once(%v) = %t, %v, want %t", key, first, err, want)
}

// TestOnceOfAnOldSnapshot answers whatever the transaction has read before.
func TestOnceOfAnOldSnapshot(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			pool := newPool(t, db, guarded, func(cfg *mysql.Config) {
				if db.Engine() == testdb.MariaDB && db.HasSnapshotIsolation(t) {
					cfg.Params = map[string]string{"innodb_snapshot_isolation": "ON"}
				}
			})
			there, key := named(), named()
			before := begin(t, pool, nil)
			before.once(t, there, true)
			before.commit(t)
			s := begin(t, pool, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			number(t, s.tx, "SELECT COUNT(*) FROM lockstep_once")
			other := begin(t, pool, nil)
			other.once(t, key, true)
			other.once(t, there, false)
			other.commit(t)
			s.once(t, key, false)
			s.once(t, there, false)
			s.once(t, named(), true)
			wants(t, "Verify", s.Verify(t.Context()), nil)
			s.commit(t)
		}
	})
}

// TestOnceExpiresWhileOpen: who waits for a transaction that is open for longer than its key is kept isn't the first.
func TestOnceExpiresWhileOpen(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			pool, key := newPool(t, db, guarded), named()
			const keep = time.Second
			first, second := begin(t, pool, nil), begin(t, pool, nil)
			began := time.Now()
			first.once(t, key, true, txlock.Keep(keep))
			type answer struct {
				isFirst   bool
				asked, at time.Time
			}
			told := make(chan answer, 1)
			go func() {
				asked := time.Now()
				isFirst, err := second.Once(t.Context(), key)
				wants(t, "Once", err, nil)
				told <- answer{isFirst, asked, time.Now()}
			}()
			db.WaitForLockWait(t, second.id)
			time.Sleep(keep)
			ended := time.Now()
			first.commit(t)
			// A busy machine may let the time pass before the wait, and behind it.
			a := <-told
			testdb.ErrorIf(t, a.isFirst && a.asked.Sub(began)+a.at.Sub(ended) < keep, "two are the first")
			second.commit(t)

			key = named()
			isFirst, err := locksqlc.Once(t.Context(), pool, key, func(*sql.Tx) error {
				time.Sleep(keep + keep/10)
				ended = time.Now() // the row's time begins anew behind this
				return nil
			}, txlock.Keep(keep))
			testdb.FatalIf(t, !isFirst || err != nil, "Once = %t, %v", isFirst, err)
			if left := number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_once WHERE name = ? AND done_us > (UNIX_TIMESTAMP() - 30) * 1000000 AND keep_us = 1000000", key.String()); left != 1 && time.Since(ended) < keep { // another test may have swept it
				t.Error("the row is not as it should be")
			}
			again := begin(t, pool, nil)
			isFirst, err = again.Once(t.Context(), key)
			passed := time.Since(ended)
			testdb.ErrorIf(t, err != nil || isFirst && passed < keep, "Once after %v = %t, %v", passed, isFirst, err)
			again.commit(t)
		}
	})
}

// TestSweepOnce removes what has expired and nobody asks for, and waits for nobody.
func TestSweepOnce(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		const rows = "(SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
		fill := func(name string, done string) {
			exec(t, db.Admin(), "INSERT INTO lockstep_once SELECT CONCAT('"+name+"', a.n, b.n, c.n), '-', '-', "+done+", 1000000 FROM "+rows+" a, "+rows+" b, "+rows+" c")
		}
		const now = "UNIX_TIMESTAMP() * 1000000"
		fill("a", now+" - 2000000")
		fill("b", now+" + 3600000000") // a server's clock that was set back
		fill("c", now+" - 2000000")
		s := begin(t, pool, nil)
		s.once(t, txlock.Named("c500"), true)
		wantsSwept := func(want int) {
			t.Helper()
			n, err := txlock.PurgeOnce(t.Context(), pool)
			testdb.ErrorIf(t, n != want || err != nil, "PurgeOnce = %d, %v, want %d", n, err, want)
		}
		wantsSwept(1999)
		wants(t, "Rollback", s.tx.Rollback(), nil)
		wantsSwept(1)
		wantsSwept(0)
		testdb.Equal(t, "rows that are left", number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_once WHERE name LIKE 'b%'"), 1000)
		exec(t, db.Admin(), "DROP TABLE lockstep_once")
		wants(t, "PurgeOnce", testdb.Err(txlock.PurgeOnce(t.Context(), pool)), txlock.ErrSchema)
		lost := begin(t, pool, nil)
		wants(t, "Once", testdb.Err(lost.Once(t.Context(), named())), txlock.ErrSchema)
		wants(t, "Verify", lost.Verify(t.Context()), nil)
		read := begin(t, pool, &sql.TxOptions{ReadOnly: true})
		_, err := read.Once(t.Context(), named())
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrReadOnly) && !errors.Is(err, txlock.ErrSchema), "in a read-only transaction: %v", err)
	})
}

// TestOnceOfATransactionThatIsOver: it can't be committed, and what it has asked for is new to the next.
func TestOnceOfATransactionThatIsOver(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db, true), named()
		killed := begin(t, pool, nil)
		killed.once(t, key, true)
		db.Kill(t, killed.id)
		testdb.ErrorIf(t, killed.tx.Commit() == nil, "Commit of a session that was killed")
		s := begin(t, pool, nil)
		s.once(t, key, true)
		noError(t, testdb.Err(s.tx.Exec("COMMIT")))
		wants(t, "Once after COMMIT", testdb.Err(s.Once(t.Context(), named())), txlock.ErrTxDoomed)
		plain := begin(t, newPool(t, db, false), nil)
		exec(t, plain.tx, "COMMIT")
		wants(t, "Once after COMMIT on a plain pool", testdb.Err(plain.Once(t.Context(), named())), txlock.ErrTxDoomed)
		err := s.tx.Commit()
		wants(t, "Commit", err, txlock.ErrTxDoomed)
		testdb.ErrorIf(t, txlock.Retryable(err), "retryable: %v", err)
		read := begin(t, pool, &sql.TxOptions{ReadOnly: true})
		wants(t, "Once in a read-only transaction", testdb.Err(read.Once(t.Context(), named())), txlock.ErrReadOnly)
	})
}

// TestOnceKeptForEver: the longest time never ends, and times are rounded up to a microsecond. MariaDB's ORACLE mode has no operator %.
func TestOnceKeptForEver(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true, func(cfg *mysql.Config) {
			cfg.Params = map[testdb.Engine]map[string]string{testdb.MariaDB: {"sql_mode": "'ORACLE'"}}[db.Engine()]
		})
		for keep, us := range map[time.Duration]int64{
			math.MaxInt64: 9223372036854776, math.MaxInt64 - 1: 9223372036854776, math.MaxInt64 - 999: 9223372036854775, 24*time.Hour - 1: 86400000000,
		} {
			key := named()
			s := begin(t, pool, nil)
			s.once(t, key, true, txlock.Keep(keep))
			s.commit(t)
			s = begin(t, pool, nil)
			s.once(t, key, false, txlock.Keep(keep))
			noError(t, testdb.Err(s.tx.ExecContext(s.CommitWith(t.Context(), 0), "DELETE FROM lockstep_once WHERE name = ''"))) // what it was told is sealed before
			testdb.Equal(t, "how long it is kept", number(t, db.Admin(), "SELECT keep_us FROM lockstep_once WHERE name = ?", key.String()), us)
		}
	})
}
