package txlock_test

import (
	"database/sql"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// once asks and must get this answer.
func (s *session) once(t *testing.T, key txlock.Key, want bool, options ...txlock.OnceOption) {
	t.Helper()
	first, err := s.Once(t.Context(), key, options...)
	if err != nil || first != want {
		t.Fatalf("Once(%v) = %t, %v, want %t", key, first, err, want)
	}
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

// TestOnceExpiresWhileOpen: who waits for a transaction that is open for longer than its
// key is kept isn't the first, and Run lets the time begin anew.
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
			if a := <-told; a.isFirst && a.asked.Sub(began)+a.at.Sub(ended) < keep {
				t.Error("two are the first")
			}
			second.commit(t)

			key = named()
			isFirst, err := locksqlc.Once(t.Context(), pool, key, func(*sql.Tx) error {
				time.Sleep(keep + keep/10)
				ended = time.Now() // the row's time begins anew behind this
				return nil
			}, txlock.Keep(keep))
			if !isFirst || err != nil {
				t.Fatalf("Once = %t, %v", isFirst, err)
			}
			if left := number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_once WHERE name = ? AND done_us > (UNIX_TIMESTAMP() - 30) * 1000000 AND keep_us = 1000000", key.String()); left != 1 && time.Since(ended) < keep { // another test may have swept it
				t.Error("the row is not as it should be")
			}
			again := begin(t, pool, nil)
			isFirst, err = again.Once(t.Context(), key)
			if passed := time.Since(ended); err != nil || isFirst && passed < keep {
				t.Errorf("Once after %v = %t, %v", passed, isFirst, err)
			}
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
			if n, err := txlock.PurgeOnce(t.Context(), pool); n != want || err != nil {
				t.Errorf("PurgeOnce = %d, %v, want %d", n, err, want)
			}
		}
		wantsSwept(1999)
		wants(t, "Rollback", s.tx.Rollback(), nil)
		wantsSwept(1)
		wantsSwept(0)
		equal(t, "rows that are left", number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_once WHERE name LIKE 'b%'"), 1000)
		exec(t, db.Admin(), "DROP TABLE lockstep_once")
		wants(t, "PurgeOnce", second(txlock.PurgeOnce(t.Context(), pool)), txlock.ErrSchema)
		lost := begin(t, pool, nil)
		wants(t, "Once", second(lost.Once(t.Context(), named())), txlock.ErrSchema)
		wants(t, "Verify", lost.Verify(t.Context()), nil)
		read := begin(t, pool, &sql.TxOptions{ReadOnly: true})
		_, err := read.Once(t.Context(), named())
		if !errors.Is(err, txlock.ErrReadOnly) && !errors.Is(err, txlock.ErrSchema) {
			t.Errorf("in a read-only transaction: %v", err)
		}
	})
}

// TestOnceOfATransactionThatIsOver: it can't be committed, and what it has asked for is new to the next.
func TestOnceOfATransactionThatIsOver(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db, true), named()
		killed := begin(t, pool, nil)
		killed.once(t, key, true)
		db.Kill(t, killed.id)
		if killed.tx.Commit() == nil {
			t.Error("Commit of a session that was killed")
		}
		s := begin(t, pool, nil)
		s.once(t, key, true)
		noError(t, second(s.tx.Exec("COMMIT")))
		wants(t, "Once after COMMIT", second(s.Once(t.Context(), named())), txlock.ErrTxDoomed)
		plain := begin(t, newPool(t, db, false), nil)
		exec(t, plain.tx, "COMMIT")
		wants(t, "Once after COMMIT on a plain pool", second(plain.Once(t.Context(), named())), txlock.ErrTxDoomed)
		err := s.tx.Commit()
		wants(t, "Commit", err, txlock.ErrTxDoomed)
		if txlock.Retryable(err) {
			t.Errorf("retryable: %v", err)
		}
		read := begin(t, pool, &sql.TxOptions{ReadOnly: true})
		wants(t, "Once in a read-only transaction", second(read.Once(t.Context(), named())), txlock.ErrReadOnly)
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
			noError(t, second(s.tx.ExecContext(s.CommitWith(t.Context(), 0), "DELETE FROM lockstep_once WHERE name = ''"))) // what it was told is sealed before
			equal(t, "how long it is kept", number(t, db.Admin(), "SELECT keep_us FROM lockstep_once WHERE name = ?", key.String()), us)
		}
	})
}
