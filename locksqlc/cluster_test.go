package locksqlc_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// TestRefusedOnClusters proves that calls which can't exclude on a cluster of several
// primaries are refused there, and that the transaction goes on. It needs no cluster:
// with wsrep_on = ON and no provider, a MariaDB works alone.
func TestRefusedOnClusters(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		if engine == testdb.MySQL {
			continue
		}
		db := testdb.Dedicated(t, engine, testdb.Args("--wsrep-on=ON", "--binlog-format=ROW")).OpenNamed(t)
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			t.Run(name, func(t *testing.T) {
				pool := locksuite.OpenSQL(guarded, locksuite.BeginTx)(t, db.Config()).DB()
				key := txlock.Named(t.Name())
				err := locksqlc.Do(t.Context(), pool, key, func(context.Context) error {
					t.Error("Do has called its function")
					return nil
				})
				if !errors.Is(err, schema.ErrMultiPrimary) || !strings.Contains(err.Error(), "use a lease") {
					t.Errorf("Do: %v", err)
				}
				tx := begin(t, pool)
				scope := join(t, tx)
				for verb, lock := range map[string]func(context.Context, txlock.Key) (txlock.Grant, error){
					"RLock": scope.RLock, "TryRLock": scope.TryRLock,
				} {
					if _, err := lock(t.Context(), key); !errors.Is(err, schema.ErrMultiPrimary) || !strings.Contains(err.Error(), "lock exclusively") {
						t.Errorf("%s: %v", verb, err)
					}
				}
				isError(t, "Lock after that", second(scope.Lock(t.Context(), key)), nil)
				if grant, err := scope.RLock(t.Context(), key); err != nil || grant.Shared() {
					t.Errorf("RLock of what is held exclusively: %+v, %v", grant, err)
				}
				check(t, tx.Commit())
			})
		}
	}
}
