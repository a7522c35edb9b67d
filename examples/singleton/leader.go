package main

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
)

// job is the key of the election.
var job = txlock.Named("singleton-job")

// lead is what the leader does: it plans one item after the other. Its context ends
// before anybody else leads. A process that was stopped for longer than the time to live
// may see that too late: then Guard refuses its transaction.
func (w *worker) lead(ctx context.Context, term *elect.Term) error {
	// What the leader before has committed: read under the new term.
	var position int64
	if err := w.db.QueryRowContext(ctx, "SELECT position FROM job WHERE id = 1").Scan(&position); err != nil {
		return err
	}
	if err := w.say(holds, term.Token(), position+1); err != nil {
		return err
	}
	for item := position + 1; item <= w.items; item++ {
		if err := w.plan(ctx, term, item); err != nil {
			return fmt.Errorf("plan item %d: %w", item, err)
		}
	}
	return w.say(ends, term.Token(), w.items)
}

// plan plans one item: the item and the new position are one transaction, which can be
// committed only while this process leads. So nobody else has planned it meanwhile.
func (w *worker) plan(ctx context.Context, term *elect.Term, item int64) error {
	return locksqlc.Run(ctx, w.db, nil, func(tx *sql.Tx) error {
		if err := w.say(doing, term.Token(), item); err != nil {
			return err
		}
		if err := takes(ctx, w.takes); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO plan (item, worker, token) VALUES (?, ?, ?)", item, w.name, term.Token())
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE job SET position = ? WHERE id = 1", item); err != nil {
			return err
		}
		return term.Guard(ctx, tx) // last, so that the row of the lease is locked shortly
	})
}

// takes is the work: it takes a while.
func takes(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
