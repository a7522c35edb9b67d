package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/txlock"
)

// A Status is the state of a job in the table. Times are those of the server's clock; the zero
// Time means none.
type Status struct {
	Key       string
	Tick      time.Time     // the scheduled time that was started last
	Done      time.Time     // the one that was done last
	Running   bool          // the tick was started and has not ended: it runs, or its process has crashed
	Instance  string        // the process that started it: see InstanceName
	Token     uint64        // of its lease
	Started   time.Time     // when
	Ended     time.Time     // when it has ended, if it has
	Took      time.Duration // of the last tick that ended, or of the running one, so far
	Failures  int           // of this tick, so far
	Err       string        // the last error of the tick; empty when it was done
	Next      time.Time     // when the next tick is due, of a job of Run and RunTx
	Schedule  string        // the schedule of such a job
	Overdue   time.Duration // how long a tick has been due that no process started, if more than a minute
	TooLong   time.Duration // by how much the running tick is too long: see WarnAfter
	Failing   int           // how many of the last runs in a row were not completed, of those that KeepRuns keeps; in Status, of this tick
	Paused    time.Time     // since when it is paused
	PausedBy  string        // by whom
	Requested time.Time     // a run that RunNow requested and no process has started
}

// Status returns the state of a job, and txlock.ErrNotHeld for one that has no row.
func (j *Jobs) Status(ctx context.Context, key txlock.Key) (Status, error) {
	if ctx == nil {
		return Status{}, errors.New("job: Status needs a context, got nil")
	}
	if err := key.Validate(); err != nil {
		return Status{}, err
	}
	r, _, err := j.ledger.look(ctx, key.String())
	if err != nil {
		return Status{}, err
	}
	if !r.known {
		return Status{}, fmt.Errorf("job %q: %w: no process has started or run it", key, txlock.ErrNotHeld)
	}
	return r.status(), nil
}

// List returns the state of all jobs, ordered by their keys.
func (j *Jobs) List(ctx context.Context) ([]Status, error) {
	if ctx == nil {
		return nil, errors.New("job: List needs a context, got nil")
	}
	rows, err := j.ledger.list(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Status, len(rows))
	for i, r := range rows {
		all[i] = r.status()
	}
	return all, nil
}

func (r row) status() Status {
	health := jobrow.Of(r.ListJobsRow, r.NowUs)
	s := Status{
		Key: string(r.Name), Token: r.Token, Failures: int(r.Failures), Took: time.Duration(r.TookUs) * time.Microsecond,
		Done: at(r.DoneUs), Started: at(r.StartedUs), Ended: at(r.EndedUs), Next: at(r.NextUs),
		Schedule: string(r.Schedule), Overdue: health.Overdue, TooLong: health.TooLong, Failing: health.Failing,
		Paused: at(r.PausedUs), PausedBy: string(r.PausedBy),
	}
	if r.Token > 0 { // else it was made and never begun
		s.Tick, s.Instance, s.Running = at(r.TickUs), string(r.Owner), health.Running
	} else {
		s.Done = time.Time{}
	}
	if health.Running {
		s.Took = health.For
	}
	if r.RunUs > r.TickUs {
		s.Requested = at(r.RunUs)
	}
	if text := string(r.Error); text != "-" {
		s.Err = text
	}
	return s
}

// at is a time of the table, which has 0 and less for none.
func at(us int64) time.Time {
	if us <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}
