package locksqlc_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestContextEndsInFunction: if the context ends while the function runs, database/sql rolls the
// transaction back, whether the function heeds that or not, and the error is the context's.
func TestContextEndsInFunction(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		key, table := uniqueKey(t, "ends"), numbers(t, db)
		for name, run := range map[string]func(ctx context.Context, fn func(tx *sql.Tx) error) error{
			"Run":         func(ctx context.Context, fn func(tx *sql.Tx) error) error { return running["Run"](ctx, pool, key, fn) },
			"Run, no key": func(ctx context.Context, fn func(tx *sql.Tx) error) error { return locksqlc.Run(ctx, pool, nil, fn) },
			"Optimistic": func(ctx context.Context, fn func(tx *sql.Tx) error) error {
				return locksqlc.Optimistic(ctx, pool, key, fn)
			},
			"Once": func(ctx context.Context, fn func(tx *sql.Tx) error) error {
				return second(locksqlc.Once(ctx, pool, key, fn))
			},
		} {
			for i := range 4 {
				var scope *txlock.Scope
				ctx, cancel := context.WithCancel(t.Context())
				err := run(ctx, func(tx *sql.Tx) error {
					scope = join(t, tx)
					_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET v = 1")
					cancel()
					if i%2 == 0 {
						return ctx.Err()
					}
					for err == nil { // until database/sql has rolled back
						_, err = tx.ExecContext(context.Background(), "DO 0")
					}
					return nil
				})
				isError(t, name, err, context.Canceled)
				idle(t, pool)
				if guarded {
					wantNoTransaction(t, scope, key)
				}
				wantFree(t, db, key)
			}
			wantCount(t, pool, 0, "SELECT v FROM "+table)
		}
	})
}
