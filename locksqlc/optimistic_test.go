package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// raise adds one to the number of a row by a plain read and a write.
func raise(ctx context.Context, tx *sql.Tx, table string) error {
	var v int
	if err := tx.QueryRowContext(ctx, "SELECT v FROM "+table+" WHERE id = 1").Scan(&v); err != nil {
		return err
	}
	return second(tx.ExecContext(ctx, "UPDATE "+table+" SET v = ? WHERE id = 1", v+1))
}

func valueOf(t *testing.T, db *testdb.DB, table string) (v int) {
	t.Helper()
	check(t, db.Admin().QueryRowContext(t.Context(), "SELECT v FROM "+table+" WHERE id = 1").Scan(&v))
	return v
}

func TestOptimisticCommitsAndRunsAgain(t *testing.T) {
	onOwnPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted} {
			for _, key := range []txlock.Key{uniqueKey(t, "optimistic"), hashed.Key(7)} {
				table, runs := numbers(t, db), 0
				err := locksqlc.Optimistic(t.Context(), pool, key, func(tx *sql.Tx) error {
					runs++
					wantFree(t, db, key) // it holds the key exclusively: a conflict
					if err := raise(t.Context(), tx, table); err != nil {
						return err
					}
					if runs > 2 {
						return nil
					}
					return locksqlc.Run(t.Context(), db.Admin(), []txlock.Key{key}, func(*sql.Tx) error { return nil })
				}, &sql.TxOptions{Isolation: level})
				// Every wantFree takes the lock in a transaction that it rolls back.
				if err != nil || runs != 3 || valueOf(t, db, table) != 1 {
					t.Errorf("%v: %d runs, value %d: %v", level, runs, valueOf(t, db, table), err)
				}
				idle(t, pool)
			}
		}
	})
}

// plainly runs one transaction, once.
func plainly(ctx context.Context, pool *sql.DB, options *sql.TxOptions, fn func(tx *sql.Tx, scope *txlock.Scope) error) error {
	tx, err := pool.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit, or on the way out with an error that says more
	scope, err := locksqlc.Join(ctx, tx)
	if err != nil {
		return err
	}
	if err := fn(tx, scope); err != nil {
		return err
	}
	if _, err := txlock.Internal(bridge.Pass{}).Confirm(ctx, scope); err != nil {
		return err
	}
	return tx.Commit()
}

// TestVersionTable proves that the recipe of the version table loses nothing.
func TestVersionTable(t *testing.T) {
	const workers, commits = 6, 5
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelReadCommitted} {
			table := numbers(t, db)
			versions := Versions{db.CreateTable(t, "versions", "name VARBINARY(100) NOT NULL, resource VARBINARY(100) NOT NULL, version BIGINT UNSIGNED NOT NULL, PRIMARY KEY (name, resource, version)")}
			raises := func(tx *sql.Tx, _ *txlock.Scope) error {
				version, err := versions.Version(t.Context(), tx, "number", "1")
				if err == nil {
					err = raise(t.Context(), tx, table)
				}
				if err != nil {
					return err
				}
				return versions.CompareAndBump(t.Context(), tx, "number", "1", version)
			}
			var conflicts atomic.Int64
			var all sync.WaitGroup
			for range workers {
				all.Go(func() {
					for done := 0; done < commits && !t.Failed(); {
						switch err := plainly(t.Context(), pool, &sql.TxOptions{Isolation: level}, raises); {
						case err == nil:
							done++
						case txlock.Retryable(err), errors.Is(err, txlock.ErrConflict):
							conflicts.Add(1)
						default:
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			if v := valueOf(t, db, table); v != workers*commits || conflicts.Load() == 0 {
				t.Errorf("%v: %d of %d, %d conflicts", level, v, workers*commits, conflicts.Load())
			}
		}
	})
}

// TestOptimisticNeedsCommittedReads proves that Optimistic refuses READ UNCOMMITTED, where a
// version may be that of somebody who holds the key and has not written yet, and that no version is
// read on a session at that level, of a guarded pool or another.
func TestOptimisticNeedsCommittedReads(t *testing.T) {
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		keys, plain := []txlock.Key{uniqueKey(t, "dirty"), hashedKeys.Key(t.Name())}, newPool(t, db.Config(), guarded)
		check(t, locksqlc.Run(t.Context(), newPool(t, db.Config(), true), keys, func(*sql.Tx) error { return nil }))
		err := locksqlc.Optimistic(t.Context(), plain, keys[0], func(*sql.Tx) error {
			t.Error("fn was called")
			return nil
		}, &sql.TxOptions{Isolation: sql.LevelReadUncommitted})
		says(t, "Optimistic", err, txlock.ErrInvalidOption, "use READ COMMITTED")
		idle(t, plain)
		pool := newPool(t, db.Config(func(cfg *mysql.Config) {
			cfg.Params = map[string]string{db.Engine().LevelVariable(): "'READ-UNCOMMITTED'"}
		}), guarded)
		check(t, locksqlc.Optimistic(t.Context(), pool, keys[0], func(*sql.Tx) error { return nil }, &sql.TxOptions{Isolation: sql.LevelReadCommitted}))
		tx, scope := joined(t, pool)
		for _, key := range keys {
			isError(t, "ReadVersion", second(txlock.ReadVersion(t.Context(), pool, key)), txlock.ErrInvalidOption)
			isError(t, "Version", second(scope.Version(t.Context(), key)), txlock.ErrInvalidOption)
		}
		check(t, tx.Rollback())
	})
}

// TestVersionNeedsAKnownLevel proves that Version refuses a transaction that may read what is not
// committed by a statement before it, however it was begun, and no other.
func TestVersionNeedsAKnownLevel(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := uniqueKey(t, "level")
		pool := newPool(t, db.AdminConfig(severalTexts), true)
		pool.SetMaxIdleConns(-1) // what a case has set stays with its connection
		check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }))
		want, err := txlock.ReadVersion(t.Context(), pool, key)
		check(t, err)
		holding(t, pool, key)
		db.CreateProcedure(t, "begins_level", "START TRANSACTION")
		level := db.Engine().LevelVariable()
		for before, refused := range map[string]bool{
			"SELECT 1":                   false,
			"SET @a = 1":                 false,
			"SET TRANSACTION READ WRITE": false,
			"CREATE TEMPORARY TABLE IF NOT EXISTS transactions (id INT)": false,
			"SET NAMES utf8mb4": false,
			"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ":                                                                                     false,
			"SET @@session." + level + " = 'READ-COMMITTED'":                                                                                              false,
			"SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED":                                                                                    true,
			"SET " + level + " = 'READ-COMMITTED'":                                                                                                        false,
			"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE":                                                                          false,
			"SET SESSION TRANSACTION READ WRITE, ISOLATION LEVEL READ UNCOMMITTED":                                                                        true,
			"set transaction isolation level READ  COMMITTED":                                                                                             false,
			"SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE":                                                                                  true,
			"SET TRANSACTION READ WRITE, ISOLATION LEVEL READ UNCOMMITTED":                                                                                true,
			"SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED|SET TRANSACTION ISOLATION LEVEL READ COMMITTED":                                     false,
			"SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED|SET TRANSACTION ISOLATION LEVEL READ COMMITTED|SELECT COUNT(*) FROM lockstep_locks": true,
			"SET LOCAL " + level + " = 'READ-UNCOMMITTED'":                                                                                                true,
			"SET " + level + " = 'READ-UNCOMMITTED'":                                                                                                      true,
			"SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED":                                                                                            true,
			"SET @@" + level + " = 'READ-UNCOMMITTED'":                                                                                                    true,
			"SET @@`" + level + "` = 'READ-UNCOMMITTED'":                                                                                                  true,
			"SET SESSION lock_wait_timeout = 5, @@" + level + " = 'READ-UNCOMMITTED'":                                                                     true,
			"SET /*!99999 SESSION */ @@" + level + " = 'READ-UNCOMMITTED'":                                                                                true,
			"SET @a = 1; SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED":                                                                                true,
		} {
			for begins, unseen := range map[string]bool{
				"": false, "BEGIN": false, "BEGIN|COMMIT AND CHAIN": false, "START TRANSACTION READ WRITE|ROLLBACK AND CHAIN": false,
				"/*!50000 BEGIN */": true, "SELECT 1; BEGIN": true, "CALL begins_level()": true,
			} {
				if unseen && refused {
					continue // for either reason
				}
				t.Run(before+"|"+begins, func(t *testing.T) {
					conn := takeConn(t, pool)
					for text := range strings.SplitSeq(before, "|") {
						exec(t, conn, text)
					}
					var scope *txlock.Scope
					if begins == "" {
						tx := begin(t, conn)
						defer func() { check(t, tx.Rollback()) }()
						scope = join(t, tx)
					} else {
						for text := range strings.SplitSeq(begins, "|") {
							exec(t, conn, text)
						}
						scope = joinConn(t, conn)
					}
					got, err := scope.Version(t.Context(), key)
					if refused := refused || unseen; refused && !errors.Is(err, txlock.ErrInvalidOption) || !refused && (err != nil || got != want) {
						t.Errorf("version %d, %v; refused %t, committed %d", got, err, refused, want)
					}
				})
			}
		}
	})
}

// cancelling is an observer that ends a context when a lock was given.
type cancelling struct {
	cancel atomic.Pointer[context.CancelFunc]
}

func (c *cancelling) observe(_ context.Context, e txlock.Event) {
	if e.Kind == txlock.Granted {
		(*c.cancel.Load())()
	}
}

// TestOptimisticCancelledAtItsEnd ends the context when the comparison has succeeded. Where
// that was the COMMIT, the transaction is reported as committed.
func TestOptimisticCancelledAtItsEnd(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table, c := db.CreateTable(t, "ended", "id INT PRIMARY KEY AUTO_INCREMENT"), new(cancelling)
		pool, err := locksqlc.Open(db.DSN(), txlock.Observe(c.observe))
		check(t, err)
		defer func() { check(t, pool.Close()) }()
		committed := 0
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			c.cancel.Store(&cancel)
			err := locksqlc.Optimistic(ctx, pool, uniqueKey(t, "ended"), func(tx *sql.Tx) error {
				return second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES ()"))
			})
			if err == nil {
				committed++
			}
			if merged := db.Engine() == testdb.MariaDB || hasProcedures(db.Engine()); merged == (err != nil) {
				t.Errorf("Optimistic: %v", err)
			}
		}
		wantCount(t, db.Admin(), committed, "SELECT COUNT(*) FROM "+table)
	})
}

// BenchmarkOptimistic compares Optimistic with Run: each of 16 workers reads and writes a
// record in a transaction. Conflicts are the share of function runs that were in vain.
func BenchmarkOptimistic(b *testing.B) {
	const workers = 16
	for _, engine := range testdb.Engines() {
		for _, keys := range []int64{1, 1000} {
			db := testdb.Open(b, engine)
			table := db.CreateTable(b, "records", "id BIGINT PRIMARY KEY, v BIGINT NOT NULL")
			family := txlock.NewFamily[int64](table)
			for id := int64(1); id <= keys; id++ {
				db.Exec(b, fmt.Sprintf("INSERT INTO %s VALUES (%d, 0)", table, id))
			}
			pool := locksuite.OpenSQL(true, locksuite.BeginTx)(b, db.Config(interpolating)).DB()
			pool.SetMaxIdleConns(workers)
			ids := make([]int64, keys)
			for i := range ids {
				ids[i] = int64(i) + 1
			}
			check(b, txlock.Ensure(b.Context(), pool, family.Keys(ids...)...))
			for name, write := range running {
				b.Run(fmt.Sprintf("%s/keys=%d/%s", engine, keys, name), func(b *testing.B) {
					var begun, runs, givenUp atomic.Int64
					var wg sync.WaitGroup
					for range workers {
						wg.Go(func() {
							for begun.Add(1) <= int64(b.N) {
								id := rand.Int64N(keys) + 1
								err := write(b.Context(), pool, family.Key(id), func(tx *sql.Tx) error {
									runs.Add(1)
									var v int64
									if err := tx.QueryRowContext(b.Context(), fmt.Sprintf("SELECT v FROM %s WHERE id = %d", table, id)).Scan(&v); err != nil {
										return err
									}
									_, err := tx.ExecContext(b.Context(), fmt.Sprintf("UPDATE %s SET v = %d WHERE id = %d", table, v+1, id))
									return err
								})
								switch {
								case errors.Is(err, txlock.ErrConflict), errors.Is(err, txlock.ErrDeadlock):
									givenUp.Add(1)
								case err != nil:
									b.Error(err)
									return
								}
							}
						})
					}
					wg.Wait()
					committed := int64(b.N) - givenUp.Load()
					b.ReportMetric(float64(committed)/b.Elapsed().Seconds(), "tx/s")
					b.ReportMetric(100*float64(runs.Load()-committed)/float64(runs.Load()), "%conflicts")
					b.ReportMetric(100*float64(givenUp.Load())/float64(b.N), "%given-up")
				})
			}
		}
	}
}
