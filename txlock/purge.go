package txlock

import (
	"bytes"
	"cmp"
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
	return inBatches(ctx, db, "purge", func(db gen.DBTX, after []byte, most int32) ([][]byte, error) {
		return queries.IdleNamed(ctx, db, gen.IdleNamedParams{After: after, IdleUs: olderThan.Microseconds(), Limit: most})
	}, func(ctx context.Context, db gen.DBTX, name []byte) (bool, error) {
		return fault.Changed("DeleteNamed")(queries.DeleteNamed(ctx, db, name))
	})
}

// find locks rows that are to be removed, in the order of their names from after on, except
// those that somebody has locked.
type find func(db gen.DBTX, after []byte, most int32) ([][]byte, error)

// remove deletes a row, and reports whether it has: MariaDB may have interrupted the DELETE.
type remove func(ctx context.Context, db gen.DBTX, name []byte) (bool, error)

// inBatches removes the rows that are found, at most purgeBatch at a time, and returns how many.
// Each batch is a transaction at READ COMMITTED, where its locks close no gap.
func inBatches(ctx context.Context, db *sql.DB, verb string, find find, remove remove) (int, error) {
	facts, err := session.AskAll(ctx, db)
	if err = cmp.Or(err, facts.Unfit); err != nil {
		return 0, fault.Of(verb, err, session.Server{})
	}
	edit, most := rawsql.Big, int32(purgeBatch)
	if engine := rawsql.EngineOf(facts.Version); engine.Waits { // each row is locked by itself, until the last one is removed
		edit, most, remove = rawsql.Unlocked, purgeBatch/10, remove.afterLocking(find, engine)
	}
	total, after := 0, []byte{0}
	for {
		var names [][]byte
		removed := 0
		err := rawsql.InTx(ctx, db, sql.TxOptions{Isolation: sql.LevelReadCommitted}, func(tx *sql.Tx) (err error) {
			if names, err = find(rawsql.Editing(tx, edit), after, most); err == nil {
				removed, err = remove.all(ctx, tx, names)
			}
			return err
		})
		if err != nil {
			return total, fault.Of(verb, err, session.Server{})
		}
		if total += removed; len(names) < int(most) {
			return total, nil
		}
		after = names[len(names)-1]
	}
}

// all removes rows, and returns how many it has removed.
func (r remove) all(ctx context.Context, db gen.DBTX, names [][]byte) (removed int, err error) {
	for _, name := range names {
		gone, err := r(ctx, db, name)
		if err != nil {
			return removed, err
		}
		if gone {
			removed++
		}
	}
	return removed, nil
}

// afterLocking locks the row first, where that was only read, and removes it if nobody had it and it
// is still to be removed.
func (r remove) afterLocking(find find, engine rawsql.Engine) remove {
	return func(ctx context.Context, db gen.DBTX, name []byte) (bool, error) {
		names, err := find(rawsql.Editing(db, engine.Refusing), name, 1)
		if errors.Is(fault.Interpret(err).Sentinel, ErrBusy) {
			return false, nil
		}
		if err != nil || len(names) != 1 || !bytes.Equal(names[0], name) {
			return false, err
		}
		return r(ctx, db, name)
	}
}
