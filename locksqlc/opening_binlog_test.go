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

// TestOpeningByStatements takes locks on servers that write statements to their binary
// logs. Under READ COMMITTED these refuse all writes, and so the locks (1665).
func TestOpeningByStatements(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Dedicated(t, engine, testdb.Args("--log-bin=log", "--server-id=1", "--binlog-format=STATEMENT")).Open(t)
			table := db.CreateTable(t, "written", "id INT PRIMARY KEY AUTO_INCREMENT")
			pool := newPool(t, db.Config(), true)
			for name, ask := range map[string]func(ctx context.Context, s *txlock.Scope, key txlock.Key) error{
				"Lock": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
					_, err := s.Lock(ctx, key)
					return err
				},
				"TryLock": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
					_, err := s.TryLock(ctx, key)
					return err
				},
				"WaitAtMost": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
					_, err := s.WaitAtMost(time.Minute).Lock(ctx, key)
					return err
				},
				"LockAll": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
					_, err := s.LockAll(ctx, key, uniqueKey(t, "more"))
					return err
				},
				"CompareAndBump": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return s.CompareAndBump(ctx, key, 0) },
				"Once": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
					_, err := s.Once(ctx, key)
					return err
				},
			} {
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
					tx, err := conn.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
					check(t, err)
					key := uniqueKey(t, "new")
					if err := ask(t.Context(), join(t, tx), key); number(err) != 1665 || txlock.Retryable(err) {
						t.Errorf("%v, want 1665", err)
					}
					if n := count(t, tx, "SELECT 7"); n != 7 {
						t.Error("no read")
					}
					check(t, tx.Rollback())
					exec(t, conn, "SET TRANSACTION READ WRITE") // refused inside a transaction
					wantFree(t, db, key)
				})
			}
			for name, run := range map[string]func(key txlock.Key, fn func(tx *sql.Tx) error) error{
				"Run": func(key txlock.Key, fn func(tx *sql.Tx) error) error {
					return locksqlc.Run(t.Context(), pool, []txlock.Key{key}, fn)
				},
				"Optimistic": func(key txlock.Key, fn func(tx *sql.Tx) error) error {
					return locksqlc.Optimistic(t.Context(), pool, key, fn)
				},
			} {
				t.Run(name, func(t *testing.T) {
					key, before := uniqueKey(t, "new"), count(t, db.Admin(), "SELECT COUNT(*) FROM "+table)
					for range 2 {
						check(t, run(key, func(tx *sql.Tx) error {
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
}
