package lockgocron_test

import (
	"context"
	"log"

	"github.com/go-co-op/gocron/v2"

	lockgocron "github.com/dca00107/lockstep/contrib/gocron"
	"github.com/dca00107/lockstep/txlock/job"
)

func report(context.Context) error { return nil }

func ExampleNewLocker() {
	var s gocron.Scheduler
	var jobs *job.Jobs

	// gocron: with the same line, zone and name in every process.
	const line = "CRON_TZ=UTC 0 2 * * *"
	_, err := s.NewJob(gocron.CronJob(line, false), gocron.NewTask(report), gocron.WithName("report"),
		gocron.WithDistributedJobLocker(lockgocron.NewLocker(jobs, job.Cron(line))))
	if err != nil {
		log.Fatal(err)
	}
}
