package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
)

// tickKinds are the ticks that all of a burst ask for, one of which does the work.
func tickKinds() []kind {
	return []kind{
		{name: "job.Tick", every: often, burst: 2, run: ticked, expected: []error{job.ErrPast}},
		{name: "job.TickTx", every: often, burst: 2, run: tickedTx, expected: []error{job.ErrPast}},
	}
}

// jobKey is the key of a job, which is never another one.
func (o *op) jobKey() txlock.Key { return txlock.Named(o.kind) }

// instant is that of the burst, and never ahead of the server's clock.
func (o *op) instant() time.Time { return time.UnixMicro(o.burst).Add(-time.Second) }

func ticked(ctx context.Context, o *op) error {
	_, err := o.jobs.Tick(ctx, o.jobKey(), o.instant(), func(ctx context.Context, _ time.Time) error {
		o.again()
		return o.raise(ctx, o.plain)
	})
	return err
}

func tickedTx(ctx context.Context, o *op) error {
	_, err := o.jobs.TickTx(ctx, o.jobKey(), o.instant(), func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
		o.again()
		return o.raise(ctx, tx)
	})
	return err
}

// keepRunning runs what goes on in the background as users run it: two jobs, and the removal of
// rows that nobody uses, which is a job itself. The cleanup loops of the leases run by
// themselves.
func (c *client) keepRunning() {
	ctx := context.Background() // close ends it
	nothing := func(context.Context, time.Time) error { return nil }
	for name, run := range map[string]func(key txlock.Key) error{
		"background": func(key txlock.Key) error { return c.jobs.Run(ctx, key, job.Every(10*time.Second), nothing) },
		"background, in a transaction": func(key txlock.Key) error {
			return c.jobs.RunTx(ctx, key, job.Every(10*time.Second), func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
				_, err := tx.ExecContext(ctx, "UPDATE own SET value = value + 1 WHERE id = ?", c.number)
				return err
			})
		},
		"clean-up": func(key txlock.Key) error { return c.jobs.Run(ctx, key, job.Every(cleanings), c.cleanUp) },
	} {
		c.running.Go(func() {
			o := &op{client: c, kind: name, began: time.Now()}
			if err := run(txlock.Named("soak " + name)); err != nil {
				c.tell(name, o, fmt.Errorf("a job has ended: %w", err))
			}
		})
	}
}

// cleanUp removes the rows of keys that nobody uses.
func (c *client) cleanUp(ctx context.Context, _ time.Time) error {
	o := &op{client: c, began: time.Now()}
	_, locks := txlock.Purge(ctx, c.pool, retention)
	_, onces := txlock.PurgeOnce(ctx, c.pool)
	err := errors.Join(locks, onces)
	o.granted()
	c.tell("clean-up", o, err)
	return err
}
