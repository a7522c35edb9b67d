package job

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/dca00107/lockstep/internal/procname"
	"github.com/dca00107/lockstep/txlock"
)

// A Kind is the kind of an Event.
type Kind string

// The kinds of events.
const (
	Began           Kind = "began"            // this process has started a tick
	Done            Kind = "done"             // it completed the tick, in Took
	Failed          Kind = "failed"           // the tick failed with Err, after Took
	Interrupted     Kind = "interrupted"      // the tick was interrupted with Err, after Took; it is retried
	TooLong         Kind = "too_long"         // the tick takes longer than WarnAfter allows, so far Took
	Skipped         Kind = "skipped"          // it has started At, so no process will run those from From to before At
	ScheduleDiffers Kind = "schedule_differs" // another process runs the job by another schedule, which Err names
	RunError        Kind = "run_error"        // Run got Err, and continues
)

// An Event is reported to the observer.
type Event struct {
	Kind     Kind
	Key      txlock.Key
	At       time.Time // the scheduled time
	Instance string    // the InstanceName of the process
	From     time.Time // of Skipped: the first time that was skipped, or in which a process crashed
	Took     time.Duration
	Err      error
}

// Observe sets a function that is called with each event. It is called from several
// goroutines, and should return soon. The default is none.
func Observe(observer func(ctx context.Context, e Event)) Option {
	return func(o *options) { o.observer = observer }
}

// Log sets the logger for events that need a person: ticks that fail, are interrupted or take too
// long, skipped times, schedules that differ, and the errors that Run retries, each of them at
// most once a minute. With nil nothing is logged. The default is slog.Default.
func Log(log *slog.Logger) Option {
	return func(o *options) { o.log = cmp.Or(log, slog.New(slog.DiscardHandler)) }
}

// tell logs an event, and calls the observer.
func (j *Jobs) tell(ctx context.Context, e Event) {
	e.Instance = j.instance
	j.record(ctx, e)
	if j.observer != nil {
		here := function{goroutine: procname.Goroutine()} // which Close asks for
		if _, within := j.functions.LoadOrStore(here, here); !within {
			defer j.functions.Delete(here)
		}
		j.observer(ctx, e)
	}
}

// texts are the messages of the events that are logged.
var texts = map[Kind]string{
	Failed:          "job: tick failed",
	Interrupted:     "job: tick interrupted",
	TooLong:         "job: tick takes too long",
	Skipped:         "job: ticks skipped",
	ScheduleDiffers: "job: schedule differs between processes",
	RunError:        "job: Run retries",
}

func (j *Jobs) record(ctx context.Context, e Event) {
	text, logged := texts[e.Kind]
	if !logged || e.Kind == RunError && !j.seldom.Passes(e.Key.String(), e.Err.Error()) {
		return
	}
	level := slog.LevelWarn
	if e.Kind == Failed {
		level = slog.LevelError
	}
	attributes := []slog.Attr{slog.String("job", e.Key.String()), slog.String("instance", e.Instance)}
	if !e.At.IsZero() {
		attributes = append(attributes, slog.Time("at", e.At))
	}
	if !e.From.IsZero() {
		attributes = append(attributes, slog.Time("from", e.From))
	}
	if e.Took > 0 {
		attributes = append(attributes, slog.Duration("took", e.Took))
	}
	if e.Err != nil {
		attributes = append(attributes, slog.Any("error", e.Err))
	}
	cmp.Or(j.log, slog.Default()).LogAttrs(ctx, level, text, attributes...)
}
