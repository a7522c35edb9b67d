package lockcron_test

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	lockcron "github.com/dca00107/lockstep/contrib/cron"
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

// wrong is a schedule by a clock that is wrong.
type wrong struct {
	cron.Schedule
	by time.Duration
}

func (w wrong) Next(after time.Time) time.Time { return w.Schedule.Next(after.Add(w.by)).Add(-w.by) }

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

// runs are the runs of a job.
type runs struct {
	mu      sync.Mutex
	at      []time.Time
	running int
	beside  int
}

func (r *runs) work(takes time.Duration) cron.Job {
	return cron.FuncJob(func() {
		r.mu.Lock()
		r.at = append(r.at, time.Now())
		if r.running++; r.running > 1 {
			r.beside++
		}
		r.mu.Unlock()
		time.Sleep(takes)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.running--
	})
}

func (r *runs) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.at)
}

// await returns when there are so many runs, or a minute is over.
func (r *runs) await(n int) {
	for end := time.Now().Add(time.Minute); r.count() < n && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
}

func onServers(t *testing.T, test func(t *testing.T, engine testdb.Engine)) {
	t.Helper()
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			test(t, engine)
		})
	}
}

var seconds = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// TestOnce proves that a job of a millisecond runs once a tick in three processes whose
// clocks are 100 ms apart.
func TestOnce(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		const line, least = "*/2 * * * * *", 4
		var r runs
		var begun ticks
		var crons []*cron.Cron
		key := txlock.Named("cron:" + rand.Text())
		schedule, err := seconds.Parse(line)
		must(t, err)
		for _, by := range []time.Duration{-100 * time.Millisecond, 0, 100 * time.Millisecond} {
			jobs, _ := node(t, engine, job.Observe(begun.add))
			c := cron.New(cron.WithLocation(time.UTC))
			c.Schedule(wrong{schedule, by}, cron.NewChain(lockcron.Once(t.Context(), jobs, key, job.Cron(line), cron.DiscardLogger)).Then(r.work(time.Millisecond)))
			c.Start()
			crons = append(crons, c)
		}
		r.await(least)
		for _, c := range crons {
			<-c.Stop().Done()
		}
		begun.check(t, least, r.count())
	})
}

// TestSkipAndDelay proves that no run is beside another, and that Skip leaves out what Delay
// does later.
func TestSkipAndDelay(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		for name, wrap := range map[string]func(*lease.Manager, txlock.Key) cron.JobWrapper{
			"Skip": func(m *lease.Manager, key txlock.Key) cron.JobWrapper {
				return lockcron.Skip(t.Context(), m, key, cron.DiscardLogger)
			},
			"Delay": func(m *lease.Manager, key txlock.Key) cron.JobWrapper {
				return lockcron.Delay(t.Context(), m, key, cron.DiscardLogger)
			},
		} {
			var r runs
			var group sync.WaitGroup
			key := txlock.Named("cron:" + rand.Text())
			first := make(chan struct{})
			for i := range 3 {
				_, leases := node(t, engine)
				wrapped := wrap(leases, key)
				if i == 0 {
					group.Go(wrapped(cron.FuncJob(func() {
						close(first)
						r.work(2 * time.Second).Run()
					})).Run)
					<-first
					continue
				}
				group.Go(wrapped(r.work(time.Millisecond)).Run)
			}
			group.Wait()
			if want := map[string]int{"Skip": 1, "Delay": 3}[name]; len(r.at) != want || r.beside > 0 {
				t.Errorf("%s: %d runs, %d beside another; want %d", name, len(r.at), r.beside, want)
			}
		}
	})
}

// TestPanic proves that a job that panics has failed, and that the panic goes on.
func TestPanic(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		jobs, _ := node(t, engine)
		key := txlock.Named("cron:" + rand.Text())
		wrapped := lockcron.Once(t.Context(), jobs, key, job.Every(time.Hour), cron.DiscardLogger)(cron.FuncJob(func() { panic("oh") }))
		func() {
			defer func() {
				if recover() != "oh" {
					t.Error("the panic is gone")
				}
			}()
			wrapped.Run()
		}()
		s, err := jobs.Status(t.Context(), key)
		if err != nil || s.Failures != 1 {
			t.Errorf("the table says %+v, %v", s, err)
		}
	})
}
