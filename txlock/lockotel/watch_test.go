package lockotel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestOldest proves that the age of the oldest call that isn't answered yet is measured, however the others end.
func TestOldest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, reader := newObserver(t)
		began := make(map[int]time.Time)
		tell := func(kind txlock.Kind, n int) {
			e := txlock.Event{Kind: kind, Key: txlock.Named(fmt.Sprint("order:", n))}
			if kind == txlock.Requested {
				began[n] = time.Now()
			} else {
				e.Took = time.Since(began[n])
			}
			o.Observe(t.Context(), e)
		}
		oldest := func(want string) {
			t.Helper()
			got := written(t, collect(t, reader)["lockstep.waiting.oldest"])
			testdb.ErrorIf(t, got != want, "the oldest call is %s, want %s", got, want)
		}
		for n := range 4 {
			tell(txlock.Requested, n)
			time.Sleep(10 * time.Second)
		}
		o.Observe(t.Context(), txlock.Event{Kind: txlock.Requested, Key: txlock.Named("report"), Lease: true})
		time.Sleep(5 * time.Second)
		oldest("family=order kind=lock: 45 s; family=report kind=lease: 5 s")
		tell(txlock.Granted, 2) // not the oldest
		oldest("family=order kind=lock: 45 s; family=report kind=lease: 5 s")
		tell(txlock.Refused, 0)
		oldest("family=order kind=lock: 35 s; family=report kind=lease: 5 s")
		tell(txlock.Granted, 3)
		oldest("family=order kind=lock: 35 s; family=report kind=lease: 5 s")
		tell(txlock.Granted, 1)
		tell(txlock.Granted, 1) // of which nothing was told
		oldest("family=order kind=lock: 0 s; family=report kind=lease: 5 s")
	})
}

// TestWatchJobs proves that each collection reads what the table says of jobs, on both servers,
// until stop is called, that a table that can't be read is an error, and that nothing is watched of nil.
func TestWatchJobs(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db, ctx := testdb.Shared(t, engine).OpenLeases(t), t.Context()
			pool := db.Connect(t)
			m := leasetest.Got(lease.NewManager(pool, lease.PurgeEvery(0, time.Hour)))(t)
			jobs := leasetest.Got(job.New(pool, m, job.Log(nil)))(t)
			defer func() {
				must(t, errors.Join(jobs.Close(context.WithoutCancel(ctx)), m.Close(context.WithoutCancel(ctx))))
			}()
			at, broken := time.Unix(1_700_000_000, 0), errors.New("no paper")
			for i, tick := range []struct {
				job  string
				want error
			}{{"a", nil}, {"b", nil}, {"b", broken}, {"b", broken}} {
				_, err := jobs.Tick(ctx, txlock.Named(tick.job), at.Add(time.Duration(max(0, i-1))*time.Minute), func(context.Context, time.Time) error { return tick.want })
				leasetest.Wants(t, "Tick", err, tick.want)
			}
			c := leasetest.Got(jobs.Claim(ctx, txlock.Named("c"), at))(t)
			const ago = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED) - 1000000 * "
			db.Exec(t, "UPDATE lockstep_jobs SET next_us = "+ago+"7200 WHERE name = 'a'")
			db.Exec(t, "UPDATE lockstep_jobs SET limit_us = 1, started_us = "+ago+"3600 WHERE name = 'c'")

			o, reader := newObserver(t)
			if _, err := o.WatchJobs(nil); err == nil {
				t.Error("nil is watched")
			}
			stop := leasetest.Got(o.WatchJobs(jobs))(t)
			all := collect(t, reader)
			about := func(name string, want ...string) {
				t.Helper()
				got := written(t, all["lockstep.job."+name])
				for _, part := range want {
					testdb.ErrorIf(t, !strings.Contains(got+";", part), "%s: %s, want %s", name, got, part)
				}
			}
			about("overdue", "job=a: 72", "job=b: 0 s;", "job=c: 0 s;")
			about("too_long", "job=a: 0 s;", "job=c: 36")
			about("failing", "job=a: 0 {run};", "job=b: 2 {run};")
			about("last_success", "job=a: 1700000000 s", "job=b: 1700000000 s")
			got := written(t, all["lockstep.job.last_success"])
			testdb.ErrorIf(t, strings.Contains(got, "job=c"), "a job that was never done has a last success: %s", got)
			must(t, c.Finish(ctx, nil))
			db.Exec(t, "DROP TABLE lockstep_jobs")
			err := reader.Collect(ctx, new(metricdata.ResourceMetrics))
			testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), txlock.ErrSchema.Error()), "without the table it returns %v", err)
			must(t, stop())
			all = collect(t, reader)
			testdb.ErrorIf(t, all["lockstep.job.overdue"].Data != nil, "after stop there is %v", all["lockstep.job.overdue"])
		})
	}
}
