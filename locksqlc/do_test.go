package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// holderOf returns the connection that holds a key.
func holderOf(t *testing.T, db *testdb.DB, key txlock.Key) int64 {
	t.Helper()
	all := testdb.Got(txlock.Holders(t.Context(), newPool(t, db.Config(), false), key))(t)
	testdb.FatalIf(t, len(all) != 1, "the holders of %v are %+v", key, all)
	return int64(all[0].Session)
}

// background calls Do in the background. It returns the context of fn as soon as fn runs; fn ends when the test tells it to.
func background(ctx context.Context, t *testing.T, pool *sql.DB, key txlock.Key) (working context.Context, end func(error) error) {
	t.Helper()
	started, result, done := make(chan context.Context), make(chan error, 1), make(chan error, 1)
	go func() {
		done <- locksqlc.Do(ctx, pool, key, func(ctx context.Context) error {
			started <- ctx
			return <-result
		})
	}()
	select {
	case working = <-started:
	case err := <-done:
		t.Fatalf("Do returned before it has called fn: %v", err)
	}
	var once sync.Once
	var err error
	end = func(why error) error {
		once.Do(func() {
			result <- why
			err = <-done
		})
		return err
	}
	t.Cleanup(func() { _ = end(nil) }) // where the test has failed
	return working, end
}

// noticed is how long a test waits until Do notices a loss, which takes it two seconds on an idle machine.
const noticed = time.Minute

// ends waits for the context's end and returns how long that took.
func ends(ctx context.Context, t *testing.T, since time.Time) time.Duration {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(noticed):
		t.Fatalf("the context of fn has not ended within %v", noticed)
	}
	return time.Since(since)
}

// TestDoLooksAtItsSocket: Do finds a closed connection before its next ping. The quickest of several tries counts.
func TestDoLooksAtItsSocket(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		quickest := time.Hour
		for try := 0; try < 5 && quickest > 500*time.Millisecond; try++ {
			key := uniqueKey(t, "do")
			working, end := background(t.Context(), t, pool, key)
			id := holderOf(t, db, key)
			db.Kill(t, id)
			db.WaitGone(t, id)
			quickest = min(quickest, ends(working, t, time.Now()))
			isError(t, "the cause", context.Cause(working), txlock.ErrLost)
			no := errors.New("no")
			err := end(no)
			testdb.ErrorIf(t, !errors.Is(err, txlock.ErrLost) || !errors.Is(err, no), "Do: %v, want ErrLost and the error of fn", err)
			idle(t, pool)
			wantFree(t, db, key)
		}
		testdb.ErrorIf(t, quickest > 500*time.Millisecond, "a closed socket is noticed after %v at the earliest", quickest)
	})
}

// TestDoNoticesLossAtTheEnd ends the connection when fn is about to return, before Do has looked at it: fn has worked without the lock.
func TestDoNoticesLossAtTheEnd(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		for range 5 {
			key := uniqueKey(t, "do")
			err := locksqlc.Do(t.Context(), pool, key, func(context.Context) error {
				id := holderOf(t, db, key)
				db.Kill(t, id)
				db.WaitGone(t, id)
				return nil
			})
			testdb.ErrorIf(t, !errors.Is(err, txlock.ErrLost) || strings.Count(err.Error(), txlock.ErrLost.Error()) != 1, "Do: %v, want ErrLost once", err)
			idle(t, pool)
		}
	})
}

// TestDoOutlivesItsContext ends the caller's context: the lock is kept until fn has returned.
func TestDoOutlivesItsContext(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		key, why := uniqueKey(t, "do"), errors.New("the shop closes")
		ctx, cancel := context.WithCancelCause(t.Context())
		working, end := background(ctx, t, pool, key)
		cancel(why)
		ends(working, t, time.Now())
		testdb.ErrorIf(t, !errors.Is(working.Err(), context.Canceled) || !errors.Is(context.Cause(working), why),
			"the context of fn ended with %v for %v", working.Err(), context.Cause(working))
		wantLocked(t, "while fn runs", db, key)
		err := end(working.Err())
		testdb.ErrorIf(t, !errors.Is(err, context.Canceled) || errors.Is(err, txlock.ErrLost), "Do: %v", err)
		idle(t, pool)
		wantFree(t, db, key)
	})
}

// TestDoCommitsItsToken: whoever locks later with an older snapshot is told that somebody has held the lock meanwhile.
func TestDoCommitsItsToken(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		table, key := numbers(t, db), uniqueKey(t, "do")
		late := begin(t, newPool(t, db.Config(), guarded))
		count(t, late, "SELECT v FROM "+table)
		no := errors.New("no")
		isError(t, "Do", locksqlc.Do(t.Context(), pool, key, func(context.Context) error { return no }), no)
		v, err := txlock.ReadVersion(t.Context(), pool, key)
		testdb.ErrorIf(t, v == 0 || err != nil, "its version is %d, %v", v, err)
		isError(t, "the lock under an older snapshot", testdb.Err(join(t, late).Lock(t.Context(), key)), txlock.ErrStaleSnapshot)
	})
}

// TestDoNoticesSilence: Do notices a network that is cut without a packet by its ping, and at the end.
func TestDoNoticesSilence(t *testing.T) {
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		for _, atTheEnd := range []bool{false, true} {
			t.Run(fmt.Sprintf("at the end=%t", atTheEnd), func(t *testing.T) {
				t.Parallel()
				silent := new(atomic.Bool)
				pool := newPool(t, db.Config(testdb.Dialled(t, func(conn *net.TCPConn) net.Conn {
					t.Cleanup(func() { _ = conn.Close() }) // the driver may have closed it
					return muted{conn, silent}
				})), guarded)
				working, end := background(t.Context(), t, pool, uniqueKey(t, "do"))
				silent.Store(true)
				if !atTheEnd {
					t.Logf("the context of fn ended %v after the last packet", ends(working, t, time.Now()))
					isError(t, "the cause", context.Cause(working), txlock.ErrLost)
				}
				began := time.Now()
				err := end(nil)
				testdb.ErrorIf(t, !errors.Is(err, txlock.ErrLost) || txlock.Retryable(err) || errors.Is(err, context.DeadlineExceeded),
					"Do: %v, want ErrLost, and no deadline that is not the caller's", err)
				took := time.Since(began)
				testdb.ErrorIf(t, took > noticed, "Do returned %v after fn", took)
				idle(t, pool)
			})
		}
	})
}

// muted passes nothing once it is silent, and nobody is told.
type muted struct {
	net.Conn
	silent *atomic.Bool
}

func (m muted) Read(p []byte) (n int, err error) {
	for {
		if n, err = m.Conn.Read(p); err != nil || !m.silent.Load() {
			return n, err
		}
	}
}

func (m muted) Write(p []byte) (int, error) {
	if m.silent.Load() {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

// raise adds one to the number of a row by a plain read and a write.
func raise(ctx context.Context, tx *sql.Tx, table string) error {
	var v int
	if err := tx.QueryRowContext(ctx, "SELECT v FROM "+table+" WHERE id = 1").Scan(&v); err != nil {
		return err
	}
	return testdb.Err(tx.ExecContext(ctx, "UPDATE "+table+" SET v = ? WHERE id = 1", v+1))
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
				testdb.ErrorIf(t, err != nil || runs != 3 || valueOf(t, db, table) != 1, "%v: %d runs, value %d: %v", level, runs, valueOf(t, db, table), err)
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

// TestOptimisticNeedsCommittedReads: Optimistic refuses READ UNCOMMITTED, and so does whatever reads a version on such a session.
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
			isError(t, "ReadVersion", testdb.Err(txlock.ReadVersion(t.Context(), pool, key)), txlock.ErrInvalidOption)
			isError(t, "Version", testdb.Err(scope.Version(t.Context(), key)), txlock.ErrInvalidOption)
		}
		check(t, tx.Rollback())
	})
}

// TestVersionNeedsAKnownLevel: Version refuses a transaction that may read what is not committed, however it was begun, and no other.
func TestVersionNeedsAKnownLevel(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := uniqueKey(t, "level")
		pool := newPool(t, db.AdminConfig(severalTexts), true)
		pool.SetMaxIdleConns(-1) // what a case has set stays with its connection
		check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }))
		want := testdb.Got(txlock.ReadVersion(t.Context(), pool, key))(t)
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

// TestOptimisticCancelledAtItsEnd: a context that ends when the comparison has succeeded doesn't hide the COMMIT, where that was one.
func TestOptimisticCancelledAtItsEnd(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table, cancel := db.CreateTable(t, "ended", "id INT PRIMARY KEY AUTO_INCREMENT"), context.CancelFunc(nil)
		pool, err := locksqlc.Open(db.DSN(), txlock.Observe(func(_ context.Context, e txlock.Event) {
			if e.Kind == txlock.Granted {
				cancel()
			}
		}))
		check(t, err)
		defer func() { check(t, pool.Close()) }()
		committed := 0
		for range 5 {
			var ctx context.Context
			ctx, cancel = context.WithCancel(t.Context())
			err := locksqlc.Optimistic(ctx, pool, uniqueKey(t, "ended"), func(tx *sql.Tx) error {
				return testdb.Err(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES ()"))
			})
			cancel()
			if err == nil {
				committed++
			}
			merged := db.Engine() == testdb.MariaDB || hasProcedures(db.Engine())
			testdb.ErrorIf(t, merged == (err != nil), "Optimistic: %v", err)
		}
		wantCount(t, db.Admin(), committed, "SELECT COUNT(*) FROM "+table)
	})
}

// BenchmarkOptimistic compares Optimistic with Run by 16 workers, with the share of function runs that were in vain.
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
