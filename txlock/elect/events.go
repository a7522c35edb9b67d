package elect

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// Observe sets a function that is called with the events of this process. It is called from
// several goroutines, and should return soon: until it returns from Elected or Ended nothing else
// happens here, and with Ending the term may last until the end of the grace period. The default
// is none.
func Observe(observer func(ctx context.Context, e Event)) Option {
	return func(o *options) { o.observer = observer }
}

// A Kind is the kind of an Event.
type Kind string

// The kinds of events.
const (
	Elected  Kind = "elected"   // this process leads
	Ending   Kind = "ending"    // the context of its function has ended because of Err
	Overdue  Kind = "overdue"   // that function still runs after the term: another process may lead
	Ended    Kind = "ended"     // the function returned Err, Took after it was called
	RunError Kind = "run_error" // Run got Err, and continues
)

// An Event is reported to the observer.
type Event struct {
	Kind     Kind
	Key      txlock.Key
	Instance string // the InstanceName of the process
	Token    uint64 // of the term, 0 for RunError while it doesn't lead
	Took     time.Duration
	Err      error
}

// Log sets the logger for the events of this process: that it leads, why its term ends, that its
// function is overdue, and the errors that Run retries, each of them at most once a minute. With
// nil nothing is logged. The default is slog.Default.
func Log(log *slog.Logger) Option {
	return func(o *options) { o.log = cmp.Or(log, slog.New(slog.DiscardHandler)) }
}

// tell logs an event, and calls the observer.
func (e *Election) tell(ctx context.Context, event Event) {
	event.Key, event.Instance = e.key, e.by
	e.record(ctx, event)
	if e.observer != nil {
		e.observer(ctx, event)
	}
}

func (e *Election) record(ctx context.Context, event Event) {
	level, text := slog.LevelInfo, ""
	switch event.Kind {
	case Elected:
		text = "elect: this process leads"
	case Ending:
		text = "elect: the term ends"
		if errors.Is(event.Err, txlock.ErrLost) || errors.Is(event.Err, ErrHung) {
			level = slog.LevelWarn
		}
	case Overdue:
		level, text = slog.LevelError, "elect: the function still runs after the term"
	case RunError:
		level, text = slog.LevelWarn, "elect: Run retries"
		if !e.seldom.Passes("", event.Err.Error()) {
			return
		}
	default:
		return // Run returns what the function did
	}
	attributes := []slog.Attr{slog.String("election", event.Key.String()), slog.String("instance", event.Instance), slog.Uint64("token", event.Token)}
	if event.Err != nil {
		attributes = append(attributes, slog.Any("error", event.Err))
	}
	cmp.Or(e.log, slog.Default()).LogAttrs(ctx, level, text, attributes...)
}
