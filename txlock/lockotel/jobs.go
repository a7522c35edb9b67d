package lockotel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/dca00107/lockstep/txlock/job"
)

// mostRead is how long the table of jobs is read at most for a collection.
const mostRead = 5 * time.Second

// WatchJobs measures what the table records about all jobs, including those of other programs, with
// one read per collection. Call stop before the pool of the jobs is closed. A table that can't be
// read is an error of the collection, and the gauges have no value then.
//
// Gauges by Job:
//
//   - lockstep.job.overdue, in seconds: how long a tick has been due that no process has started, 0
//     within the first minute.
//   - lockstep.job.too_long, in seconds: by how much the running tick exceeds the time that it
//     should take; its process may also have died, and no other one has restarted the tick.
//   - lockstep.job.failing, in {run}: how many runs in a row were not completed.
//   - lockstep.job.last_success, in seconds since 1970: the last scheduled time that was completed.
func (o *Observer) WatchJobs(jobs *job.Jobs) (stop func() error, err error) {
	if jobs == nil {
		return nil, errors.New("lockotel: WatchJobs needs a *job.Jobs, got nil")
	}
	var errs []error
	gauge := func(name, unit, description string) metric.Float64ObservableGauge {
		g, err := o.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return g
	}
	overdue := gauge("lockstep.job.overdue", "s", "For how long no process has begun a tick that is due.")
	tooLong := gauge("lockstep.job.too_long", "s", "By how much a tick takes longer than it should.")
	failing := gauge("lockstep.job.failing", "{run}", "How many runs in a row were not done.")
	success := gauge("lockstep.job.last_success", "s", "The last scheduled time that was done, in seconds since 1970.")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	watch, err := o.meter.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		ctx, cancel := context.WithTimeout(ctx, mostRead)
		defer cancel()
		all, err := jobs.List(ctx)
		if err != nil {
			return err
		}
		for name, s := range o.worst(all) {
			of := o.with(Job.String(name))
			to.ObserveFloat64(overdue, s.Overdue.Seconds(), of)
			to.ObserveFloat64(tooLong, s.TooLong.Seconds(), of)
			to.ObserveFloat64(failing, float64(s.Failing), of)
			if !s.Done.IsZero() {
				to.ObserveFloat64(success, float64(s.Done.UnixMicro())/1e6, of)
			}
		}
		return nil
	}, overdue, tooLong, failing, success)
	if err != nil {
		return nil, err
	}
	return watch.Unregister, nil
}

// worst returns the jobs by the values of their attribute, of which one may stand for many.
func (o *Observer) worst(all []job.Status) map[string]job.Status {
	by := make(map[string]job.Status)
	for _, s := range all {
		name := o.jobs.bounded(s.Key)
		if w, has := by[name]; has {
			s.Overdue, s.TooLong, s.Failing = max(s.Overdue, w.Overdue), max(s.TooLong, w.TooLong), max(s.Failing, w.Failing)
			if s.Done.IsZero() || !w.Done.IsZero() && w.Done.Before(s.Done) {
				s.Done = w.Done
			}
		}
		by[name] = s
	}
	return by
}
