package lockgocron_test

import (
	"context"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"

	lockgocron "github.com/dca00107/lockstep/contrib/gocron"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

func report(context.Context) error { return nil }

func ExampleNewElector() {
	var ctx context.Context
	var leases *lease.Manager

	// gocron: one process runs all jobs; the others are on standby.
	election, err := elect.New(leases, txlock.Named("scheduler"))
	if err != nil {
		log.Fatal(err)
	}
	elector := lockgocron.NewElector(election) // once per program; Close it before the leases
	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	_, err = s.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(func() error {
		return elector.Do(ctx, work) // whose context ends before another process leads
	}))
	if err != nil {
		log.Fatal(err)
	}
}

func work(context.Context, *elect.Term) error { return nil }

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
