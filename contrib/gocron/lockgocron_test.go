package lockgocron_test

import (
	"crypto/rand"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"

	lockgocron "github.com/dca00107/lockstep/contrib/gocron"
	"github.com/dca00107/lockstep/internal/test/jobtest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// wrong is the clock of a process that is wrong.
type wrong struct {
	clockwork.Clock
	by time.Duration
}

func (w wrong) Now() time.Time { return w.Clock.Now().Add(w.by) }

// TestLocker proves that a job of a millisecond runs once a tick on three schedulers whose
// clocks are 100 ms apart, by a crontab line and by a duration, also under the key of a
// namespace.
func TestLocker(t *testing.T) {
	t.Parallel()
	const every = 2 * time.Second
	for _, engine := range testdb.Engines() {
		for name, test := range map[string]struct {
			schedule job.Schedule
			job      func(now time.Time) (gocron.JobDefinition, []gocron.JobOption)
		}{
			"cron": {job.Cron("*/2 * * * * *"), func(time.Time) (gocron.JobDefinition, []gocron.JobOption) {
				return gocron.CronJob("*/2 * * * * *", true), nil
			}},
			"duration": {job.Every(every), func(now time.Time) (gocron.JobDefinition, []gocron.JobOption) {
				return gocron.DurationJob(every), []gocron.JobOption{gocron.WithStartAt(gocron.WithStartDateTime(job.Every(every).Next(now.Add(every / 2))))}
			}},
		} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				var ran atomic.Int64
				var jobs *job.Jobs
				var begun jobtest.Ticks
				var schedulers []gocron.Scheduler
				key := txlock.Namespace("shop").Named("gocron:" + rand.Text())
				for _, by := range []time.Duration{-100 * time.Millisecond, 0, 100 * time.Millisecond} {
					jobs, _ = jobtest.Node(t, engine, job.Observe(begun.Observe))
					clock := wrong{clockwork.NewRealClock(), by}
					s, err := gocron.NewScheduler(gocron.WithClock(clock), gocron.WithLocation(time.UTC))
					jobtest.Must(t, err)
					definition, options := test.job(clock.Now())
					_, err = s.NewJob(definition, gocron.NewTask(func() {
						ran.Add(1)
						time.Sleep(time.Millisecond)
					}), append(options, gocron.WithName(key.String()), gocron.WithDistributedJobLocker(lockgocron.NewLocker(jobs, test.schedule)))...)
					jobtest.Must(t, err)
					s.Start()
					schedulers = append(schedulers, s)
				}
				const least = 4
				jobtest.Await(func() bool { return ran.Load() >= least })
				for _, s := range schedulers {
					jobtest.Must(t, s.Shutdown())
				}
				begun.Check(t, least, int(ran.Load()))
				if status, err := jobs.Status(t.Context(), key); err != nil || status.Done.IsZero() {
					t.Errorf("the table says %+v, %v", status, err)
				}
			})
		}
	}
}
