package job

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock"
)

// A Run is one of the last runs of a job.
type Run struct {
	At       time.Time     // the scheduled time
	Started  time.Time     // by the server's clock
	Took     time.Duration // until it ended; of an interrupted run, until the next one began
	Kind     Kind          // Done, Failed or Interrupted
	Instance string        // the process: see InstanceName
	Err      string        // its error, at most 200 bytes of it
}

// Runs returns the last runs of a job, the latest first: see KeepRuns. A run that was interrupted,
// for example by the crash of its process, is included after the next one has started. It returns
// txlock.ErrNotHeld for a job that has no row.
func (j *Jobs) Runs(ctx context.Context, key txlock.Key) ([]Run, error) {
	if _, err := j.Status(ctx, key); err != nil {
		return nil, err
	}
	kept, err := queries.JobRuns(ctx, inline(j.db), []byte(key.String()))
	if err != nil {
		return nil, fault.Explain(fmt.Sprintf("read the runs of job %q", key), err)
	}
	var runs []Run
	for _, r := range jobrow.Since(jobrow.Runs(kept.Runs), time.UnixMicro(kept.NowUs), j.age) {
		runs = append(runs, Run{r.At, r.Started, r.Took, Kind(r.Outcome), r.Instance, r.Err})
	}
	return runs, nil
}

// Pause pauses a job in all processes: no process starts a tick until Resume, except one that
// RunNow requests. A running tick continues. Processes notice within 10 seconds, and Tick and
// Claim return ErrPaused. The argument by, of at most 255 bytes, names who paused the job, or why.
// Pause reports whether it has paused the job: it doesn't change one that is paused already. It
// returns txlock.ErrNotHeld for a job that has no row, and txlock.ErrInvalidOption.
func (j *Jobs) Pause(ctx context.Context, key txlock.Key, by string) (paused bool, err error) {
	if n := len(by); n == 0 || n > maxInstance {
		return false, fmt.Errorf("%w: Pause: by has 1 to %d bytes, this one has %d", txlock.ErrInvalidOption, maxInstance, n)
	}
	return j.control(ctx, key, "pause", func(db gen.DBTX, name []byte) (int64, error) {
		return queries.PauseJob(ctx, db, gen.PauseJobParams{Name: name, PausedBy: []byte(by)})
	})
}

// Resume ends the pause of a job, and reports whether there was one. The scheduled times since Pause
// count as missed: see Missed. It returns txlock.ErrNotHeld for a job that has no row.
func (j *Jobs) Resume(ctx context.Context, key txlock.Key) (resumed bool, err error) {
	return j.control(ctx, key, "resume", func(db gen.DBTX, name []byte) (int64, error) {
		return queries.ResumeJob(ctx, db, name)
	})
}

// RunNow requests an extra run of a job of Run or RunTx: within 10 seconds one of its processes
// starts a tick whose scheduled time is that of the call, by the server's clock, even if the job
// is paused. A tick that is running, or missed ones under CatchUpAll, come first, but none that
// a pause has held back: these are skipped. A failed tick is not retried after the requested
// run, as after any other scheduled time. There is at most one requested run at a time: RunNow
// reports whether this call has requested it. It returns txlock.ErrNotHeld for a job that has no
// row.
func (j *Jobs) RunNow(ctx context.Context, key txlock.Key) (requested bool, err error) {
	return j.control(ctx, key, "request", func(db gen.DBTX, name []byte) (int64, error) {
		return queries.RequestJob(ctx, db, name)
	})
}

// control changes the row of a job, if it has one, and reports whether it was not so already.
func (j *Jobs) control(ctx context.Context, key txlock.Key, verb string, change func(db gen.DBTX, name []byte) (int64, error)) (bool, error) {
	if _, err := j.Status(ctx, key); err != nil {
		return false, err
	}
	changed, err := fault.Again(func() (bool, error) {
		return fault.Changed(verb)(change(inline(j.db), []byte(key.String())))
	})
	return changed, fault.Explain(fmt.Sprintf("%s job %q", verb, key), err)
}

// Purge deletes the rows of jobs that no process has started, and whose next tick was due, for at
// least the time unused, and returns their number. It skips paused jobs. A process that runs such
// a job nevertheless creates its row again, and may then repeat a tick that was done. So unused
// must be longer than any tick is retried or claimed, and at least an hour. Purge returns
// txlock.ErrInvalidOption and the errors of the driver.
func Purge(ctx context.Context, db *sql.DB, unused time.Duration) (int, error) {
	if ctx == nil || db == nil {
		return 0, errors.New("job: Purge needs a context and a *sql.DB, got nil")
	}
	if unused < time.Hour {
		return 0, fmt.Errorf("%w: Purge(%v): it must be at least an hour", txlock.ErrInvalidOption, unused)
	}
	rows, err := queries.ListJobs(ctx, rawsql.Scanning(inline(db)))
	if err != nil {
		return 0, fault.Explain("list jobs", err)
	}
	purged := 0
	for _, r := range rows {
		if r.PausedUs != 0 || max(r.TickUs, r.StartedUs, r.EndedUs, r.NextUs, r.RunUs) > r.NowUs-unused.Microseconds() {
			continue
		}
		deleted, err := fault.Changed("PurgeJob")(queries.PurgeJob(ctx, inline(db), gen.PurgeJobParams{
			Name: r.Name, Token: r.Token, TickUs: r.TickUs, NextUs: r.NextUs, RunUs: r.RunUs,
		}))
		if err != nil {
			return purged, fault.Explain(fmt.Sprintf("purge job %q", r.Name), err)
		}
		if deleted {
			purged++
		}
	}
	return purged, nil
}
