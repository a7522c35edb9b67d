package txlock

import (
	"context"
	"log/slog"
	"time"
)

// A SlogOption configures SlogObserver.
type SlogOption func(*slogObserver)

// SlogLevels sets the level of warnings, and that of all other events. The defaults are
// slog.LevelWarn and slog.LevelDebug.
func SlogLevels(warning, other slog.Level) SlogOption {
	return func(o *slogObserver) { o.warning, o.other = warning, other }
}

// SlogThreshold logs each grant, refusal and wait that took at least d, and each release of what
// was held for at least d, as a warning. With a SlowWait of the same d or less, a slow wait names
// the holder. The default, and a d that is not positive, is none.
func SlogThreshold(d time.Duration) SlogOption {
	return func(o *slogObserver) { o.threshold = d }
}

// SlogObserver logs the events of locks and leases: losses and dropped handles as warnings, all
// others on the level Debug, with the attributes key, token, owner, label, took, shared, again,
// fair, holder and error, as far as they are set. The holder behind a wait is a group of owner,
// label, session and since: see SlowWait and lease.SlowWait. It doesn't log Requested.
func SlogObserver(log *slog.Logger, options ...SlogOption) Observer {
	o := slogObserver{log: log, warning: slog.LevelWarn, other: slog.LevelDebug}
	for _, option := range options {
		option(&o)
	}
	return o.observe
}

type slogObserver struct {
	log            *slog.Logger
	warning, other slog.Level
	threshold      time.Duration
}

func (o slogObserver) observe(ctx context.Context, e Event) {
	level, what := o.other, kindOf(e)
	switch e.Kind {
	case Requested:
		return
	case Granted, Refused, Waited, Released:
		if o.threshold > 0 && e.Took >= o.threshold {
			level = o.warning
		}
	case Lost, Dropped:
		level = o.warning
	case Doomed, Retried:
		what = "transaction"
	}
	o.write(ctx, level, what+" "+string(e.Kind), e)
}

func kindOf(e Event) string {
	switch {
	case e.Lease:
		return "lease"
	case e.Once:
		return "once"
	}
	return "lock"
}

func (o slogObserver) write(ctx context.Context, level slog.Level, what string, e Event) {
	if !o.log.Enabled(ctx, level) {
		return
	}
	attributes := []slog.Attr{slog.String("key", e.Key.String())}
	if e.Took != 0 {
		attributes = append(attributes, slog.Duration("took", e.Took))
	}
	if e.Token > 0 {
		attributes = append(attributes, slog.Uint64("token", e.Token))
	}
	if e.Owner != "" {
		attributes = append(attributes, slog.String("owner", e.Owner))
	}
	if e.Label != "" {
		attributes = append(attributes, slog.String("label", e.Label))
	}
	if e.Shared {
		attributes = append(attributes, slog.Bool("shared", true))
	}
	if e.Again {
		attributes = append(attributes, slog.Bool("again", true))
	}
	if e.Fair {
		attributes = append(attributes, slog.Bool("fair", true))
	}
	if e.Held != nil {
		attributes = append(attributes, holderOf(*e.Held))
	}
	if e.Err != nil {
		attributes = append(attributes, slog.Any("error", e.Err))
	}
	o.log.LogAttrs(ctx, level, what, attributes...)
}

// holderOf is the attribute of who was in the way.
func holderOf(h HeldError) slog.Attr {
	var attributes []slog.Attr
	if h.Owner != "" {
		attributes = append(attributes, slog.String("owner", h.Owner))
	}
	if h.Label != "" {
		attributes = append(attributes, slog.String("label", h.Label))
	}
	if h.Session > 0 {
		attributes = append(attributes, slog.Uint64("session", h.Session))
	}
	if !h.Since.IsZero() {
		attributes = append(attributes, slog.Time("since", h.Since.UTC()))
	}
	return slog.Attr{Key: "holder", Value: slog.GroupValue(attributes...)}
}
