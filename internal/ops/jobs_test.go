package ops_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
)

// TestJobs proves what is said of jobs: which run, died, fail, are overdue, paused or take too
// long, and their last runs, as the programs and the server have them.
func TestJobs(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, ctx := db.Connect(t), t.Context()
		jobs, err := job.New(pool, manager(t, pool), job.InstanceName("web-1:4711"))
		must(t, err)
		defer func() { must(t, jobs.Close(ctx)) }()
		room := ops.New(db.Admin())
		none, err := room.Jobs(ctx)
		must(t, err)
		if len(none.Jobs) != 0 || none.Jobs == nil || time.Since(none.Now).Abs() > time.Minute {
			t.Errorf("there are %v", none)
		}

		begun := time.Now()
		at := begun.Add(-time.Hour)
		done := func(context.Context, time.Time) error { return nil }
		broken := errors.New("no paper")
		for name, fn := range map[string]job.Func{"done": done, "died": done, "late": done, "paused": done, "fails": done} {
			_, err := jobs.Tick(ctx, txlock.Named(name), at, fn)
			must(t, err)
		}
		for i := range 2 {
			if _, err := jobs.Tick(ctx, txlock.Named("fails"), at.Add(time.Duration(i+1)*time.Minute), func(context.Context, time.Time) error { return broken }); !errors.Is(err, broken) {
				t.Fatal(err)
			}
		}
		c, err := jobs.Claim(ctx, txlock.Named("runs"), at)
		must(t, err)
		must(t, second(jobs.Pause(ctx, txlock.Named("paused"), "alice")))
		must(t, second(jobs.RunNow(ctx, txlock.Named("paused"))))
		const ago = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED) - 1000000 * "
		for _, change := range []string{
			"ended_us = 0, done_us = done_us - 1, next_us = " + ago + "3600 WHERE name = 'died'",
			"next_us = " + ago + "7200, schedule = 'Every(1h0m0s)', differs = 'Every(2h0m0s)', differs_us = " + ago + "5 WHERE name = 'late'",
			"next_us = " + ago + "7200 WHERE name = 'paused'",
			"started_us = " + ago + "600, limit_us = 60000000 WHERE name = 'runs'",
		} {
			db.Exec(t, "UPDATE lockstep_jobs SET "+change)
		}

		all, err := room.Jobs(ctx)
		must(t, err)
		if off := time.Since(all.Now); off < -time.Minute || off > time.Minute {
			t.Errorf("they were read at %v", all.Now)
		}
		minutes := func(s ops.Seconds) int { return int(s / 60) }
		var said []string
		for _, j := range all.Jobs {
			said = append(said, fmt.Sprint(j.Key, " ", j.State, " overdue ", minutes(j.Overdue), " long ", minutes(j.TooLong), " failing ", j.Failing, " took ", j.Took.Known(), " ", j.Err, j.PausedBy, j.Differs))
		}
		want := []string{
			"died died overdue 60 long 0 failing 0 took false ",
			"done done overdue 0 long 0 failing 0 took true ",
			"fails failed overdue 0 long 0 failing 2 took true no paper",
			"late done overdue 120 long 0 failing 0 took true Every(2h0m0s)",
			"paused paused overdue 0 long 0 failing 0 took true alice",
			"runs running overdue 0 long 9 failing 0 took true ",
		}
		if got := strings.Join(said, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("the jobs are\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
		trouble := func(name string) string {
			j, has := all.Job(name)
			if !has {
				t.Fatalf("there is no %q", name)
			}
			return strings.Join(j.Trouble(all.Now), "; ")
		}
		for name, want := range map[string]string{
			"died": "overdue by 1h0m; its process died or stopped", "fails": "failed 2 times in ", "late": "overdue by 2h0m; another process runs it by Every(2h0m0s)",
			"paused": "paused by alice ", "runs": "too long by 9m",
		} {
			if got := trouble(name); !strings.Contains(got, want) {
				t.Errorf("of %s is said %q", name, got)
			}
		}
		if got := trouble("done"); got != "" {
			t.Errorf("of a job that is done is said %q", got)
		}
		if j, _ := all.Job("paused"); j.Requested.IsZero() || j.Paused.IsZero() {
			t.Errorf("the paused job is %+v", j)
		}
		if j, _ := all.Job("runs"); j.Took < 590 || j.Took > 900 {
			t.Errorf("the job that runs has taken %v", j.Took)
		}
		if j, has := all.Job("nobody"); has {
			t.Errorf("there is %v", j)
		}

		runs, err := room.JobRuns(ctx, "fails")
		must(t, err)
		if len(runs) != 3 || runs[0].Outcome != "failed" || runs[0].Err != "no paper" || runs[2].Outcome != "done" || runs[0].By != "web-1:4711" || runs[0].Started.IsZero() {
			t.Errorf("the runs are %+v", runs)
		}
		if none, err := room.JobRuns(ctx, "nobody"); err != nil || len(none) != 0 || none == nil {
			t.Errorf("the runs of no job are %v, %v", none, err)
		}
		must(t, c.Finish(ctx, nil))
		all, err = room.Jobs(ctx)
		must(t, err)
		if j, _ := all.Job("runs"); j.State != "done" || j.TooLong != 0 {
			t.Errorf("the job that has run is %+v", j)
		}
	})
}

// TestSchedules proves that it is said of a job that two versions of a program run it by other
// schedules, as long as both do.
func TestSchedules(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, ctx := db.Connect(t), t.Context()
		jobs, err := job.New(pool, manager(t, pool), job.Log(nil))
		must(t, err)
		ended := make(chan error, 2)
		for _, schedule := range []job.Schedule{job.Every(time.Second), job.Every(2 * time.Second)} {
			go func() {
				ended <- jobs.Run(ctx, txlock.Named("nightly"), schedule, func(context.Context, time.Time) error { return nil })
			}()
		}
		room := ops.New(db.Admin())
		var j ops.JobStatus
		if !testdb.Await(time.Minute, func() bool {
			all, err := room.Jobs(ctx)
			must(t, err)
			j, _ = all.Job("nightly")
			both := j.Schedule + j.Differs
			return both == "Every(1s)Every(2s)" || both == "Every(2s)Every(1s)"
		}) {
			t.Fatalf("the job is %+v", j)
		}
		must(t, jobs.Close(ctx))
		must(t, errors.Join(<-ended, <-ended))
	})
}
