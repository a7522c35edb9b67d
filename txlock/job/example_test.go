package job_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

var (
	ctx    context.Context
	db     *sql.DB
	leases *lease.Manager
	jobs   *job.Jobs // made by job.New once per program
)

// at is the time of a tick.
var at = time.Date(2026, 11, 22, 2, 0, 0, 0, time.UTC)

// writeReport writes the report of a day.
func writeReport(context.Context, *sql.Tx, time.Time) error { return nil }
func sendMails(context.Context) error                       { return nil }

// Every process of the program runs this, and one of them writes each night's report.
func Example() {
	jobs, err := job.New(db, leases) // once per program
	if err != nil {
		log.Fatal(err)
	}
	err = jobs.RunTx(ctx, txlock.Named("nightly-report"), job.Cron("CRON_TZ=Europe/Berlin 0 2 * * *"),
		func(ctx context.Context, tx *sql.Tx, at time.Time) error {
			return writeReport(ctx, tx, at.AddDate(0, 0, -1)) // the tick is marked in this transaction
		}, job.Missed(job.CatchUpAll))
	if err != nil {
		log.Print(err)
	}
}

// A program that knows the instant itself asks for a single tick.
func ExampleJobs_Tick() {
	ran, err := jobs.Tick(ctx, txlock.Named("mails"), at, func(ctx context.Context, _ time.Time) error {
		return sendMails(ctx)
	})
	if err != nil {
		log.Print(err)
	}
	log.Print(ran) // whether this process has sent them
}

// A manager of leases and the jobs on it are made once per program.
func ExampleNew() {
	leases, err := lease.NewManager(db)
	if err != nil {
		log.Fatal(err)
	}
	jobs, err := job.New(db, leases)
	if err != nil {
		log.Fatal(err)
	}
	if err := jobs.Close(ctx); err != nil { // before the leases
		log.Print(err)
	}
}

// A program that cron starts on every machine does the work on one of them.
func ExampleTick() {
	ran, err := job.Tick(ctx, db, txlock.Named("mails"), at, func(ctx context.Context, _ time.Time) error {
		return sendMails(ctx)
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Print(ran)
}

// The same with a transaction, in which the tick is marked, too.
func ExampleTickTx() {
	ran, err := job.TickTx(ctx, db, txlock.Named("nightly-report"), at, writeReport)
	if err != nil {
		log.Fatal(err)
	}
	log.Print(ran)
}

// What the function writes is there exactly once.
func ExampleJobs_TickTx() {
	ran, err := jobs.TickTx(ctx, txlock.Named("nightly-report"), at, writeReport)
	if err != nil {
		log.Print(err)
	}
	log.Print(ran)
}

// Every process runs this, and one of them sends the mails of each hour.
func ExampleJobs_Run() {
	err := jobs.Run(ctx, txlock.Named("mails"), job.Cron("0 * * * *"), func(ctx context.Context, _ time.Time) error {
		return sendMails(ctx)
	})
	if err != nil {
		log.Print(err)
	}
}

// Reports that were missed while no process ran are written later.
func ExampleJobs_RunTx() {
	err := jobs.RunTx(ctx, txlock.Named("nightly-report"), job.Cron("0 2 * * *"), writeReport, job.Missed(job.CatchUpAll))
	if err != nil {
		log.Print(err)
	}
}

// A program with a scheduler of its own claims the tick, and says how it ended.
func ExampleJobs_Claim() {
	claim, err := jobs.Claim(ctx, txlock.Named("mails"), at)
	if errors.Is(err, job.ErrDone) || errors.Is(err, txlock.ErrBusy) {
		return // another process has done it, or does
	} else if err != nil {
		log.Fatal(err)
	}
	if err := claim.Finish(ctx, sendMails(ctx)); err != nil {
		log.Print(err)
	}
}

// Clocks of processes differ, and yet they mean the same tick.
func ExampleJobs_ClaimNearest() {
	claim, err := jobs.ClaimNearest(ctx, txlock.Named("mails"), job.Cron("0 * * * *"))
	if err != nil {
		log.Print(err)
		return
	}
	err = claim.Finish(ctx, sendMails(ctx))
	log.Print(claim.At(), err)
}

// A tick that has failed may be begun again.
func ExampleClaim_Finish() {
	var claim *job.Claim // from Jobs.Claim
	if err := claim.Finish(ctx, sendMails(ctx)); errors.Is(err, txlock.ErrLost) {
		log.Print("another process has begun the tick")
	}
}

// Functions that run have half a minute to return.
func ExampleJobs_Close() {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := jobs.Close(ctx); err != nil {
		log.Print(err) // context.DeadlineExceeded: they were told to stop
	}
}

// A page for operators shows which jobs fail.
func ExampleJobs_List() {
	all, err := jobs.List(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, status := range all {
		log.Print(status.Key, status.Tick, status.Failures)
	}
}

// A health check looks at one job.
func ExampleJobs_Status() {
	status, err := jobs.Status(ctx, txlock.Named("nightly-report"))
	switch {
	case errors.Is(err, txlock.ErrNotHeld):
		log.Print("it has never been run")
	case err != nil:
		log.Fatal(err)
	default:
		log.Print(status.Done, status.Running)
	}
}

// A person stops a job in all processes.
func ExampleJobs_Pause() {
	if _, err := jobs.Pause(ctx, txlock.Named("nightly-report"), "ann: the printer is broken"); err != nil {
		log.Fatal(err)
	}
}

// The job goes on, by its schedule.
func ExampleJobs_Resume() {
	if _, err := jobs.Resume(ctx, txlock.Named("nightly-report")); err != nil {
		log.Fatal(err)
	}
}

// One process runs the job within some seconds, even if it is paused.
func ExampleJobs_RunNow() {
	if _, err := jobs.RunNow(ctx, txlock.Named("nightly-report")); err != nil {
		log.Fatal(err)
	}
}

// The last runs say when a job began to fail, and why.
func ExampleJobs_Runs() {
	runs, err := jobs.Runs(ctx, txlock.Named("nightly-report"))
	if err != nil {
		log.Fatal(err)
	}
	for _, run := range runs {
		log.Print(run.At, run.Kind, run.Took, run.Err)
	}
}

// A program deletes what is left of jobs that no version of it runs any more.
func ExamplePurge() {
	purged, err := job.Purge(ctx, db, 90*24*time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	log.Print(purged)
}
