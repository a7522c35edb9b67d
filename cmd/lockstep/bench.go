package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// benchKeys are the keys that bench uses. Their rows stay, as those of all keys do, until
// lockstep purge removes them.
var benchKeys = txlock.NewFamily[int]("lockstep-bench")

func (a *app) bench() *cobra.Command {
	lasts, workers := time.Minute, 8
	cmd := &cobra.Command{
		Use: "bench", Args: cobra.NoArgs,
		Short: "Measure locks and leases on this server, for a minute",
		Long: `Measure, from here, what a transaction costs without a lock and with one, with one key
for all, and what a lease costs. It writes rows of its own keys only, lockstep-bench:1 to
lockstep-bench:64, which stay until lockstep purge. A server in use notices it.

Privileges: those of the programs.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lasts < 4*time.Millisecond || workers < 1 || workers > 64 {
				return failed(usage, "--lasts %v --workers %d: at least 4ms, and 1 to 64 workers", lasts, workers)
			}
			if err := a.open(); err != nil {
				return err
			}
			if err := a.sure(cmd.Context(), fmt.Sprintf("Send transactions from %d connections for %v. Other users of the server may notice.", workers, lasts)); err != nil {
				return err
			}
			return a.measure(cmd.Context(), lasts/4, workers)
		},
	}
	cmd.Flags().DurationVar(&lasts, "lasts", lasts, "how long to measure in all")
	cmd.Flags().IntVar(&workers, "workers", workers, "how many connections work at a time")
	return a.changes(cmd)
}

// measured is one line of bench.
type measured struct {
	What      string  `json:"what"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
}

func (a *app) measure(ctx context.Context, each time.Duration, workers int) (err error) {
	config, err := a.config()
	if err != nil {
		return err
	}
	pool, err := locksqlc.Open(config.FormatDSN())
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }() // nothing is open in it
	pool.SetMaxOpenConns(workers + 2)
	pool.SetMaxIdleConns(workers + 2)
	leases, err := lease.NewManager(pool, lease.PurgeEvery(0, time.Hour))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leases.Close(ctx)) }()
	var all []measured
	for _, step := range []struct {
		what string
		do   func(ctx context.Context, worker int) error
	}{
		{"a transaction without a lock", func(ctx context.Context, _ int) error {
			tx, err := pool.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "UPDATE lockstep_locks SET locked_us = locked_us WHERE name = 'lockstep-bench:none'"); err != nil {
				_ = tx.Rollback() // the first error counts
				return err
			}
			return tx.Commit()
		}},
		{"a locked transaction, a key for each", func(ctx context.Context, worker int) error {
			return locked(ctx, pool, worker+1)
		}},
		{"a locked transaction, one key for all", func(ctx context.Context, _ int) error { return locked(ctx, pool, 64) }},
		{"a lease, acquired and released", func(ctx context.Context, worker int) error {
			return leases.Do(ctx, benchKeys.Key(worker+1), func(context.Context, *lease.Lease) error { return nil })
		}},
	} {
		m, err := timed(ctx, step.what, each, workers, step.do)
		if err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		all = append(all, m)
	}
	if a.json {
		return a.printJSON(measuredForm{all})
	}
	var rows [][]string
	for _, m := range all {
		rows = append(rows, []string{m.What, strconv.FormatFloat(m.PerSecond, 'f', 0, 64), fmt.Sprintf("%.2f ms", m.P50), fmt.Sprintf("%.2f ms", m.P99)})
	}
	table(a.out, "WHAT PER_SECOND MEDIAN P99", rows)
	return nil
}

func locked(ctx context.Context, pool *sql.DB, key int) error {
	return locksqlc.Run(ctx, pool, []txlock.Key{benchKeys.Key(key)}, func(*sql.Tx) error { return nil })
}

// timed lets all workers do the same for a while, and sums up how long each time took.
func timed(ctx context.Context, what string, lasts time.Duration, workers int, do func(context.Context, int) error) (measured, error) {
	var mu sync.Mutex
	var took []time.Duration
	var failure error
	var all sync.WaitGroup
	began := time.Now()
	for worker := range workers {
		all.Go(func() {
			for time.Since(began) < lasts && ctx.Err() == nil {
				start := time.Now()
				err := do(ctx, worker)
				mu.Lock()
				took = append(took, time.Since(start))
				if failure == nil {
					failure = err
				}
				stop := failure != nil
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	all.Wait()
	if failure != nil || len(took) == 0 {
		return measured{}, failure
	}
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return measured{what, float64(len(took)) / time.Since(began).Seconds(), ms(took[len(took)/2]), ms(took[len(took)*99/100])}, nil
}
