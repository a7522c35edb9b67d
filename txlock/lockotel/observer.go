package lockotel

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
)

// An Observer measures the events that its methods are called with: Observe for locks and leases,
// Job for jobs, Election for elections. Use New to make one. Its methods may be called from any
// goroutine.
type Observer struct {
	always []attribute.KeyValue
	tracer trace.Tracer // nil for no spans
	keys   bool

	held, waiting, leading            metric.Int64UpDownCounter
	acquire, wait, hold, left, tick   metric.Float64Histogram
	losses, drops, stale, repeats     metric.Int64Counter
	doomed, deadlocks, retries, ticks metric.Int64Counter
	terms                             sync.Map // those that lead
	families, jobs, elections         names
	calls                             calls
	meter                             metric.Meter
}

// Observe records an event of a lock or lease: txlock.Observe(o.Observe).
func (o *Observer) Observe(ctx context.Context, e txlock.Event) {
	switch e.Kind {
	case txlock.Requested:
		o.calls.begin(kindOf(e), o.families.bounded(family(e)))
		o.waiting.Add(ctx, 1, o.with(o.familyOf(e)...))
	case txlock.Granted:
		o.granted(ctx, e)
	case txlock.Refused:
		o.refused(ctx, e)
	case txlock.Waited:
		o.record(ctx, o.wait, e.Took, append(result(o.all(e), e.Err, outcomeOf(e.Err, "granted")), Fair.Bool(e.Fair))...)
	case txlock.Renewed:
		o.record(ctx, o.left, e.Took, o.all(e)...)
	case txlock.Lost:
		outcome := "lost"
		if ended := outcomeOf(e.Err, ""); !e.Lease && (ended == "canceled" || ended == "deadline_exceeded") {
			outcome = ended
		} else {
			o.losses.Add(ctx, 1, o.with(o.all(e)...))
		}
		o.ended(ctx, e, outcome)
	case txlock.Released:
		if !errors.Is(e.Err, txlock.ErrLost) { // Lost has counted it
			o.ended(ctx, e, outcomeOf(e.Err, "released"))
		}
	case txlock.Dropped:
		o.drops.Add(ctx, 1, o.with(o.all(e)...))
	case txlock.Doomed:
		o.aborted(ctx, e)
	case txlock.Retried:
		o.retries.Add(ctx, 1, o.with(Family.String(o.families.bounded(family(e))), ErrorType.String(typeOf(e.Err))))
	}
}

func (o *Observer) granted(ctx context.Context, e txlock.Event) {
	outcome := "granted"
	if e.Once && e.Again {
		outcome = "repeated"
		o.repeats.Add(ctx, 1, o.with(o.all(e)...))
	}
	if !e.Again && !e.Once && !e.Plain {
		o.held.Add(ctx, 1, o.with(o.familyOf(e)...))
	}
	o.answered(ctx, e, outcome)
}

func (o *Observer) refused(ctx context.Context, e txlock.Event) {
	if errors.Is(e.Err, txlock.ErrStaleSnapshot) {
		o.stale.Add(ctx, 1, o.with(o.all(e)...))
	}
	if e.Plain && errors.Is(e.Err, txlock.ErrDeadlock) {
		o.aborted(ctx, e) // an unguarded pool reports no Doomed
	}
	o.answered(ctx, e, outcomeOf(e.Err, "error"))
}

// answered records the end of a call.
func (o *Observer) answered(ctx context.Context, e txlock.Event, outcome string) {
	o.calls.end(kindOf(e), o.families.bounded(family(e)), e.Took)
	o.waiting.Add(ctx, -1, o.with(o.familyOf(e)...))
	o.record(ctx, o.acquire, e.Took, result(o.all(e), e.Err, outcome)...)
	o.span(ctx, e, outcome)
}

// span makes a span of a call that has ended now.
func (o *Observer) span(ctx context.Context, e txlock.Event, outcome string) {
	if o.tracer == nil {
		return
	}
	end := time.Now()
	_, span := o.tracer.Start(ctx, kindOf(e)+" "+o.families.bounded(family(e)), trace.WithTimestamp(end.Add(-e.Took)),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(o.always...))
	defer span.End(trace.WithTimestamp(end))
	span.SetAttributes(result(o.all(e), e.Err, outcome)...)
	if o.keys {
		span.SetAttributes(Key.String(e.Key.String()))
	}
	if e.Err != nil && outcome != "busy" {
		span.SetStatus(codes.Error, outcome) // the text of the error has the key
	}
}

func (o *Observer) ended(ctx context.Context, e txlock.Event, outcome string) {
	o.held.Add(ctx, -1, o.with(o.familyOf(e)...))
	o.record(ctx, o.hold, e.Took, result(o.all(e), e.Err, outcome)...)
}

// result adds the outcome, and the type of an error. A busy key isn't an error.
func result(attributes []attribute.KeyValue, err error, outcome string) []attribute.KeyValue {
	attributes = append(attributes, Outcome.String(outcome))
	if err != nil && outcome != "busy" {
		attributes = append(attributes, ErrorType.String(outcome))
	}
	return attributes
}

// aborted counts a transaction that had ended before its Commit or Rollback.
func (o *Observer) aborted(ctx context.Context, e txlock.Event) {
	o.doomed.Add(ctx, 1, o.with(Family.String(o.families.bounded(family(e))), ErrorType.String(typeOf(e.Err))))
	if errors.Is(e.Err, txlock.ErrDeadlock) {
		o.deadlocks.Add(ctx, 1, o.with(Family.String(o.families.bounded(family(e)))))
	}
}

// Job records what becomes of the ticks of jobs: job.Observe(o.Job).
func (o *Observer) Job(ctx context.Context, e job.Event) {
	attributes := []attribute.KeyValue{Job.String(o.jobs.bounded(e.Key.String())), Outcome.String(string(e.Kind))}
	o.ticks.Add(ctx, 1, o.with(attributes...))
	if e.Kind == job.Done || e.Kind == job.Failed || e.Kind == job.Interrupted {
		if e.Err != nil {
			attributes = append(attributes, ErrorType.String(typeOf(e.Err)))
		}
		o.record(ctx, o.tick, e.Took, attributes...)
	}
}

// Election records whether this process leads: elect.Observe(o.Election). It counts as not leading
// from the beginning of its function's grace period.
func (o *Observer) Election(ctx context.Context, e elect.Event) {
	type term struct {
		key   txlock.Key
		token uint64
	}
	attributes := o.with(Election.String(o.elections.bounded(e.Key.String())))
	switch e.Kind {
	case elect.Elected:
		o.terms.Store(term{e.Key, e.Token}, nil)
		o.leading.Add(ctx, 1, attributes)
	case elect.Ending, elect.Ended:
		if _, leads := o.terms.LoadAndDelete(term{e.Key, e.Token}); leads {
			o.leading.Add(ctx, -1, attributes)
		}
	}
}

// record adds a duration to a histogram.
func (o *Observer) record(ctx context.Context, to metric.Float64Histogram, took time.Duration, attributes ...attribute.KeyValue) {
	to.Record(ctx, max(took, 0).Seconds(), o.with(attributes...))
}

// with adds the attributes of WithAttributes.
func (o *Observer) with(attributes ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(append(attributes, o.always...)...)
}

// all are the attributes of an event, and familyOf those that don't change while a lock is
// held.
func (o *Observer) all(e txlock.Event) []attribute.KeyValue {
	return append(o.familyOf(e), Shared.Bool(e.Shared))
}

func (o *Observer) familyOf(e txlock.Event) []attribute.KeyValue {
	return append(make([]attribute.KeyValue, 0, 6), Kind.String(kindOf(e)), Family.String(o.families.bounded(family(e))))
}

func family(e txlock.Event) string {
	family, _, _ := strings.Cut(e.Key.String(), ":")
	return family
}

// mostNames is how many values an attribute has at most, besides other.
const mostNames = 200

// other is the value of an attribute for all names above mostNames.
const other = "_OTHER"

// names are the values of an attribute. A name keeps its value, so that what is added to an
// up-down counter is taken off the same one.
type names struct {
	known sync.Map
	mu    sync.Mutex
	n     int
}

// bounded returns the name, or other if there are too many.
func (n *names) bounded(name string) string {
	if _, known := n.known.Load(name); known {
		return name
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.known.Load(name); !known {
		if n.n == mostNames {
			return other
		}
		n.known.Store(name, nil)
		n.n++
	}
	return name
}

func kindOf(e txlock.Event) string {
	switch {
	case e.Lease:
		return "lease"
	case e.Once:
		return "once"
	}
	return "lock"
}
