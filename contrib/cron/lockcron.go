// Package lockcron gives the jobs of github.com/robfig/cron/v3 wrappers which count over
// all processes: Once runs a job once a tick, Skip and Delay are cron.SkipIfStillRunning
// and cron.DelayIfStillRunning for a cluster.
//
//	jobs, err := job.New(db, leases)
//	...
//	const line = "0 2 * * *"
//	c := cron.New(cron.WithLocation(time.UTC))
//	_, err = c.AddJob(line, cron.NewChain(
//		lockcron.Once(ctx, jobs, txlock.Named("report"), job.Cron(line), logger)).Then(report))
package lockcron

import (
	"context"
	"errors"

	"github.com/robfig/cron/v3"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Once runs a job once a tick over all processes, however short it is. Package cron doesn't
// say which tick a run is for, so it is the one that is nearest to the present by the
// server's clock: the clocks of the processes may be wrong by less than half of the time
// between two ticks. The schedule is that by which cron runs the job; job.Of takes any of
// package cron's but those that depend on when they begin, such as @every.
//
// A job that panics has failed, and the panic continues: give cron.Recover before Once. A
// process whose clock is later by so much runs that tick again, and that of a process that has
// died; no other does. Use job.Run for jobs that must not be left out.
func Once(ctx context.Context, jobs *job.Jobs, key txlock.Key, schedule job.Schedule, logger cron.Logger) cron.JobWrapper {
	return func(j cron.Job) cron.Job {
		return cron.FuncJob(func() {
			claim, err := jobs.ClaimNearest(ctx, key, schedule)
			switch {
			case errors.Is(err, job.ErrDone), errors.Is(err, job.ErrPast), errors.Is(err, txlock.ErrBusy):
				logger.Info("skip", "job", key.String())
				return
			case err != nil:
				logger.Error(err, "the tick can't be begun", "job", key.String())
				return
			}
			why := errors.New("the job has panicked, or has ended its goroutine")
			defer func() {
				if err := claim.Finish(ctx, why); err != nil {
					logger.Error(err, "the tick can't be ended", "job", key.String())
				}
			}()
			j.Run()
			why = nil
		})
	}
}

// Skip leaves a run out while another process, or another run of this one, is at the job.
// A short job may still run once in each process for one tick: see Once.
func Skip(ctx context.Context, leases *lease.Manager, key txlock.Key, logger cron.Logger) cron.JobWrapper {
	return under(ctx, leases.TryAcquire, key, logger)
}

// Delay makes a run wait until no other process, and no other run of this one, is at the
// job.
func Delay(ctx context.Context, leases *lease.Manager, key txlock.Key, logger cron.Logger) cron.JobWrapper {
	return under(ctx, leases.Acquire, key, logger)
}

// under runs jobs under a lease that is acquired in the given way.
func under(ctx context.Context, acquire func(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (*lease.Lease, error), key txlock.Key, logger cron.Logger) cron.JobWrapper {
	return func(j cron.Job) cron.Job {
		return cron.FuncJob(func() {
			l, err := acquire(ctx, key)
			switch {
			case errors.Is(err, txlock.ErrBusy):
				logger.Info("skip", "job", key.String())
				return
			case err != nil:
				logger.Error(err, "the lease can't be acquired", "job", key.String())
				return
			}
			defer func() {
				lost := l.Err()
				if err := errors.Join(lost, l.Release(context.WithoutCancel(ctx))); err != nil {
					logger.Error(err, "the lease was lost, or not given back", "job", key.String())
				}
			}()
			j.Run()
		})
	}
}
