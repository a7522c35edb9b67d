package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// saleKeys are records that are sold without a lock: the count of changed rows tells whether
// somebody else was faster.
var saleKeys = []string{ofSales + "a"}

const ofSales = "sale:"

// sell is a locked sale in two round trips, by LockWith and CommitWith.
func (w *worker) sell() outcome {
	if !w.guarded { // CommitWith needs it
		return w.lock()
	}
	name, rows := w.one(lockKeys), int64(1)
	if w.IntN(4) == 0 {
		rows = 2 // which it never changes
	}
	return w.transact(w.begin("sell", name), w.committing(), func(ctx context.Context, t *transaction) error {
		scope, err := locksqlc.Join(ctx, t.Tx)
		if err != nil {
			return err
		}
		reading := ctx
		if w.Without != "sale" {
			reading = scope.LockWith(ctx, keyOf(name))
		}
		value, err := t.value(reading, name)
		if err != nil {
			return err
		}
		grant, _ := scope.Held(keyOf(name))
		w.think(3 * time.Millisecond)
		err = t.sold(ctx, scope, rows, name, value+1, grant.Token(), "name = ?", name)
		switch {
		case rows == 1 && err == nil && w.IntN(4) == 0:
			return errOnPurpose
		case rows == 1:
			return err
		case errors.Is(err, txlock.ErrRows):
			return nil // the transaction goes on
		case err == nil:
			return errors.New("committed with a row, and two were asked for")
		}
		return err
	})
}

// sellUnlocked sells without a lock, and commits only if nobody has sold since it has read.
func (w *worker) sellUnlocked() outcome {
	if !w.guarded {
		return w.lock()
	}
	name, rows := w.one(saleKeys), int64(1)
	if w.Without == "rows" {
		rows = txlock.AnyRows
	}
	return w.transact(w.begin("sell without a lock", name), w.committing(), func(ctx context.Context, t *transaction) error {
		value, err := t.value(ctx, name)
		if err != nil {
			return err
		}
		w.think(3 * time.Millisecond)
		scope, err := locksqlc.Join(ctx, t.Tx)
		if err != nil {
			return err
		}
		return t.sold(ctx, scope, rows, name, value+1, 0, "name = ? AND value = ?", name, value)
	})
}

// sold writes a counter with COMMIT, where the condition is true.
func (t *transaction) sold(ctx context.Context, scope *txlock.Scope, rows int64, name string, value int64, token uint64, condition string, args ...any) error {
	t.wrote = append(t.wrote, name)
	if _, err := t.ExecContext(ctx, "INSERT INTO commits VALUES (?, ?, ?, ?)", t.id, name, value, token); err != nil {
		return err
	}
	_, err := t.ExecContext(scope.CommitWith(ctx, rows), "UPDATE counters SET value = ?, token = ? WHERE "+condition, append([]any{value, token}, args...)...)
	return err
}

// committing is the runner of transactions that commit by themselves. An error on purpose
// comes behind that, and changes nothing.
func (w *worker) committing() runner {
	run := w.begun(w.pool)
	return func(ctx context.Context, fn func(tx *sql.Tx) error) error {
		if err := run(ctx, fn); !errors.Is(err, errOnPurpose) {
			return err
		}
		return nil
	}
}
