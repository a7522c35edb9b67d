package lockotel

import (
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// The attributes of the measurements.
const (
	// Kind is "lease" for a lease, "lock" for a transaction lock and "once" for a key of
	// Once.
	Kind = attribute.Key("lockstep.kind")
	// Family is the part of the key before its first colon: "order" for "order:42". A key without a
	// colon is its own family, so give keys with many values a family. The first 200 families have
	// their names, and all others are "_OTHER", as are jobs and elections above that number.
	Family = attribute.Key("lockstep.family")
	// Shared reports whether the lock is a shared one.
	Shared = attribute.Key("lockstep.shared")
	// Fair reports whether the wait was in the queue of all processes.
	Fair = attribute.Key("lockstep.fair")
	// Outcome is "granted", "released", "repeated" or "done" if all went well. Otherwise it
	// is the name of a sentinel, such as "busy", "wait_timeout" or "lost", "canceled" or
	// "deadline_exceeded" for the caller's context, or "error"; of a tick, it is the
	// job.Kind.
	Outcome = attribute.Key("lockstep.outcome")
	// ErrorType is why a transaction was doomed or is retried: "deadlock", "stale_snapshot" or
	// "conflict", or else the name of the error as Outcome has it. Durations of calls, waits and
	// holds, and of ticks, that ended in an error also have it, except for "busy".
	ErrorType = attribute.Key("error.type")
	// Job is the key of a job.
	Job = attribute.Key("lockstep.job")
	// Election is the key of an election.
	Election = attribute.Key("lockstep.election")
	// Key is the key, of spans only, and only with WithKeys.
	Key = attribute.Key("lockstep.key")
)

// Option is an option of New.
type Option func(*Observer)

// WithAttributes adds attributes to all measurements and spans: those that OpenTelemetry's
// conventions define for the database, such as db.system.name, db.namespace and server.address. The
// default is none.
func WithAttributes(attributes ...attribute.KeyValue) Option {
	return func(o *Observer) { o.always = append(o.always, attributes...) }
}

// WithTracerProvider creates a span for each call that is granted or refused. Its name is the Kind
// and the Family, such as "lock order". Its status is an error if the call was refused, unless the
// key was busy. The default is to create none.
func WithTracerProvider(provider trace.TracerProvider) Option {
	return func(o *Observer) {
		if provider != nil {
			o.tracer = provider.Tracer(scope)
		}
	}
}

// WithKeys gives spans the attribute Key. The default is that they have only the Family.
func WithKeys() Option { return func(o *Observer) { o.keys = true } }

// scope is the name of the instrumentation.
const scope = "github.com/dca00107/lockstep/txlock/lockotel"

// New returns an observer that records into these instruments of the meter.
//
// The current state, as up-down counters by Kind and Family:
//
//   - lockstep.held, in {lock}: leases, and locks of guarded pools, that are held.
//   - lockstep.waiting, in {call}: calls that have requested a lock and not returned yet.
//   - lockstep.waiting.oldest, a gauge in seconds: how long the oldest of them has been waiting.
//
// Histograms in seconds, by Kind, Family and Shared:
//
//   - lockstep.acquire.duration: the time from a call to its grant or refusal, including
//     the wait. Its count by Outcome is the number of grants and refusals.
//   - lockstep.wait.duration: how long calls of this process have waited for a lease that another
//     holder had, by Outcome and Fair.
//   - lockstep.hold.duration: how long a lock or lease was held until it was released or
//     lost, by Outcome. One that is released after its loss counts once.
//   - lockstep.renewal.left: what was left of a lease at its renewal. Its count is the
//     number of renewals.
//
// Counters by Kind, Family and Shared:
//
//   - lockstep.losses, in {lock}: locks and leases that were lost while they were held, but not by
//     the end of the caller's context. Investigate each of them.
//   - lockstep.drops, in {handle}: handles of leases that were garbage collected without a release.
//     Each of them is a bug in the program.
//   - lockstep.stale_snapshots, in {lock}: locks that were refused because the transaction
//     has read before.
//   - lockstep.once.repeats, in {call}: calls of Once that were not the first.
//
// Counters of transactions, by the Family of the key that the transaction requested last, or of the
// first one that was given to Run:
//
//   - lockstep.doomed, in {transaction}: those that ended before their Commit or Rollback, by
//     ErrorType. On an unguarded pool only a deadlock of a lock is seen.
//   - lockstep.deadlocks, in {transaction}: those among them that were the victim of a deadlock.
//   - lockstep.retries, in {transaction}: those that Run, Transaction and the like have
//     retried, by ErrorType.
//
// Of jobs and elections, by Job or Election:
//
//   - lockstep.ticks, a counter in {tick}: what has become of ticks, by Outcome.
//   - lockstep.tick.duration, a histogram in seconds: how long they took, by Outcome.
//   - lockstep.leading, an up-down counter in {term}: 1 while this process leads.
//
// WatchJobs adds what the table records about all jobs: overdue, too long, failing, last success.
//
// New returns the error of a meter that refuses an instrument.
func New(meter metric.Meter, options ...Option) (*Observer, error) {
	if meter == nil {
		return nil, errors.New("lockotel: New needs a metric.Meter, got nil")
	}
	o := &Observer{meter: meter}
	for _, option := range options {
		option(o)
	}
	o.always = slices.Clip(o.always)
	var errs []error
	seconds := func(name, description string) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
		return h
	}
	count := func(name, unit, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	now := func(name, unit, description string) metric.Int64UpDownCounter {
		c, err := meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	o.held = now("lockstep.held", "{lock}", "Locks that are held.")
	o.waiting = now("lockstep.waiting", "{call}", "Calls that ask for a lock and are not answered yet.")
	_, err := meter.Float64ObservableGauge("lockstep.waiting.oldest", metric.WithUnit("s"),
		metric.WithDescription("For how long the oldest call that is not answered yet has asked."), metric.WithFloat64Callback(o.oldest))
	errs = append(errs, err)
	o.acquire = seconds("lockstep.acquire.duration", "How long a lock was asked for until it was granted or refused.")
	o.wait = seconds("lockstep.wait.duration", "How long calls waited for a lock that another holder had.")
	o.hold = seconds("lockstep.hold.duration", "How long locks were held.")
	o.left = seconds("lockstep.renewal.left", "What was left of a lease at its renewal.")
	o.losses = count("lockstep.losses", "{lock}", "Locks that were lost while they were held.")
	o.drops = count("lockstep.drops", "{handle}", "Handles of leases that were dropped without a release.")
	o.stale = count("lockstep.stale_snapshots", "{lock}", "Locks that were refused because of what was read before.")
	o.repeats = count("lockstep.once.repeats", "{call}", "Calls of Once that were not the first.")
	o.doomed = count("lockstep.doomed", "{transaction}", "Transactions that were over before their end.")
	o.deadlocks = count("lockstep.deadlocks", "{transaction}", "Transactions that were the victim of a deadlock.")
	o.retries = count("lockstep.retries", "{transaction}", "Transactions that were retried.")
	o.ticks = count("lockstep.ticks", "{tick}", "What has become of the ticks of jobs.")
	o.tick = seconds("lockstep.tick.duration", "How long the ticks of jobs took.")
	o.leading = now("lockstep.leading", "{term}", "Whether this process leads.")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return o, nil
}

// bounds are the bucket boundaries of the histograms, in seconds: a lock takes a
// millisecond, a wait may take minutes, a lease is held for hours. OpenTelemetry's
// default is made for milliseconds.
var bounds = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}
