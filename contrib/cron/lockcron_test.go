package lockcron_test

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	lockcron "github.com/dca00107/lockstep/contrib/cron"
	"github.com/dca00107/lockstep/internal/test/jobtest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// wrong is a schedule by a clock that is wrong.
type wrong struct {
	cron.Schedule
	by time.Duration
}

func (w wrong) Next(after time.Time) time.Time { return w.Schedule.Next(after.Add(w.by)).Add(-w.by) }

// runs counts the runs of a job.
type runs struct{ all, running, beside atomic.Int64 }

func (r *runs) work(takes time.Duration) cron.Job {
	return cron.FuncJob(func() {
		r.all.Add(1)
		if r.running.Add(1) > 1 {
			r.beside.Add(1)
		}
		time.Sleep(takes)
		r.running.Add(-1)
	})
}

// TestOnce proves that a job of a millisecond runs once a tick in three processes whose clocks are 100 ms apart.
func TestOnce(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		const line, least = "*/2 * * * * *", 4
		var r runs
		var begun jobtest.Ticks
		var crons []*cron.Cron
		key := txlock.Named("cron:" + rand.Text())
		schedule := testdb.Got(cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(line))(t)
		for _, by := range []time.Duration{-100 * time.Millisecond, 0, 100 * time.Millisecond} {
			jobs, _ := jobtest.Node(t, engine, job.Observe(begun.Observe))
			c := cron.New(cron.WithLocation(time.UTC))
			c.Schedule(wrong{schedule, by}, cron.NewChain(lockcron.Once(t.Context(), jobs, key, job.Cron(line), cron.DiscardLogger)).Then(r.work(time.Millisecond)))
			c.Start()
			crons = append(crons, c)
		}
		jobtest.Await(func() bool { return r.all.Load() >= least })
		for _, c := range crons {
			<-c.Stop().Done()
		}
		begun.Check(t, least, int(r.all.Load()))
	})
}

// TestSkipAndDelay proves that no run is beside another, and that Skip leaves out what Delay does later.
func TestSkipAndDelay(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		for name, wrap := range map[string]func(context.Context, *lease.Manager, txlock.Key, cron.Logger) cron.JobWrapper{
			"Skip": lockcron.Skip, "Delay": lockcron.Delay,
		} {
			var r runs
			var group, others sync.WaitGroup
			key := txlock.Named("cron:" + rand.Text())
			first, skipped := make(chan struct{}), make(chan struct{})
			for i := range 3 {
				_, leases := jobtest.Node(t, engine)
				wrapped := wrap(t.Context(), leases, key, cron.DiscardLogger)
				if i == 0 {
					group.Go(wrapped(cron.FuncJob(func() {
						close(first)
						r.work(2 * time.Second).Run()
						if name == "Skip" { // a slow machine starts the others later
							select {
							case <-skipped:
							case <-time.After(time.Minute):
							}
						}
					})).Run)
					<-first
					continue
				}
				others.Go(wrapped(r.work(time.Millisecond)).Run)
			}
			others.Wait()
			close(skipped)
			group.Wait()
			want := map[string]int64{"Skip": 1, "Delay": 3}[name]
			testdb.ErrorIf(t, r.all.Load() != want || r.beside.Load() > 0, "%s: %d runs, %d beside another; want %d", name, r.all.Load(), r.beside.Load(), want)
		}
	})
}

// TestPanic proves that a job that panics has failed, and that the panic goes on.
func TestPanic(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		jobs, _ := jobtest.Node(t, engine)
		key := txlock.Named("cron:" + rand.Text())
		wrapped := lockcron.Once(t.Context(), jobs, key, job.Every(time.Hour), cron.DiscardLogger)(cron.FuncJob(func() { panic("oh") }))
		func() {
			defer func() { testdb.ErrorIf(t, recover() != "oh", "the panic is gone") }()
			wrapped.Run()
		}()
		s, err := jobs.Status(t.Context(), key)
		testdb.ErrorIf(t, err != nil || s.Failures != 1, "the table says %+v, %v", s, err)
		again := false // by a process whose clock is later
		lockcron.Once(t.Context(), jobs, key, job.Every(time.Hour), cron.DiscardLogger)(cron.FuncJob(func() { again = true })).Run()
		testdb.ErrorIf(t, !again, "the tick that has failed is not run again")
	})
}
