package recipes_test

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"

	"github.com/dca00107/lockstep/internal/test/jobtest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
)

// asynq: in every process, instead of its Scheduler.
func enqueueReport(client *asynq.Client) job.Func {
	return func(ctx context.Context, at time.Time) error {
		id := asynq.TaskID("report " + at.UTC().Format(time.RFC3339))
		_, err := client.EnqueueContext(ctx, asynq.NewTask("report", nil), id, asynq.Retention(24*time.Hour))
		if errors.Is(err, asynq.ErrTaskIDConflict) {
			return nil // a process enqueued it, and died before it marked the tick
		}
		return err
	}
}

func runAsynq(ctx context.Context, jobs *job.Jobs, client *asynq.Client) error {
	err := jobs.Run(ctx, txlock.Named("report"), job.Cron("0 2 * * *"), enqueueReport(client))
	return err
}

var _ = runAsynq // by docs/how-to/jobs.md

// TestAsynq proves that three processes enqueue the task of each second once, also where the process has
// died between its task and the mark.
func TestAsynq(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		redis := asynq.RedisClientOpt{Addr: miniredis.RunT(t).Addr()}
		client, inspector := asynq.NewClient(redis), asynq.NewInspector(redis)
		t.Cleanup(func() { testdb.Must(t, errors.Join(client.Close(), inspector.Close())) })
		tasks := func() int {
			if len(testdb.Got(inspector.Queues())(t)) == 0 {
				return 0
			}
			return testdb.Got(inspector.GetQueueInfo("default"))(t).Size
		}
		const least = 4
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		key, fn := txlock.Named("recipe:"+rand.Text()), enqueueReport(client)
		var begun jobtest.Ticks
		ended := make(chan error)
		for range 3 {
			jobs, _ := jobtest.Node(t, engine, job.Observe(begun.Observe))
			go func() {
				ended <- jobs.Run(ctx, key, job.Every(time.Second), func(ctx context.Context, at time.Time) error {
					return fn(context.WithoutCancel(ctx), at) // a tick that was begun before the end
				})
			}()
		}
		jobtest.Await(func() bool { return tasks() >= least })
		cancel()
		for range 3 {
			testdb.Wants(t, "Run", <-ended, context.Canceled)
		}
		begun.Check(t, least, tasks())

		jobs, _ := jobtest.Node(t, engine)
		at, died := time.Now().Add(-time.Hour), errors.New("the process has died")
		for _, ends := range []error{died, nil} {
			had := tasks()
			_, err := jobs.Tick(t.Context(), txlock.Named(key.String()+" once"), at, func(ctx context.Context, at time.Time) error {
				return errors.Join(fn(ctx, at), ends)
			})
			testdb.ErrorIf(t, !errors.Is(err, ends) || tasks() != had+1 && ends != nil || tasks() != had && ends == nil,
				"the tick has left %d tasks, where %d were: %v", tasks(), had, err)
		}
	})
}
