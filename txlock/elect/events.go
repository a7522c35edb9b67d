package elect

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// Observe sets a function that is told of what this process does. It is called from
// several goroutines, and should return soon: while it is told of Elected or Ended nothing
// else happens here, and of Ending the term may last until the end of the grace. The
// default is none.
func Observe(observer func(ctx context.Context, e Event)) Option {
	return func(o *options) { o.observer = observer }
}

// Kind says what an Event reports.
type Kind string

// The kinds of events.
const (
	Elected  Kind = "elected"   // this process leads
	Ending   Kind = "ending"    // the context of its function has ended, for the reason Err
	Overdue  Kind = "overdue"   // that function still runs after the term: another process may lead
	Ended    Kind = "ended"     // the function has returned Err, Took after it was called
	RunError Kind = "run_error" // Run has met Err, and continues
)

// Event is what an observer is told.
type Event struct {
	Kind     Kind
	Key      txlock.Key
	Instance string // the InstanceName of the process
	Token    uint64 // of the term, 0 for RunError while it doesn't lead
	Took     time.Duration
	Err      error
}

// Log sets where the events of this process are logged: that it leads, why its term ends, that
// its function is overdue, and the errors that Run retries, each of them at most once a
// minute. Nil logs nothing. The default is slog.Default.
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
		level, text = slog.LevelError, "elect: the function goes on after the term"
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
