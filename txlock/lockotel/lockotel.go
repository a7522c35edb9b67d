package lockotel

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// The attributes of the measurements. There is none for the key, the owner or the token,
// which have too many values.
const (
	// Kind is "lease" for a lease and "lock" for a transaction lock.
	Kind = attribute.Key("lockstep.kind")
	// Family is the part of the key before its first colon: "order" for "order:42". A key
	// without a colon is its own family.
	Family = attribute.Key("lockstep.family")
	// Shared tells whether the lock is a shared one.
	Shared = attribute.Key("lockstep.shared")
	// Fair tells whether the wait was in the queue of all processes.
	Fair = attribute.Key("lockstep.fair")
	// Outcome is "granted" or "released" if all went well. Otherwise it is the name of a
	// sentinel, such as "busy", "wait_timeout" or "lost", "canceled" or
	// "deadline_exceeded" for the caller's context, or "error".
	Outcome = attribute.Key("lockstep.outcome")
)

// New returns an observer that records into these instruments of the meter:
//
//   - lockstep.acquire.duration, a histogram in seconds: the time from a call to its
//     grant or refusal, including the wait. Its count by Outcome is the number of grants
//     and refusals.
//   - lockstep.wait.duration, a histogram in seconds: how long calls have waited in this
//     process for a lock or lease of somebody else.
//   - lockstep.hold.duration, a histogram in seconds: how long a lock or lease was held
//     until it was released or lost. One that is released after its loss counts once.
//   - lockstep.renewal.left, a histogram in seconds: what was left of a lease at its
//     renewal, the Took of Observer.Renewed. Its count is the number of renewals.
//   - lockstep.losses, a counter in {lock}: locks and leases that were lost while they
//     were held. Look into each of them.
//   - lockstep.drops, a counter in {handle}: handles of leases that were not released and
//     are garbage. Each of them is a mistake of the program.
//
// All have the attributes Kind, Family and Shared; the first three have Outcome as well,
// and the wait has Fair. New returns the error of a meter that refuses an instrument.
func New(meter metric.Meter) (txlock.Observer, error) {
	if meter == nil {
		return nil, errors.New("lockotel: New needs a metric.Meter, got nil")
	}
	var errs []error
	seconds := func(name, description string) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
		return h
	}
	o := &observer{
		acquire: seconds("lockstep.acquire.duration", "How long a lock was asked for until it was granted or refused."),
		wait:    seconds("lockstep.wait.duration", "How long calls have waited for what somebody else held."),
		hold:    seconds("lockstep.hold.duration", "How long locks were held."),
		left:    seconds("lockstep.renewal.left", "What was left of a lease at its renewal."),
	}
	var err error
	o.losses, err = meter.Int64Counter("lockstep.losses", metric.WithUnit("{lock}"),
		metric.WithDescription("Locks that were lost while they were held."))
	errs = append(errs, err)
	o.drops, err = meter.Int64Counter("lockstep.drops", metric.WithUnit("{handle}"),
		metric.WithDescription("Handles of leases that were dropped without a release."))
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return o, nil
}

// bounds are the bucket boundaries of the histograms, in seconds: a lock takes a
// millisecond, a wait may take minutes, a lease is held for hours. OpenTelemetry's
// default is made for milliseconds.
var bounds = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}

type observer struct {
	acquire, wait, hold, left metric.Float64Histogram
	losses, drops             metric.Int64Counter
}

var _ txlock.Observer = (*observer)(nil)

func (o *observer) Granted(ctx context.Context, e txlock.Event) {
	record(ctx, o.acquire, e, Outcome.String("granted"))
}

func (o *observer) Refused(ctx context.Context, e txlock.Event) {
	record(ctx, o.acquire, e, Outcome.String(outcomeOf(e.Err, "error")))
}

func (o *observer) Waited(ctx context.Context, e txlock.Event) {
	record(ctx, o.wait, e, Outcome.String(outcomeOf(e.Err, "granted")), Fair.Bool(e.Fair))
}

func (o *observer) Renewed(ctx context.Context, e txlock.Event) { record(ctx, o.left, e) }

func (o *observer) Lost(ctx context.Context, e txlock.Event) {
	o.losses.Add(ctx, 1, metric.WithAttributes(attributes(e)...))
	record(ctx, o.hold, e, Outcome.String("lost"))
}

func (o *observer) Released(ctx context.Context, e txlock.Event) {
	if errors.Is(e.Err, txlock.ErrLost) {
		return // Lost has counted it
	}
	record(ctx, o.hold, e, Outcome.String(outcomeOf(e.Err, "released")))
}

func (o *observer) Dropped(ctx context.Context, e txlock.Event) {
	o.drops.Add(ctx, 1, metric.WithAttributes(attributes(e)...))
}

// record adds the duration of an event to a histogram.
func record(ctx context.Context, to metric.Float64Histogram, e txlock.Event, more ...attribute.KeyValue) {
	to.Record(ctx, max(e.Took, time.Duration(0)).Seconds(), metric.WithAttributes(append(attributes(e), more...)...))
}

// attributes returns those that all measurements have.
func attributes(e txlock.Event) []attribute.KeyValue {
	kind := "lock"
	if e.Lease {
		kind = "lease"
	}
	family, _, _ := strings.Cut(e.Key.String(), ":")
	all := make([]attribute.KeyValue, 0, 5)
	return append(all, Kind.String(kind), Family.String(family), Shared.Bool(e.Shared))
}

// outcomes are the names of errors. An error that matches several has the name of the
// first: what has ended comes before why it has ended.
var outcomes = []struct {
	err  error
	name string
}{
	{txlock.ErrLost, "lost"},
	{txlock.ErrTxDoomed, "tx_doomed"},
	{txlock.ErrDeadlock, "deadlock"},
	{txlock.ErrStaleSnapshot, "stale_snapshot"},
	{txlock.ErrConflict, "conflict"},
	{txlock.ErrWaitTimeout, "wait_timeout"},
	{txlock.ErrBusy, "busy"},
	{txlock.ErrNotHeld, "not_held"},
	{txlock.ErrTooManyHolds, "too_many_holds"},
	{txlock.ErrUpgrade, "upgrade"},
	{txlock.ErrNoTransaction, "no_transaction"},
	{txlock.ErrOpenRows, "open_rows"},
	{txlock.ErrReadOnly, "read_only"},
	{txlock.ErrPrivilege, "privilege"},
	{txlock.ErrSchema, "schema"},
	{txlock.ErrUnguarded, "unguarded"},
	{txlock.ErrNoQuorum, "no_quorum"},
	{txlock.ErrInvalidKey, "invalid_key"},
	{txlock.ErrInvalidOption, "invalid_option"},
	{txlock.ErrMismatch, "mismatch"},
	{txlock.ErrResult, "result"},
	{lease.ErrGuarded, "guarded"},
	{lease.ErrClosed, "closed"},
	{context.Canceled, "canceled"},
	{context.DeadlineExceeded, "deadline_exceeded"},
}

// outcomeOf returns the name of an error, or none if there is no error.
func outcomeOf(err error, none string) string {
	if err == nil {
		return none
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.name
		}
	}
	return "error"
}
