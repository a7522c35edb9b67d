// Package job runs the ticks of a job once per cluster: at each instant one process works,
// whatever the clocks of the processes are and however short the work is.
//
// # What a tick is
//
// A tick is a key and an instant, such as the report of 02:00. The table lockstep_jobs
// has one row for each key, with the instant that was begun last and the one that was
// done last. So a tick that was done stays done: a process that comes a moment or an hour
// later finds that out. While a tick runs, its process holds the lease of the same key,
// which the lease.Manager renews. When the process dies, another one may begin the tick
// again after the TTL.
//
//	jobs, err := job.New(db, leases)
//	...
//	err = jobs.Run(ctx, nightly, job.Cron("0 2 * * *"), report) // until ctx ends
//
// # Once, and exactly once
//
// [Jobs.Tick] calls a function at least once for an instant: a process that dies after
// the work and before the mark leaves the tick to another one. [Jobs.TickTx] gives the
// function the transaction in which the tick is marked: what that transaction writes is
// there exactly once.
//
// # Schedules
//
// [Jobs.Run] and [Jobs.RunTx] wait for the instants of a [Schedule], which [Every], [Cron]
// or [Of] makes. Only the server's clock decides; this package never reads that of the
// machine. [Missed] says what becomes of instants at which nobody could run: [Skip],
// [Once] or [All].
//
// # For schedulers of others
//
// [Jobs.Claim] and [Jobs.ClaimNearest] begin a tick for a program that calls the function
// itself. contrib/gocron and contrib/cron do that for two schedulers.
//
// # For operators
//
// [Jobs.Status] and [Jobs.List] tell when a job ran, by whom, for how long, with which
// error, and when it is due next. [Observe] reports the same while it happens.
package job
