package recipes_test

import (
	"context"
	"time"

	"github.com/riverqueue/river"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
)

// Report is a job of river.
type Report struct {
	Night time.Time `json:"night"`
}

func (Report) Kind() string { return "report" }

// river: in every process, instead of its PeriodicJobs.
func insertReport[TTx any](client *river.Client[TTx]) job.Func {
	return func(ctx context.Context, at time.Time) error {
		_, err := client.Insert(ctx, Report{Night: at.UTC()}, &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}})
		return err // a second insert of a night is skipped
	}
}

func runRiver[TTx any](ctx context.Context, jobs *job.Jobs, client *river.Client[TTx]) error {
	err := jobs.Run(ctx, txlock.Named("report"), job.Cron("0 2 * * *"), insertReport(client))
	return err
}

var _ = runRiver[any] // by docs/how-to/jobs.md
