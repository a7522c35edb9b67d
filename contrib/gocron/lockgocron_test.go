package lockgocron_test

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"

	lockgocron "github.com/dca00107/lockstep/contrib/gocron"
	"github.com/dca00107/lockstep/internal/test/jobtest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// wrong is the clock of a process that is wrong.
type wrong struct {
	clockwork.Clock
	by time.Duration
}

func (w wrong) Now() time.Time { return w.Clock.Now().Add(w.by) }

// TestLocker proves that a job of a millisecond runs once a tick on three schedulers whose clocks are 100 ms apart,
// by a crontab line and by a duration, also under the key of a namespace.
func TestLocker(t *testing.T) {
	const line, every = "*/2 * * * * *", 2 * time.Second
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		for name, schedule := range map[string]job.Schedule{"cron": job.Cron(line), "duration": job.Every(every)} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var ran atomic.Int64
				var jobs *job.Jobs
				var begun jobtest.Ticks
				var schedulers []gocron.Scheduler
				key := txlock.Namespace("shop").Named("gocron:" + rand.Text())
				for _, by := range []time.Duration{-100 * time.Millisecond, 0, 100 * time.Millisecond} {
					jobs, _ = jobtest.Node(t, engine, job.Observe(begun.Observe))
					clock := wrong{clockwork.NewRealClock(), by}
					s := testdb.Got(gocron.NewScheduler(gocron.WithClock(clock), gocron.WithLocation(time.UTC)))(t)
					options := []gocron.JobOption{gocron.WithName(key.String()), gocron.WithDistributedJobLocker(lockgocron.NewLocker(jobs, schedule))}
					definition := gocron.CronJob(line, true)
					if name == "duration" {
						definition = gocron.DurationJob(every)
						options = append(options, gocron.WithStartAt(gocron.WithStartDateTime(schedule.Next(clock.Now().Add(every/2)))))
					}
					testdb.Got(s.NewJob(definition, gocron.NewTask(func() {
						ran.Add(1)
						time.Sleep(time.Millisecond)
					}), options...))(t)
					s.Start()
					schedulers = append(schedulers, s)
				}
				const least = 4
				jobtest.Await(func() bool { return ran.Load() >= least })
				for _, s := range schedulers {
					testdb.Must(t, s.Shutdown())
				}
				begun.Check(t, least, int(ran.Load()))
				status, err := jobs.Status(t.Context(), key)
				testdb.ErrorIf(t, err != nil || status.Done.IsZero(), "the table says %+v, %v", status, err)
			})
		}
	})
}

var wantError = testdb.Wants

// node is a process with an elector.
type node struct {
	*lockgocron.Elector
	election *elect.Election
	leases   *lease.Manager
}

// newNode starts a process.
func newNode(t *testing.T, engine testdb.Engine, key txlock.Key, options ...elect.Option) *node {
	t.Helper()
	_, leases := jobtest.Node(t, engine)
	election := testdb.Got(elect.New(leases, key, append(options, elect.TTL(6*time.Second), elect.Grace(3*time.Second))...))(t)
	n := &node{lockgocron.NewElector(election), election, leases}
	t.Cleanup(func() { testdb.Must(t, n.Close(context.Background())) })
	return n
}

// nodes starts processes, and returns the one that leads first.
func nodes(t *testing.T, engine testdb.Engine, n int) (leader *node, all []*node) {
	t.Helper()
	key := txlock.Named("gocron:" + rand.Text())
	for range n {
		all = append(all, newNode(t, engine, key))
	}
	return leaderOf(t, all), all
}

// leaderOf waits until one leads, and checks that no other one does.
func leaderOf(t *testing.T, all []*node) (leader *node) {
	t.Helper()
	jobtest.Await(func() bool {
		for _, n := range all {
			if n.IsLeader(t.Context()) == nil {
				leader = n
			}
		}
		return leader != nil
	})
	testdb.FatalIf(t, leader == nil, "nobody leads")
	for _, n := range all {
		err := n.IsLeader(t.Context())
		testdb.ErrorIf(t, n != leader && !errors.Is(err, lockgocron.ErrNotLeader) && !errors.Is(err, lockgocron.ErrClosed), "another one: %v", err)
	}
	return leader
}

// TestElectorOnce is gocron's own test of an Elector: of three schedulers which are started
// at once one runs a job that is due at once, also where none of them leads yet.
func TestElectorOnce(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		key := txlock.Named("gocron:" + rand.Text())
		var ran, refused atomic.Int64
		for range 3 {
			n := newNode(t, engine, key)
			s := testdb.Got(gocron.NewScheduler(gocron.WithDistributedElector(counting{n, &refused})))(t)
			s.Start()
			t.Cleanup(func() { testdb.Must(t, s.Shutdown()) })
			testdb.Got(s.NewJob(gocron.DurationJob(time.Hour), gocron.NewTask(func() { ran.Add(1) }),
				gocron.WithStartAt(gocron.WithStartImmediately()), gocron.WithLimitedRuns(1)))(t)
		}
		jobtest.Await(func() bool { return ran.Load() > 0 && refused.Load() > 1 })
		testdb.ErrorIf(t, ran.Load() != 1 || refused.Load() != 2, "%d have run it, %d not", ran.Load(), refused.Load())
	})
}

// TestOwnTermToCome proves that a task waits for the term that its process has been granted, and
// that hasn't begun: no other process runs it.
func TestOwnTermToCome(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		made, early := make(chan *node, 1), make(chan error, 1)
		n := newNode(t, engine, txlock.Named("gocron:"+rand.Text()), elect.Observe(func(_ context.Context, e elect.Event) {
			if e.Kind == elect.Elected {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				early <- (<-made).IsLeader(ctx)
			}
		}))
		made <- n
		wantError(t, "IsLeader before the term", <-early, context.DeadlineExceeded)
		leader, err := n.election.Leader(t.Context())
		testdb.ErrorIf(t, err != nil || !leader.Own, "the leader is %+v, %v", leader, err)
		testdb.Must(t, n.IsLeader(t.Context()))
	})
}

// counting counts what an elector refuses.
type counting struct {
	*node
	refused *atomic.Int64
}

func (c counting) IsLeader(ctx context.Context) error {
	err := c.node.IsLeader(ctx)
	if errors.Is(err, lockgocron.ErrNotLeader) {
		c.refused.Add(1)
	}
	return err
}

// released demands that a term was released, or is being: a busy server's answer takes longer
// than Resign waits for it.
func released(t *testing.T, err error) {
	t.Helper()
	testdb.ErrorIf(t, err != nil && !errors.Is(err, context.DeadlineExceeded), "the release: %v", err)
}

// TestElector proves that the jobs of one of three schedulers run, one at a time, and those
// of another one when it closes, or resigns.
func TestElector(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		leader, all := nodes(t, engine, 3)
		var running atomic.Int64
		by, enough := make(chan *node), make(chan struct{})
		for _, n := range all {
			s := testdb.Got(gocron.NewScheduler(gocron.WithDistributedElector(n)))(t)
			testdb.Got(s.NewJob(gocron.DurationJob(20*time.Millisecond), gocron.NewTask(func(ctx context.Context) {
				_ = n.Do(ctx, func(ctx context.Context, term *elect.Term) error {
					testdb.ErrorIf(t, running.Add(1) != 1, "two work at once")
					defer running.Add(-1)
					select {
					case by <- n:
					case <-enough: // the schedulers wait for their jobs
					case <-ctx.Done():
					}
					return term.Err()
				})
			}), gocron.WithSingletonMode(gocron.LimitModeReschedule)))(t)
			s.Start()
			defer func() { testdb.Must(t, s.Shutdown()) }()
		}
		for _, handOver := range []func() error{
			func() error { return leader.election.Resign(t.Context()) },
			func() error { return leader.Close(t.Context()) },
		} {
			for range 3 {
				testdb.Equal(t, "who works", <-by, leader)
			}
			released(t, handOver())
			next := <-by
			for next == leader { // a run that had ended before
				next = <-by
			}
			leader = next
			testdb.Equal(t, "who leads", leaderOf(t, all), leader)
		}
		close(enough)
	})
}

// TestElectorGrace proves that the task of a leader which must stop is told to, and that
// nobody else leads before it has returned, or the grace is over.
func TestElectorGrace(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		leader, all := nodes(t, engine, 2)
		for _, obeys := range []bool{true, false} {
			begun, told, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan error, 1)
			go func() {
				ended <- leader.Do(t.Context(), func(ctx context.Context, _ *elect.Term) error {
					close(begun)
					<-ctx.Done()
					wantError(t, "the task is told", context.Cause(ctx), elect.ErrResigned)
					close(told)
					<-goOn
					return nil
				})
			}()
			other := all[0]
			if other == leader {
				other = all[1]
			}
			<-begun
			resigned := make(chan error, 1)
			go func(leader *node) { resigned <- leader.election.Resign(t.Context()) }(leader)
			<-told
			wantError(t, "the one that resigns", leader.IsLeader(t.Context()), lockgocron.ErrNotLeader)
			if obeys {
				wantError(t, "another one before the end of the task", other.IsLeader(t.Context()), lockgocron.ErrNotLeader)
				close(goOn)
				testdb.Must(t, <-ended)
			}
			released(t, <-resigned)
			next := leaderOf(t, all)
			testdb.ErrorIf(t, next != other, "it follows itself")
			if !obeys {
				close(goOn)
				wantError(t, "a task that was overdue", <-ended, txlock.ErrNotHeld)
			}
			leader = other
		}
	})
}

// TestElectorRefuses proves that an elector says why it never leads.
func TestElectorRefuses(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		none := lockgocron.NewElector(nil)
		testdb.Fails(t, "IsLeader without an election", none.IsLeader(t.Context()))
		testdb.Must(t, none.Close(t.Context()))

		n := newNode(t, engine, txlock.Named("gocron:"+rand.Text()))
		testdb.Must(t, n.IsLeader(t.Context()))
		testdb.Must(t, n.Close(t.Context()))
		wantError(t, "closed", n.IsLeader(t.Context()), lockgocron.ErrClosed)
		wantError(t, "Do of one that is closed", n.Do(t.Context(), func(context.Context, *elect.Term) error { return nil }), lockgocron.ErrClosed)

		testdb.Must(t, n.leases.Close(t.Context()))
		again := lockgocron.NewElector(n.election)
		jobtest.Await(func() bool { return errors.Is(again.IsLeader(t.Context()), lease.ErrClosed) })
		wantError(t, "without leases", again.IsLeader(t.Context()), lease.ErrClosed)
		testdb.Must(t, again.Close(t.Context()))

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		testdb.Fails(t, "IsLeader under a context that has ended", newNode(t, engine, txlock.Named("gocron:"+rand.Text())).IsLeader(ended))
	})
}
