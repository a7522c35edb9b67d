package job

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestPause proves that a job that one process pauses rests in another one, also for Tick and
// Claim, that it runs if that is requested, and that it goes on after Resume.
func TestPause(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		a, b, key := open(t, newPool(t, db, true), Log(nil)), open(t, newPool(t, db, false), Log(nil)), newKey()
		controls := map[string]func() (bool, error){
			"Pause": func() (bool, error) { return a.Pause(t.Context(), key, "ann") }, "Resume": func() (bool, error) { return a.Resume(t.Context(), key) },
			"RunNow": func() (bool, error) { return a.RunNow(t.Context(), key) },
		}
		for what, control := range controls {
			wants(t, what+" without a row", testdb.Err(control()), txlock.ErrNotHeld)
		}
		wants(t, "Runs without a row", testdb.Err(a.Runs(t.Context(), key)), txlock.ErrNotHeld)
		for _, by := range []string{"", strings.Repeat("x", 256)} {
			wants(t, "Pause by none or too many", testdb.Err(a.Pause(t.Context(), key, by)), txlock.ErrInvalidOption)
		}
		changesOnce := func(what string) {
			t.Helper()
			for _, want := range []bool{true, false} {
				changed, err := controls[what]()
				testdb.ErrorIf(t, changed != want || err != nil, "%s reports %v, %v, want %v", what, changed, err, want)
			}
		}
		var ticks atomic.Int64
		run := func(what string, every time.Duration, until func() bool) {
			t.Helper()
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				ended <- b.Run(ctx, key, Every(every), func(context.Context, time.Time) error { ticks.Add(1); return nil })
			}()
			testdb.ErrorIf(t, !testdb.Await(time.Minute, until), "%s: %d ticks", what, ticks.Load())
			stop()
			wants(t, "Run", <-ended, context.Canceled)
		}
		status := func() Status { return statusOf(t, a, key) }
		run("at first", 100*time.Millisecond, func() bool { return ticks.Load() > 0 })
		changesOnce("Pause")
		s := status()
		testdb.ErrorIf(t, s.Paused.IsZero() || s.PausedBy != "ann", "paused %v by %q", s.Paused, s.PausedBy)
		at := serverNow(t, a)
		wants(t, "Tick", testdb.Err(a.Tick(limited(t, time.Minute), key, at, nothing)), ErrPaused) // the limit is for one that waits
		wants(t, "Claim", testdb.Err(a.Claim(t.Context(), key, at)), ErrPaused)
		changesOnce("RunNow")
		requested, before := status().Requested, ticks.Load()
		run("the run that was requested", 100*time.Millisecond, func() bool { s := status(); return s.Done.After(at) && !s.Running })
		if s := status(); !s.Done.Equal(requested) || !s.Requested.IsZero() || s.Paused.IsZero() || ticks.Load() != before+1 {
			t.Errorf("%d ticks, requested %v: %+v", ticks.Load()-before, requested, s)
		}
		changesOnce("Resume")
		run("after Resume", 100*time.Millisecond, func() bool { return ticks.Load() > before+2 })
		changesOnce("RunNow")
		before = ticks.Load()
		run("requested of a job that is not paused", 24*time.Hour, func() bool { return ticks.Load() > before })
	})
}

// TestPauseInterrupted: MariaDB answers OK, with no changed row, to an UPDATE that KILL QUERY or its
// time limit has interrupted.
func TestPauseInterrupted(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		var interrupted atomic.Bool
		_, mutate := testdb.Rewritten(t, func(text string) string {
			if strings.Contains(text, "UPDATE lockstep_jobs SET paused_us") && interrupted.CompareAndSwap(false, true) {
				text += " AND 1 = 0"
			}
			return text
		})
		jobs, key := open(t, newPool(t, db, true, mutate), Log(nil)), newKey()
		c := testdb.Got(jobs.Claim(t.Context(), key, time.Now()))(t)
		must(t, c.Finish(t.Context(), nil))
		paused, err := jobs.Pause(t.Context(), key, "ann")
		testdb.ErrorIf(t, err != nil || !paused || !interrupted.Load(), "Pause reports %t, %v; interrupted: %t", paused, err, interrupted.Load())
	})
}

// TestRuns proves that the last runs are kept, those of processes that have died too, with
// their errors, and no more than KeepRuns says. What the column holds is in jobrow.TestPush.
func TestRuns(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db, true), newKey()
		j := open(t, pool, InstanceName("a\tb\nc"), KeepRuns(3, time.Hour), Log(nil))
		at := serverNow(t, j).Add(-time.Hour)
		tick := func(j *Jobs, n int, err error) {
			wants(t, "Tick", testdb.Err(j.Tick(t.Context(), key, at.Add(time.Duration(n)*time.Second), func(context.Context, time.Time) error { return err })), err)
		}
		wanted := func(j *Jobs, want ...string) {
			t.Helper()
			runs := testdb.Got(j.Runs(t.Context(), key))(t)
			var got []string
			for i, r := range runs {
				got = append(got, string(r.Kind)+" "+r.Err)
				testdb.ErrorIf(t, r.Instance != "a b c" || r.Took < 0 || r.Started.Before(at) || i > 0 && r.At.After(runs[i-1].At), "%+v", r)
			}
			testdb.ErrorIf(t, !slices.Equal(got, want), "runs %q, want %q", got, want)
		}
		tick(j, 1, nil)
		tick(j, 2, errors.New("one line\nand\tanother"))
		wanted(j, "failed one line and another", "done ")
		c := testdb.Got(j.Claim(t.Context(), key, at.Add(2*time.Second)))(t)
		must(t, j.leases.ForceRelease(t.Context(), key)) // as if the process had died
		tick(j, 2, nil)
		wants(t, "Finish", c.Finish(t.Context(), nil), txlock.ErrLost)
		wanted(j, "done ", "interrupted ", "failed one line and another")
		tick(j, 3, errors.New(strings.Repeat("x", 2000)))
		wanted(j, "failed "+strings.Repeat("x", 200), "done ", "interrupted ")
		none := open(t, pool, KeepRuns(0, time.Hour), Log(nil))
		tick(none, 4, nil)
		wanted(none)
		old := open(t, pool, KeepRuns(50, time.Nanosecond), Log(nil))
		runs, err := old.Runs(t.Context(), key)
		testdb.ErrorIf(t, err != nil || len(runs) != 0, "%d runs that are too old, %v", len(runs), err)
		for _, bad := range []Option{KeepRuns(-1, time.Hour), KeepRuns(51, time.Hour), KeepRuns(1, 0), InstanceName("web-\xff")} {
			wants(t, "a bad option", testdb.Err(New(pool, j.leases, bad)), txlock.ErrInvalidOption)
		}
	})
}

// TestPurge proves which rows are deleted: of jobs that nobody has run for the time, and that were not to run.
func TestPurge(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).OpenLeases(t) // whose rows are its own
		j := open(t, newPool(t, db, true), Log(nil))
		now := serverNow(t, j)
		for _, name := range []string{"unused", "never begun", "begun now", "due tomorrow", "paused", "requested", "ended now"} {
			must(t, j.ledger.make(t.Context(), name, now.Add(-48*time.Hour), coming{due: now.Add(-47 * time.Hour)}))
			if name != "never begun" {
				must(t, testdb.Err(j.ledger.begin(t.Context(), beginning{key: name, at: now.Add(-47 * time.Hour), token: 7, coming: coming{due: now.Add(-46 * time.Hour)}})))
			}
		}
		db.Exec(t, "UPDATE lockstep_jobs SET started_us = tick_us WHERE name <> 'begun now'")
		db.Exec(t, "UPDATE lockstep_jobs SET next_us = UNIX_TIMESTAMP() * 1000000 + 86400000000 WHERE name = 'due tomorrow'")
		db.Exec(t, "UPDATE lockstep_jobs SET ended_us = UNIX_TIMESTAMP() * 1000000 WHERE name = 'ended now'")
		db.Exec(t, "UPDATE lockstep_jobs SET run_us = UNIX_TIMESTAMP() * 1000000 WHERE name = 'requested'")
		db.Exec(t, "UPDATE lockstep_jobs SET paused_us = 1 WHERE name = 'paused'")
		for _, want := range []int{2, 0} {
			n := testdb.Got(Purge(t.Context(), db.Admin(), 24*time.Hour))(t)
			testdb.Equal(t, "purged", n, want)
		}
		all := testdb.Got(j.List(t.Context()))(t)
		var names []string
		for _, s := range all {
			names = append(names, s.Key)
		}
		want := []string{"begun now", "due tomorrow", "ended now", "paused", "requested"}
		testdb.ErrorIf(t, !slices.Equal(names, want), "%q are left, want %q", names, want)
		wants(t, "Purge of a minute", testdb.Err(Purge(t.Context(), db.Admin(), time.Minute)), txlock.ErrInvalidOption)
	})
}

// TestHealth proves what the table says of a job that has stopped, which is overdue, that hangs, which takes too
// long, and that is paused, which is neither.
func TestHealth(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		a, b := c.node(), c.node()
		hang := make(chan struct{})
		var hangs atomic.Bool
		a.runs(Every(10*time.Minute), func(_ context.Context, _ time.Time) error {
			if hangs.Load() {
				<-hang
			}
			return nil
		}, WarnAfter(time.Minute))
		time.Sleep(25 * time.Minute)
		status := func() Status { return statusOf(t, b.Jobs, nightly) }
		s := status()
		testdb.ErrorIf(t, s.Overdue != 0 || s.TooLong != 0 || s.Running || s.Schedule != "Every(10m0s)" || !s.Next.After(c.now()), "well: %+v", s)
		hangs.Store(true)
		time.Sleep(10 * time.Minute)
		s = status()
		testdb.ErrorIf(t, !s.Running || s.Took < 4*time.Minute || s.TooLong < 3*time.Minute || s.TooLong > s.Took-time.Minute, "it hangs: %+v", s)
		testdb.Equal(t, "events of what takes too long", len(a.events.of(TooLong)), 1)
		close(hang)
		closeAll(t, a)
		time.Sleep(15 * time.Minute)
		s = status()
		testdb.ErrorIf(t, s.Running || s.Overdue < 4*time.Minute || s.TooLong != 0, "it has stopped: %+v", s)
		c.mu.Lock()
		r := c.rows[nightly.String()]
		r.PausedUs = 1
		c.rows[nightly.String()] = r
		c.mu.Unlock()
		s = status()
		testdb.ErrorIf(t, s.Overdue != 0 || s.Paused.IsZero(), "it is paused: %+v", s)
	})
}

// TestScheduleDiffers proves that processes that run a job by other schedules are told, once
// each, and that the one that was started last says when the job is due.
func TestScheduleDiffers(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		a, b := c.node(InstanceName("old")), c.node(InstanceName("new"))
		a.runs(Every(time.Hour), nothing)
		time.Sleep(90 * time.Minute)
		b.runs(Every(24*time.Hour), nothing)
		time.Sleep(20 * time.Second)
		s := statusOf(t, a.Jobs, nightly)
		testdb.ErrorIf(t, s.Schedule != "Every(24h0m0s)" || s.Next.Sub(c.now()) < 10*time.Hour, "the table says %+v", s)
		time.Sleep(2 * time.Hour)
		for node, other := range map[*node]string{a: "Every(24h0m0s)", b: "Every(1h0m0s)"} {
			told := node.events.of(ScheduleDiffers)
			testdb.ErrorIf(t, len(told) != 1 || !strings.Contains(told[0].Err.Error(), other), "%s: told %v", node.instance, told)
		}
		says := func(n *node, schedule string, want jobrow.Health) {
			t.Helper()
			all := testdb.Got(n.ledger.list(t.Context()))(t)
			got := jobrow.Of(all[0].ListJobsRow, all[0].NowUs)
			testdb.ErrorIf(t, got != want || string(all[0].Schedule) != schedule, "the table has %s, %+v, want %s, %+v", all[0].Schedule, got, schedule, want)
		}
		says(a, "Every(1h0m0s)", jobrow.Health{Differs: "Every(24h0m0s)"})
		closeAll(t, a)
		time.Sleep(62 * time.Minute) // b runs it alone, by its schedule
		says(b, "Every(24h0m0s)", jobrow.Health{})
		closeAll(t, b)
	})
}

// TestFirstLook proves that Run goes on over a server that can't be reached at first, and returns what is permanent.
func TestFirstLook(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		n := c.node()
		n.ledger.down(errors.New("connection refused"))
		var j journal
		n.runs(Every(time.Minute), j.work(time.Second))
		time.Sleep(10 * time.Minute)
		told := n.events.of(RunError)
		testdb.ErrorIf(t, len(told) < 100, "%d errors were told", len(told))
		n.ledger.down(nil)
		time.Sleep(10 * time.Minute)
		closeAll(t, n)
		testdb.ErrorIf(t, len(j.done) < 8, "%d ticks", len(j.done))
		// In another process: the job that runs would meet the refusals too.
		n = c.node()
		for _, permanent := range []error{lease.ErrClosed, txlock.ErrPrivilege, errors.New("sql: database is closed")} {
			n.ledger.down(permanent)
			wants(t, "Run", n.Run(t.Context(), txlock.Named("other"), Every(time.Minute), nothing), permanent)
			n.ledger.down(nil)
		}
		closeAll(t, n)
	})
}

// TestLog proves that what needs a person is logged, an error that comes again and again once a
// minute, and nothing after Log(nil).
func TestLog(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		var logged strings.Builder
		n := c.node(Log(slog.New(slog.NewTextHandler(&logged, nil))), InstanceName("web"))
		n.runs(Every(time.Minute), func(context.Context, time.Time) error { return errors.New("broken") }, RetryAfter(time.Hour))
		time.Sleep(90 * time.Second)
		n.ledger.down(errors.New("cut off"))
		time.Sleep(5 * time.Minute)
		n.ledger.down(nil)
		closeAll(t, n)
		text := logged.String()
		failed := strings.Count(text, "level=ERROR msg=\"job: tick failed\" job=nightly instance=web")
		testdb.ErrorIf(t, failed < 1 || failed > 3, "%d failures in:\n%s", failed, text)
		retried := strings.Count(text, "level=WARN msg=\"job: Run retries\" job=nightly instance=web error=\"cut off\"")
		testdb.ErrorIf(t, retried < 4 || retried > 6, "%d errors in:\n%s", retried, text)
		silent := c.node(Log(nil))
		testdb.ErrorIf(t, silent.log.Enabled(t.Context(), slog.LevelError), "after Log(nil) errors are logged")
	})
}
