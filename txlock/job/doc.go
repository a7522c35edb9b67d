// Package job runs scheduled work once per cluster: at each scheduled time, one process does the
// work, no matter how much the processes' clocks differ or how short the work is.
//
//	jobs, err := job.New(db, leases)
//	...
//	err = jobs.Run(ctx, nightly, job.Cron("0 2 * * *"), report) // until ctx ends
//
// Start with:
//
//	Jobs.Run      run a function at each time of a schedule, at least once
//	Jobs.RunTx    the same in a transaction, exactly once
//	Every, Cron   schedules
//	Missed        what to do about times at which no process could run
//	Jobs.Tick     run one scheduled time yourself
//
// # Ticks
//
// A tick is a key and a scheduled time, such as the report of 02:00. The table lockstep_jobs has
// one row for each key, with the time that was started last and the one that was completed last. A
// completed tick stays completed: a process that tries it a moment or an hour later sees that.
// While a tick runs, its process holds the lease of the same key, which the lease.Manager renews.
// If the process crashes, another one may start the tick again after the TTL.
//
// # At least once, and exactly once
//
// [Jobs.Tick] calls a function at least once for a scheduled time, because a process that crashes
// after the work and before the mark leaves the tick to another one. [Jobs.TickTx] gives the
// function the transaction in which the tick is marked, so what that transaction writes is
// committed exactly once.
//
// # Schedules
//
// [Jobs.Run] and [Jobs.RunTx] wait for the times of a [Schedule], which [Every], [Cron] or [Of]
// returns. Only the server's clock decides; this package never reads the machine's. [Missed]
// chooses what happens to scheduled times at which no process could run: [CatchUpLatest],
// [CatchUpAll] or [SkipMissed].
//
// # Other schedulers
//
// [Jobs.Claim] and [Jobs.ClaimNearest] start a tick for a program that does the work itself.
// contrib/gocron and contrib/cron use them for two schedulers.
//
// # For operators
//
// [Jobs.Status] and [Jobs.List] return when a job ran, in which process, for how long, with which
// error, and when it is due next. [Observe] reports ticks as they happen.
package job
