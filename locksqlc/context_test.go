package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestContextEndsInFunction: if the context ends while the function runs, database/sql rolls the
// transaction back, and the error is the context's.
func TestContextEndsInFunction(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			pool, key := newPool(t, db.Config(), guarded), uniqueKey(t, "ends")
			for name, run := range map[string]func(ctx context.Context, fn func(tx *sql.Tx) error) error{
				"Run": func(ctx context.Context, fn func(tx *sql.Tx) error) error {
					return locksqlc.Run(ctx, pool, []txlock.Key{key}, fn)
				},
				"Run, no key": func(ctx context.Context, fn func(tx *sql.Tx) error) error { return locksqlc.Run(ctx, pool, nil, fn) },
				"Optimistic": func(ctx context.Context, fn func(tx *sql.Tx) error) error {
					return locksqlc.Optimistic(ctx, pool, key, fn)
				},
				"Once": func(ctx context.Context, fn func(tx *sql.Tx) error) error {
					_, err := locksqlc.Once(ctx, pool, key, fn)
					return err
				},
			} {
				ctx, cancel := context.WithCancel(t.Context())
				err := run(ctx, func(tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, "DO 0")
					cancel()
					for err == nil { // until database/sql has rolled back
						_, err = tx.ExecContext(context.Background(), "DO 0")
					}
					return nil
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s, guarded %t: %v", name, guarded, err)
				}
			}
		}
	})
}
