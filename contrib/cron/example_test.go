package lockcron_test

import (
	"context"
	"log"

	"github.com/robfig/cron/v3"

	lockcron "github.com/dca00107/lockstep/contrib/cron"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
)

func report() {}

func ExampleOnce() {
	ctx, jobs, c := context.Background(), (*job.Jobs)(nil), cron.New()

	// robfig/cron: Once for a job that runs once a tick, Skip and Delay for one that must
	// only not overlap itself.
	const line = "CRON_TZ=UTC 0 2 * * *"
	once := lockcron.Once(ctx, jobs, txlock.Named("report"), job.Cron(line), cron.DefaultLogger)
	_, err := c.AddJob(line, cron.NewChain(once).Then(cron.FuncJob(report)))
	if err != nil {
		log.Fatal(err)
	}
}
