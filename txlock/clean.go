package txlock

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// cleanBatch is how many rows one transaction of Clean removes.
const cleanBatch = 500

// Clean removes the rows of named keys that were last locked longer ago than the
// given time, and returns how many. Rows that somebody holds stay, and so do
// those whose token is ahead of the server's clock, so that the token of a key
// never goes back. It works in small transactions of its own, waits for nobody,
// and what it has removed stays so when it fails. For sets of keys that grow
// without bound hashed families are better: they need no cleaning.
//
// It returns ErrInvalidOption for a time that is not positive, ErrSchema,
// ErrReadOnly, ErrDeadlock and the errors of the driver.
func Clean(ctx context.Context, db *sql.DB, olderThan time.Duration) (int, error) {
	if db == nil {
		return 0, fmt.Errorf("clean: the *sql.DB is nil")
	}
	if olderThan <= 0 {
		return 0, fmt.Errorf("%w: Clean(%v): the time must be positive", ErrInvalidOption, olderThan)
	}
	total := 0
	for {
		n, err := cleanSome(ctx, db, olderThan)
		if err != nil {
			return total, fault.Of("clean", err, guard.Server{})
		}
		total += n
		if n < cleanBatch {
			return total, nil
		}
	}
}

// cleanSome removes one batch. At READ COMMITTED its locks close no gap.
func cleanSome(ctx context.Context, db *sql.DB, olderThan time.Duration) (n int, err error) {
	err = rawsql.InTx(ctx, db, sql.TxOptions{Isolation: sql.LevelReadCommitted}, func(tx *sql.Tx) error {
		names, err := queries.IdleNamed(ctx, tx, gen.IdleNamedParams{IdleUs: olderThan.Microseconds(), Limit: cleanBatch})
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := queries.DeleteNamed(ctx, tx, name); err != nil {
				return err
			}
		}
		n = len(names)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}
