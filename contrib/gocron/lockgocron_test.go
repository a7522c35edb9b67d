package lockgocron_test

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"

	lockgocron "github.com/dca00107/lockstep/contrib/gocron"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wrong is the clock of a process that is wrong.
type wrong struct {
	clockwork.Clock
	by time.Duration
}

func (w wrong) Now() time.Time { return w.Clock.Now().Add(w.by) }

// ticks are the instants that were begun.
type ticks struct {
	mu sync.Mutex
	at []time.Time
}

func (b *ticks) add(_ context.Context, e job.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Kind == job.Began {
		b.at = append(b.at, e.At)
	}
}

// check proves that some ticks were begun, each once, and that each has run.
func (b *ticks) check(t *testing.T, least, ran int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := make(map[time.Time]bool)
	for _, at := range b.at {
		if seen[at] {
			t.Errorf("the tick of %v has run twice", at)
		}
		seen[at] = true
	}
	if len(seen) < least || ran != len(b.at) {
		t.Errorf("%d ticks, %d runs", len(seen), ran)
	}
}

// node is what a process has.
func node(t *testing.T, engine testdb.Engine, opts ...job.Option) (*job.Jobs, *lease.Manager) {
	t.Helper()
	db, err := locksqlc.Open(testdb.Open(t, engine).DSN())
	must(t, err)
	leases, err := lease.NewManager(db)
	must(t, err)
	jobs, err := job.New(db, leases, opts...)
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		must(t, errors.Join(jobs.Close(ctx), leases.Close(ctx), db.Close()))
	})
	return jobs, leases
}

// TestLocker proves that a job of a millisecond runs once a tick on three schedulers whose
// clocks are 100 ms apart, by a crontab line and by a duration.
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
				return gocron.DurationJob(every), []gocron.JobOption{gocron.WithStartAt(gocron.WithStartDateTime(job.Every(every).Next(now)))}
			}},
		} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				var ran atomic.Int64
				var begun ticks
				var schedulers []gocron.Scheduler
				key := "gocron:" + rand.Text()
				for _, by := range []time.Duration{-100 * time.Millisecond, 0, 100 * time.Millisecond} {
					jobs, _ := node(t, engine, job.Observe(begun.add))
					clock := wrong{clockwork.NewRealClock(), by}
					s, err := gocron.NewScheduler(gocron.WithClock(clock), gocron.WithLocation(time.UTC))
					must(t, err)
					definition, options := test.job(clock.Now())
					_, err = s.NewJob(definition, gocron.NewTask(func() {
						ran.Add(1)
						time.Sleep(time.Millisecond)
					}), append(options, gocron.WithName(key), gocron.WithDistributedJobLocker(lockgocron.NewLocker(jobs, test.schedule)))...)
					must(t, err)
					s.Start()
					schedulers = append(schedulers, s)
				}
				const least = 4
				for end := time.Now().Add(time.Minute); ran.Load() < least && time.Now().Before(end); {
					time.Sleep(20 * time.Millisecond)
				}
				for _, s := range schedulers {
					must(t, s.Shutdown())
				}
				begun.check(t, least, int(ran.Load()))
			})
		}
	}
}

// TestElector proves that one of two leads until it resigns, and then the other one.
func TestElector(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			key := txlock.Named("gocron:" + rand.Text())
			var electors []*lockgocron.Elector
			for range 2 {
				_, leases := node(t, engine)
				electors = append(electors, lockgocron.NewElector(leases, key))
			}
			for range 3 {
				must(t, electors[0].IsLeader(t.Context()))
				if err := electors[1].IsLeader(t.Context()); !errors.Is(err, txlock.ErrBusy) {
					t.Errorf("the second: %v", err)
				}
			}
			ran := make(chan struct{}, 1)
			s, err := gocron.NewScheduler(gocron.WithDistributedElector(electors[1]))
			must(t, err)
			_, err = s.NewJob(gocron.DurationJob(50*time.Millisecond), gocron.NewTask(func() {
				select {
				case ran <- struct{}{}:
				default:
				}
			}))
			must(t, err)
			s.Start()
			must(t, electors[0].Close(t.Context()))
			<-ran
			must(t, s.Shutdown())
			if err := electors[0].IsLeader(t.Context()); !errors.Is(err, lease.ErrClosed) {
				t.Errorf("the first after Close: %v", err)
			}
			must(t, electors[1].Close(t.Context()))
		})
	}
}
