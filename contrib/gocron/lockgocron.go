// Package lockgocron gives the schedulers of github.com/go-co-op/gocron/v2 a Locker by
// which a job runs once a tick over all processes, however short it is (lockgocron.go), and
// an Elector by which one process runs all jobs while the others stand by (elector.go).
//
//	jobs, err := job.New(db, leases)
//	...
//	s, err := gocron.NewScheduler()
//	...
//	_, err = s.NewJob(gocron.CronJob("0 2 * * *", false), gocron.NewTask(report), gocron.WithName("report"),
//		gocron.WithDistributedJobLocker(lockgocron.NewLocker(jobs, job.Cron("0 2 * * *"))))
package lockgocron

import (
	"context"

	"github.com/go-co-op/gocron/v2"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
)

// Locker is a gocron.Locker for jobs of one schedule.
type Locker struct {
	jobs     *job.Jobs
	schedule job.Schedule
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a Locker for jobs that gocron runs by that schedule. gocron doesn't say
// which tick a lock is for, so it is the one that is nearest to the present by the server's
// clock: the clocks of the processes may be wrong by less than half of the time between two
// ticks. The key is the name of the job: give it one that is the same in all processes, and
// in a txlock.Namespace what String returns of the key.
//
// The schedule of a CronJob is job.Cron of the same line; gocron's is in the zone of the
// process unless gocron.WithLocation says otherwise. That of a DurationJob is job.Every:
// start it at a multiple of its duration, by gocron.WithStartAt, so that all processes mean
// the same ticks.
//
// gocron doesn't say either how a job has ended, so a tick counts as done when its function has
// returned, and one whose process has died meanwhile is not retried. Use job.Run for jobs that
// must not be left out.
func NewLocker(jobs *job.Jobs, schedule job.Schedule) *Locker { return &Locker{jobs, schedule} }

// Lock begins the tick. It returns job.ErrDone where another process has done it, and
// txlock.ErrBusy while one is at it.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	claim, err := l.jobs.ClaimNearest(ctx, txlock.ParseKey(key), l.schedule)
	if err != nil {
		return nil, err
	}
	return lock{claim}, nil
}

type lock struct{ claim *job.Claim }

// Unlock marks the tick as done.
func (l lock) Unlock(ctx context.Context) error { return l.claim.Finish(ctx, nil) }
