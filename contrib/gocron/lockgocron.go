// Package lockgocron gives the schedulers of github.com/go-co-op/gocron/v2 a Locker by
// which a job runs once a tick over all processes, however short it is, and an Elector.
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
	"errors"
	"sync"

	"github.com/go-co-op/gocron/v2"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
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
// gocron doesn't say either how a job has ended, so a tick counts as done when its function
// has returned, and one whose process has died meanwhile is not run again. Use job.Run for
// jobs that must not be left out.
func NewLocker(jobs *job.Jobs, schedule job.Schedule) *Locker { return &Locker{jobs, schedule} }

// Lock begins the tick. It returns job.ErrDone where another process has done it, and
// txlock.ErrBusy while one is at it.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	claim, err := l.jobs.ClaimNearest(ctx, txlock.KeyOf(key), l.schedule)
	if err != nil {
		return nil, err
	}
	return lock{claim}, nil
}

type lock struct{ claim *job.Claim }

// Unlock marks the tick as done.
func (l lock) Unlock(ctx context.Context) error { return l.claim.Finish(ctx, nil) }

// Elector is a gocron.Elector: the leader is who holds a lease, as long as it lives.
type Elector struct {
	leases *lease.Manager
	key    txlock.Key

	mu     sync.Mutex
	lease  *lease.Lease
	closed bool
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an elector for the processes that elect by this key. When the leader
// dies, another process leads after the TTL of the manager's leases.
func NewElector(leases *lease.Manager, key txlock.Key) *Elector {
	return &Elector{leases: leases, key: key}
}

// IsLeader returns nil if this process leads, which it then does until Close. Else it
// returns txlock.ErrBusy, or why it can't be found out.
func (e *Elector) IsLeader(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return lease.ErrClosed
	}
	if e.lease != nil && e.lease.Valid() {
		return nil
	}
	l, err := e.leases.TryAcquire(ctx, e.key)
	if err != nil {
		return err
	}
	e.lease = l
	return nil
}

// Close gives the lead back: another process leads at once.
func (e *Elector) Close(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.lease == nil {
		return nil
	}
	err := e.lease.Release(ctx)
	e.lease = nil
	if errors.Is(err, txlock.ErrLost) || errors.Is(err, txlock.ErrNotHeld) {
		return nil
	}
	return err
}
