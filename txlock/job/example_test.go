package job_test

import (
	"context"
	"database/sql"
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
)

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
		}, job.Missed(job.All))
	if err != nil {
		log.Print(err)
	}
}

// A program that knows the instant itself asks for a single tick.
func ExampleJobs_Tick() {
	jobs, err := job.New(db, leases)
	if err != nil {
		log.Fatal(err)
	}
	at := time.Date(2026, 11, 22, 2, 0, 0, 0, time.UTC)
	ran, err := jobs.Tick(ctx, txlock.Named("mails"), at, func(ctx context.Context, _ time.Time) error {
		return sendMails(ctx)
	})
	if err != nil {
		log.Print(err)
	}
	log.Print(ran) // whether this process has sent them
}
