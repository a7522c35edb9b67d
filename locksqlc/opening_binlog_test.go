package locksqlc_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// writing are the calls of a scope that write to the row of a key.
var writing = map[string]func(ctx context.Context, s *txlock.Scope, key txlock.Key) error{
	"Lock":    func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return second(s.Lock(ctx, key)) },
	"TryLock": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return second(s.TryLock(ctx, key)) },
	"WaitAtMost": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return second(s.WaitAtMost(time.Minute).Lock(ctx, key))
	},
	"LockAll": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return second(s.LockAll(ctx, key, besides(key, "b")))
	},
	"CompareAndBump": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return s.CompareAndBump(ctx, key, 0) },
	"Once":           func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return second(s.Once(ctx, key)) },
}

// running are the ways to run a transaction with a key.
var running = map[string]func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error{
	"Run": func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, pool, []txlock.Key{key}, fn)
	},
	"Optimistic": func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
		return locksqlc.Optimistic(ctx, pool, key, fn)
	},
}

// TestOpeningByStatements takes locks on servers that write statements to their binary
// logs. Under READ COMMITTED these refuse all writes, and so the locks (1665).
func TestOpeningByStatements(t *testing.T) {
	onEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine, testdb.Args("--log-bin=log", "--server-id=1", "--binlog-format=STATEMENT")).OpenNamed(t)
		table := db.CreateTable(t, "written", "id INT PRIMARY KEY AUTO_INCREMENT")
		pool := newPool(t, db.Config(), true)
		for name, ask := range writing {
			for read, query := range map[string]string{"": "", "after a SELECT": "SELECT COUNT(*) FROM " + table} {
				t.Run(name+" "+read, func(t *testing.T) {
					key := uniqueKey(t, "new")
					tx := begin(t, pool)
					if query != "" {
						count(t, tx, query)
					}
					check(t, ask(t.Context(), join(t, tx), key))
					exec(t, tx, "INSERT INTO "+table+" VALUES ()")
					check(t, tx.Commit())
					wantFree(t, db, key)
				})
			}
			t.Run(name+" at READ COMMITTED", func(t *testing.T) {
				conn := takeConn(t, pool)
				tx := begin(t, conn, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
				key := uniqueKey(t, "new")
				if err := ask(t.Context(), join(t, tx), key); number(err) != 1665 || txlock.Retryable(err) {
					t.Errorf("%v, want 1665", err)
				}
				wantCount(t, tx, 7, "SELECT 7")
				check(t, tx.Rollback())
				exec(t, conn, "SET TRANSACTION READ WRITE") // refused inside a transaction
				wantFree(t, db, key)
			})
		}
		for name, run := range running {
			t.Run(name, func(t *testing.T) {
				key, before := uniqueKey(t, "new"), count(t, db.Admin(), "SELECT COUNT(*) FROM "+table)
				for range 2 {
					check(t, run(t.Context(), pool, key, func(tx *sql.Tx) error {
						exec(t, tx, "INSERT INTO "+table+" VALUES ()")
						return nil
					}))
				}
				if n := count(t, db.Admin(), "SELECT COUNT(*) FROM "+table); n != before+2 {
					t.Errorf("%d rows, want two more than %d", n, before)
				}
				wantFree(t, db, key)
			})
		}
		t.Run("Do", func(t *testing.T) {
			check(t, locksqlc.Do(t.Context(), pool, uniqueKey(t, "done"), func(context.Context) error { return nil }))
		})
	})
}
