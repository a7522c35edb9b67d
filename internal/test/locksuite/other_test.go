//go:build tidb || vitess

package locksuite_test

import (
	"database/sql"
	"testing"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// locking begins a transaction, and returns its scope.
func locking(t *testing.T, pool *sql.DB, options *sql.TxOptions) (*sql.Tx, *txlock.Scope) {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	s, err := locksqlc.Join(t.Context(), tx)
	if err != nil {
		t.Fatal(err)
	}
	return tx, s
}
