package txlock_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestSystemVersioning proves that locks hold, and have tokens that rise, in a table WITH
// SYSTEM VERSIONING, where MariaDB counts other rows as affected: also where LockAll makes some
// of the rows, with and without a snapshot.
func TestSystemVersioning(t *testing.T) {
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).OpenLeases(t)
		if engine == testdb.MariaDB {
			db.Exec(t, "ALTER TABLE lockstep_locks ADD SYSTEM VERSIONING")
		}
		pool := db.Connect(t)
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead} {
			for known := range 5 {
				var keys []txlock.Key
				for i := range 4 {
					keys = append(keys, txlock.Named(fmt.Sprintf("versioned:%d:%d:%d", level, known, i)))
				}
				first := lockAllRead(t, pool, level, keys[:known])
				second := lockAllRead(t, pool, level, keys)
				third := lockAllRead(t, pool, level, keys)
				for i := range keys {
					if second[i] == 0 || third[i] <= second[i] || i < known && second[i] <= first[i] {
						t.Errorf("%v, %d known: the tokens of %d are %v, %v, %v", level, known, i, first, second, third)
					}
				}
			}
		}
	})
}

// lockAllRead takes locks in a transaction that has read, and returns their tokens.
func lockAllRead(t *testing.T, pool *sql.DB, level sql.IsolationLevel, keys []txlock.Key) (tokens []uint64) {
	t.Helper()
	if len(keys) == 0 {
		return nil
	}
	tx, err := pool.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	noError(t, err)
	defer func() { _ = tx.Rollback() }()
	number(t, tx, "SELECT COUNT(*) FROM lockstep_once")
	scope, err := txlock.Join(t.Context(), tx)
	noError(t, err)
	grants, err := scope.LockAll(context.WithoutCancel(t.Context()), slices.Clone(keys)...)
	noError(t, err)
	for _, g := range grants {
		tokens = append(tokens, g.Token())
	}
	noError(t, tx.Commit())
	return tokens
}
