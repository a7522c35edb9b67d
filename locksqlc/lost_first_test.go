package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestLostLocks proves that whichever packet of a transaction's first lock is lost with its
// connection, on its way or with its reply, the error says that the transaction is gone, and may
// be tried again; also that of what a pool asks its server once.
func TestLostLocks(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		ways := map[string]func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error{
			"LockWith": func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error {
				return tx.QueryRowContext(s.LockWith(ctx, key), "SELECT 1").Scan(new(int))
			},
			"LockWith a write": func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error {
				return second(tx.ExecContext(s.LockWith(ctx, key), "DELETE FROM lockstep_locks WHERE name = 'no such'"))
			},
		}
		for _, name := range []string{"Lock", "RLock", "TryLock", "Version", "LockAll"} {
			ways[name] = func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
				return verbs[name](ctx, s, key)
			}
		}
		for name, lock := range ways {
			for _, arrives := range []bool{false, true} {
				lost := true
				for at := 1; lost; at++ {
					sent := -1 << 20 // until the transaction has begun
					pool := newPool(t, db.Config(testdb.Losing(func(packet string) (bool, bool) {
						if !strings.Contains(packet, "DELETE FROM") { // the program's own
							sent++
						}
						return sent == at, arrives
					})), true)
					tx, s := joined(t, pool)
					sent = 0
					err := lock(t.Context(), tx, s, uniqueKey(t, fmt.Sprint(name, arrives, at)))
					if lost = sent >= at; lost && (!errors.Is(err, txlock.ErrTxDoomed) || !txlock.Retryable(err)) || !lost && err != nil {
						t.Errorf("%s, packet %d lost (arrives=%t): %v, to be tried again: %t", name, at, arrives, err, txlock.Retryable(err))
					}
					sent = -1 << 20 // the COMMIT isn't lost
					if err := tx.Commit(); lost && (!errors.Is(err, txlock.ErrTxDoomed) || !txlock.Retryable(err)) || !lost && err != nil {
						t.Errorf("Commit after %s, packet %d lost (arrives=%t): %v", name, at, arrives, err)
					}
				}
			}
		}
	})
}
