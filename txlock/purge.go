package txlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// purgeBatch is how many rows one transaction of Purge deletes.
const purgeBatch = 500

// Purge deletes the rows of named keys that were last locked longer ago than olderThan, and
// returns their number. It skips rows that are locked, and those whose token is ahead of the
// server's clock, so that the token of a key never decreases. It works in small transactions of
// its own and doesn't wait for locks; if it fails, what it has deleted stays deleted. For sets of
// keys that grow without bound use hashed families, which need no purge. If several transactions
// wait for a row while it is deleted, all but one of them get ErrDeadlock.
//
// Purge returns ErrInvalidOption for a time that is not positive, ErrSchema, ErrReadOnly,
// ErrDeadlock and the errors of the driver.
func Purge(ctx context.Context, db *sql.DB, olderThan time.Duration) (int, error) {
	if ctx == nil {
		return 0, errors.New("txlock: Purge needs a context, got nil")
	}
	if db == nil {
		return 0, fmt.Errorf("purge: the *sql.DB is nil")
	}
	if olderThan <= 0 {
		return 0, fmt.Errorf("%w: Purge(%v): the time must be positive", ErrInvalidOption, olderThan)
	}
	return inBatches(ctx, db, "purge", func(tx *sql.Tx, _ []byte) ([][]byte, error) {
		return queries.IdleNamed(ctx, rawsql.Scanning(tx), gen.IdleNamedParams{IdleUs: olderThan.Microseconds(), Limit: purgeBatch})
	}, func(ctx context.Context, db gen.DBTX, name []byte) (bool, error) {
		return fault.Changed("DeleteNamed")(queries.DeleteNamed(ctx, db, name))
	})
}

// inBatches removes the rows that find returns, at most purgeBatch at a time, and returns
// how many. It tells find the name of the last one. Each batch is a transaction at READ
// COMMITTED, where its locks close no gap.
func inBatches(ctx context.Context, db *sql.DB, verb string, find func(tx *sql.Tx, after []byte) ([][]byte, error), remove func(ctx context.Context, db gen.DBTX, name []byte) (bool, error)) (int, error) {
	if _, err := introduce(ctx, db); err != nil {
		return 0, fault.Of(verb, err, session.Server{})
	}
	total, after := 0, []byte{0}
	for {
		var names [][]byte
		removed := 0
		err := rawsql.InTx(ctx, db, sql.TxOptions{Isolation: sql.LevelReadCommitted}, func(tx *sql.Tx) (err error) {
			if names, err = find(tx, after); err != nil {
				return err
			}
			for _, name := range names {
				gone, err := remove(ctx, tx, name)
				if err != nil {
					return err
				}
				if gone { // else MariaDB has interrupted the DELETE
					removed++
				}
			}
			return nil
		})
		if err != nil {
			return total, fault.Of(verb, err, session.Server{})
		}
		if total += removed; len(names) < purgeBatch {
			return total, nil
		}
		after = names[len(names)-1]
	}
}
