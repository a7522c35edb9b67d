package lockotel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	api "go.opentelemetry.io/otel/trace"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/lockotel"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var must = testdb.Must

// newObserver is an observer and what reads its measurements.
func newObserver(t *testing.T, options ...lockotel.Option) (*lockotel.Observer, *sdk.ManualReader) {
	t.Helper()
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	t.Cleanup(func() { must(t, provider.Shutdown(context.Background())) })
	o := testdb.Got(lockotel.New(provider.Meter("test"), options...))(t)
	return o, reader
}

// collect reads what was measured, by the name of its instrument.
func collect(t *testing.T, reader *sdk.ManualReader) map[string]metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	must(t, reader.Collect(context.Background(), &all))
	byName := make(map[string]metricdata.Metrics)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			byName[m.Name] = m
		}
	}
	return byName
}

// events tells of events, one after the other.
func events(all ...txlock.Event) func(ctx context.Context, o *lockotel.Observer) {
	return func(ctx context.Context, o *lockotel.Observer) {
		for _, e := range all {
			o.Observe(ctx, e)
		}
	}
}

// TestInstruments proves that every event goes into its instruments, in seconds, with
// the attributes that are promised and no others.
func TestInstruments(t *testing.T) {
	t.Parallel()
	lost, deadlock := fmt.Errorf("lease: %w: late", txlock.ErrLost), fmt.Errorf("%w: %w", txlock.ErrTxDoomed, txlock.ErrDeadlock)
	orders := txlock.NewFamily[int64]("order")
	type measured map[string]string // by instrument: the attributes, the count and the sum
	for name, test := range map[string]struct {
		tell func(ctx context.Context, o *lockotel.Observer)
		want measured
	}{
		"nothing": {events(), measured{}},
		"a lease granted twice": {events(
			txlock.Event{Kind: txlock.Granted, Lease: true, Key: orders.Key(1), Token: 7, Owner: "a", Took: 1500 * time.Millisecond},
			txlock.Event{Kind: txlock.Granted, Lease: true, Key: orders.Key(2), Token: 8, Owner: "b", Took: 500 * time.Millisecond},
		), measured{
			"lockstep.acquire.duration": "family=order kind=lease outcome=granted shared=false: 2, 2.000 s",
			"lockstep.held":             "family=order kind=lease: 2", "lockstep.waiting": "family=order kind=lease: -2",
		}},
		"a shared lock": {events(txlock.Event{Kind: txlock.Granted, Key: txlock.Named("report"), Shared: true, Took: time.Millisecond}), measured{
			"lockstep.acquire.duration": "family=report kind=lock outcome=granted shared=true: 1, 0.001 s",
			"lockstep.held":             "family=report kind=lock: 1", "lockstep.waiting": "family=report kind=lock: -1",
		}},
		"a call": {events(txlock.Event{Kind: txlock.Requested, Key: orders.Key(1), Shared: true}), measured{"lockstep.waiting": "family=order kind=lock: 1"}},
		"a lock that is held already": {events(
			txlock.Event{Kind: txlock.Requested, Key: orders.Key(1)},
			txlock.Event{Kind: txlock.Granted, Key: orders.Key(1), Again: true},
		), measured{
			"lockstep.acquire.duration": "family=order kind=lock outcome=granted shared=false: 1, 0.000 s",
			"lockstep.waiting":          "family=order kind=lock: 0",
		}},
		"a plain pool": {events(
			txlock.Event{Kind: txlock.Requested, Key: orders.Key(1), Plain: true}, txlock.Event{Kind: txlock.Granted, Key: orders.Key(1), Plain: true},
			txlock.Event{Kind: txlock.Requested, Key: orders.Key(2), Plain: true}, txlock.Event{Kind: txlock.Refused, Key: orders.Key(2), Plain: true, Err: txlock.ErrDeadlock},
		), measured{
			"lockstep.acquire.duration": "error.type=deadlock family=order kind=lock outcome=deadlock shared=false: 1, 0.000 s; family=order kind=lock outcome=granted shared=false: 1, 0.000 s",
			"lockstep.waiting":          "family=order kind=lock: 0", "lockstep.deadlocks": "family=order: 1", "lockstep.doomed": "error.type=deadlock family=order: 1",
		}},
		"a key of Once": {func(ctx context.Context, o *lockotel.Observer) {
			for _, again := range []bool{false, true, true} {
				o.Observe(ctx, txlock.Event{Kind: txlock.Requested, Once: true, Key: orders.Key(1)})
				o.Observe(ctx, txlock.Event{Kind: txlock.Granted, Once: true, Key: orders.Key(1), Again: again})
			}
		}, measured{
			"lockstep.acquire.duration": "family=order kind=once outcome=granted shared=false: 1, 0.000 s; family=order kind=once outcome=repeated shared=false: 2, 0.000 s",
			"lockstep.waiting":          "family=order kind=once: 0", "lockstep.once.repeats": "family=order kind=once shared=false: 2",
		}},
		"a stale snapshot": {events(
			txlock.Event{Kind: txlock.Requested, Key: orders.Key(1)},
			txlock.Event{Kind: txlock.Refused, Key: orders.Key(1), Err: fmt.Errorf("lock: %w", txlock.ErrStaleSnapshot)},
		), measured{
			"lockstep.acquire.duration": "error.type=stale_snapshot family=order kind=lock outcome=stale_snapshot shared=false: 1, 0.000 s",
			"lockstep.waiting":          "family=order kind=lock: 0", "lockstep.stale_snapshots": "family=order kind=lock shared=false: 1",
		}},
		"a deadlock": {events(txlock.Event{Kind: txlock.Doomed, Key: orders.Key(1), Err: deadlock}, txlock.Event{Kind: txlock.Retried, Key: orders.Key(1), Err: deadlock}), measured{
			"lockstep.deadlocks": "family=order: 1", "lockstep.doomed": "error.type=deadlock family=order: 1",
			"lockstep.retries": "error.type=deadlock family=order: 1",
		}},
		"a connection lost": {events(txlock.Event{Kind: txlock.Doomed, Err: txlock.ErrTxDoomed}), measured{"lockstep.doomed": "error.type=tx_doomed family=: 1"}},
		"ticks": {func(ctx context.Context, o *lockotel.Observer) {
			o.Job(ctx, job.Event{Kind: job.Began, Key: orders.Key(1)})
			o.Job(ctx, job.Event{Kind: job.Failed, Key: orders.Key(1), Took: time.Second, Err: lost})
		}, measured{
			"lockstep.ticks":         "job=order:1 outcome=began: 1; job=order:1 outcome=failed: 1",
			"lockstep.tick.duration": "error.type=lost job=order:1 outcome=failed: 1, 1.000 s",
		}},
		"an election": {func(ctx context.Context, o *lockotel.Observer) {
			for i, kind := range []elect.Kind{elect.Elected, elect.Ending, elect.Overdue, elect.Ended, elect.Elected, elect.RunError} {
				o.Election(ctx, elect.Event{Kind: kind, Key: txlock.Named("mail"), Token: uint64(7 + i/4)})
			}
			o.Election(ctx, elect.Event{Kind: elect.Elected, Key: txlock.Named("post"), Token: 8})
			o.Election(ctx, elect.Event{Kind: elect.Ended, Key: txlock.Named("post"), Token: 8})
		}, measured{"lockstep.leading": "election=mail: 1; election=post: 0"}},
		"a refusal": {events(txlock.Event{Kind: txlock.Refused, Lease: true, Key: txlock.Named("job:a:b"), Took: 2 * time.Second, Err: fmt.Errorf("acquire: %w", txlock.ErrWaitTimeout)}),
			measured{
				"lockstep.acquire.duration": "error.type=wait_timeout family=job kind=lease outcome=wait_timeout shared=false: 1, 2.000 s",
				"lockstep.waiting":          "family=job kind=lease: -1",
			}},
		"a wait": {events(txlock.Event{Kind: txlock.Waited, Lease: true, Key: orders.Key(1), Took: 250 * time.Millisecond}),
			measured{"lockstep.wait.duration": "fair=false family=order kind=lease outcome=granted shared=false: 1, 0.250 s"}},
		"a wait in the queue of all": {events(txlock.Event{Kind: txlock.Waited, Lease: true, Key: orders.Key(1), Took: 250 * time.Millisecond, Fair: true}),
			measured{"lockstep.wait.duration": "fair=true family=order kind=lease outcome=granted shared=false: 1, 0.250 s"}},
		"a wait in vain": {events(txlock.Event{Kind: txlock.Waited, Lease: true, Key: orders.Key(1), Took: 250 * time.Millisecond, Err: context.Canceled}),
			measured{"lockstep.wait.duration": "error.type=canceled fair=false family=order kind=lease outcome=canceled shared=false: 1, 0.250 s"}},
		"a renewal": {events(txlock.Event{Kind: txlock.Renewed, Lease: true, Key: orders.Key(1), Token: 7, Owner: "a", Took: 20 * time.Second}),
			measured{"lockstep.renewal.left": "family=order kind=lease shared=false: 1, 20.000 s"}},
		"a release": {events(txlock.Event{Kind: txlock.Released, Lease: true, Key: orders.Key(1), Took: time.Minute}),
			measured{"lockstep.hold.duration": "family=order kind=lease outcome=released shared=false: 1, 60.000 s", "lockstep.held": "family=order kind=lease: -1"}},
		"a release under a guard": {events(txlock.Event{Kind: txlock.Released, Lease: true, Key: orders.Key(1), Took: time.Minute, Err: fmt.Errorf("release: %w", lease.ErrGuarded)}),
			measured{"lockstep.hold.duration": "error.type=guarded family=order kind=lease outcome=guarded shared=false: 1, 60.000 s", "lockstep.held": "family=order kind=lease: -1"}},
		"a loss and the release afterwards": {events(
			txlock.Event{Kind: txlock.Lost, Lease: true, Key: orders.Key(1), Took: time.Second, Err: lost},
			txlock.Event{Kind: txlock.Released, Lease: true, Key: orders.Key(1), Took: time.Minute, Err: fmt.Errorf("%w: %w", txlock.ErrNotHeld, lost)},
		), measured{
			"lockstep.losses":        "family=order kind=lease shared=false: 1",
			"lockstep.hold.duration": "error.type=lost family=order kind=lease outcome=lost shared=false: 1, 1.000 s",
			"lockstep.held":          "family=order kind=lease: -1",
		}},
		"a handle that was dropped": {events(txlock.Event{Kind: txlock.Dropped, Lease: true, Key: orders.Key(1), Took: time.Minute}),
			measured{"lockstep.drops": "family=order kind=lease shared=false: 1"}},
		"a negative duration": {events(txlock.Event{Kind: txlock.Renewed, Lease: true, Key: orders.Key(1), Took: -time.Second}),
			measured{"lockstep.renewal.left": "family=order kind=lease shared=false: 1, 0.000 s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, reader := newObserver(t)
			test.tell(t.Context(), o)
			got := collect(t, reader)
			delete(got, "lockstep.waiting.oldest") // see TestOldest
			testdb.ErrorIf(t, len(got) != len(test.want), "%d instruments have measured, want %d", len(got), len(test.want))
			for instrument, want := range test.want {
				written := written(t, got[instrument])
				testdb.ErrorIf(t, written != want, "%s: %s\nwant %s", instrument, written, want)
			}
		})
	}
}

// written is what an instrument has measured, as TestInstruments writes it.
func written(t *testing.T, m metricdata.Metrics) string {
	t.Helper()
	testdb.ErrorIf(t, m.Description == "", "%s has no description", m.Name)
	var text []string
	switch data := m.Data.(type) {
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			text = append(text, fmt.Sprintf("%s: %d, %.3f %s", pairs(p.Attributes), p.Count, p.Sum, m.Unit))
			testdb.ErrorIf(t, p.Bounds[0] > 0.001 || p.Bounds[len(p.Bounds)-1] < 3600, "%s: the buckets %v are not for seconds", m.Name, p.Bounds)
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			text = append(text, fmt.Sprintf("%s: %.0f %s", pairs(p.Attributes), p.Value, m.Unit))
		}
	case metricdata.Sum[int64]:
		_, now := map[string]bool{"lockstep.held": true, "lockstep.waiting": true, "lockstep.leading": true}[m.Name]
		testdb.ErrorIf(t, !strings.HasPrefix(m.Unit, "{") || data.IsMonotonic == now, "%s: unit %s, monotonic %t", m.Name, m.Unit, data.IsMonotonic)
		for _, p := range data.DataPoints {
			text = append(text, fmt.Sprintf("%s: %d", pairs(p.Attributes), p.Value))
		}
	default:
		t.Errorf("%s: %T", m.Name, m.Data)
	}
	slices.Sort(text)
	return strings.Join(text, "; ")
}

// pairs writes attributes, sorted, without their common prefix.
func pairs(set attribute.Set) string {
	var all []string
	for _, kv := range set.ToSlice() {
		name, ours := strings.CutPrefix(string(kv.Key), "lockstep.")
		if !ours && name != "error.type" {
			name = "?" + name
		}
		all = append(all, fmt.Sprint(name, "=", kv.Value.AsInterface()))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestOutcomes proves that an error that matches several is told by the one that says most. That all have a
// name is docs.TestErrors'.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"none":              {nil, "error"},
		"unknown":           {errors.New("boom"), "error"},
		"deadline":          {fmt.Errorf("while it waited: %w", context.DeadlineExceeded), "deadline_exceeded"},
		"closed":            {lease.ErrClosed, "closed"},
		"lost and not held": {errors.Join(txlock.ErrNotHeld, txlock.ErrLost), "lost"},
		"doomed by a wait":  {errors.Join(txlock.ErrWaitTimeout, txlock.ErrTxDoomed), "tx_doomed"},
		"timeout of a try":  {errors.Join(txlock.ErrBusy, txlock.ErrWaitTimeout), "wait_timeout"},
		"cancelled wait":    {errors.Join(txlock.ErrBusy, context.Canceled), "canceled"},
		"doomed by its end": {errors.Join(txlock.ErrTxDoomed, context.DeadlineExceeded), "deadline_exceeded"},
		"unknown outcome":   {errors.Join(txlock.ErrUnknownOutcome, context.Canceled), "unknown_outcome"},
	} {
		o, reader := newObserver(t)
		o.Observe(t.Context(), txlock.Event{Kind: txlock.Refused, Key: txlock.Named("a"), Err: test.err})
		testdb.Says(t, name, written(t, collect(t, reader)["lockstep.acquire.duration"]), " outcome="+test.want+" ")
	}
}

// TestNamesAreBounded proves that any number of keys without a family makes no more than 200 values of an attribute
// and "_OTHER", from many goroutines, and that what is counted up and down is zero in the end.
func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	o, reader := newObserver(t)
	var all sync.WaitGroup
	for part := range 8 {
		all.Go(func() {
			for i := range 200 {
				key, ctx := txlock.Named(fmt.Sprintf("%d-%d", part%4, i)), t.Context()
				for _, kind := range []txlock.Kind{txlock.Requested, txlock.Granted, txlock.Waited, txlock.Renewed, txlock.Retried, txlock.Doomed, txlock.Released} {
					o.Observe(ctx, txlock.Event{Kind: kind, Key: key, Took: time.Millisecond})
				}
				o.Job(ctx, job.Event{Kind: job.Done, Key: key})
				o.Election(ctx, elect.Event{Kind: elect.Elected, Key: key, Token: uint64(part)})
				o.Election(ctx, elect.Event{Kind: elect.Ended, Key: key, Token: uint64(part)})
			}
		})
	}
	all.Wait()
	for name, m := range collect(t, reader) {
		values := make(map[string]map[string]bool) // of each attribute
		for point := range strings.SplitSeq(written(t, m), "; ") {
			attributes, value, _ := strings.Cut(point, ": ")
			sum, counts := m.Data.(metricdata.Sum[int64])
			testdb.ErrorIf(t, counts && !sum.IsMonotonic && value != "0", "%s is %s in the end for %s", name, value, attributes)
			for pair := range strings.FieldsSeq(attributes) {
				attribute, value, _ := strings.Cut(pair, "=")
				if values[attribute] == nil {
					values[attribute] = make(map[string]bool)
				}
				values[attribute][value] = true
			}
		}
		for _, attribute := range []string{"family", "job", "election"} {
			seen := values[attribute]
			testdb.ErrorIf(t, len(seen) > 0 && (len(seen) != 201 || !seen["_OTHER"]), "%s has %d values of %s", name, len(seen), attribute)
		}
	}
}

// TestSpans proves that each answer is a span of the caller's trace which has lasted as long as the call, with the
// attributes of the database, and with the key only if that was asked for.
func TestSpans(t *testing.T) {
	t.Parallel()
	key := txlock.Named("order:42")
	for name, test := range map[string]struct {
		kind    txlock.Kind
		e       txlock.Event
		options []lockotel.Option
		want    string
		status  codes.Code
	}{
		"a grant":   {txlock.Granted, txlock.Event{Lease: true}, nil, "lease order: ?db.system.name=mariadb family=order kind=lease outcome=granted shared=false", codes.Unset},
		"its key":   {txlock.Granted, txlock.Event{Shared: true}, []lockotel.Option{lockotel.WithKeys()}, "lock order: ?db.system.name=mariadb family=order key=order:42 kind=lock outcome=granted shared=true", codes.Unset},
		"a repeat":  {txlock.Granted, txlock.Event{Once: true, Again: true}, nil, "once order: ?db.system.name=mariadb family=order kind=once outcome=repeated shared=false", codes.Unset},
		"a timeout": {txlock.Refused, txlock.Event{Err: fmt.Errorf("lock order:42: %w", txlock.ErrWaitTimeout)}, nil, "lock order: ?db.system.name=mariadb error.type=wait_timeout family=order kind=lock outcome=wait_timeout shared=false", codes.Error},
		"a try":     {txlock.Refused, txlock.Event{Err: txlock.ErrBusy}, nil, "lock order: ?db.system.name=mariadb family=order kind=lock outcome=busy shared=false", codes.Unset},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := tracetest.NewSpanRecorder()
			provider := trace.NewTracerProvider(trace.WithSpanProcessor(seen))
			t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
			always := lockotel.WithAttributes(attribute.String("db.system.name", "mariadb"))
			o, reader := newObserver(t, append(test.options, lockotel.WithTracerProvider(nil), lockotel.WithTracerProvider(provider), always)...)
			ctx, caller := provider.Tracer("test").Start(t.Context(), "request")
			test.e.Kind, test.e.Key, test.e.Took = test.kind, key, time.Minute
			o.Observe(ctx, test.e)
			testdb.FatalIf(t, len(seen.Ended()) != 1, "%d spans", len(seen.Ended()))
			span := seen.Ended()[0]
			got := span.Name() + ": " + pairs(attribute.NewSet(span.Attributes()...))
			testdb.ErrorIf(t, got != test.want, "%s\nwant %s", got, test.want)
			took := span.EndTime().Sub(span.StartTime())
			testdb.ErrorIf(t, took != time.Minute || time.Since(span.EndTime()) > time.Minute, "from %v to %v", span.StartTime(), span.EndTime())
			testdb.ErrorIf(t, span.Status().Code != test.status || strings.Contains(span.Status().Description, "42") || len(span.Events()) > 0,
				"status %v, events %v", span.Status(), span.Events())
			testdb.ErrorIf(t, span.Parent().SpanID() != caller.SpanContext().SpanID() || span.SpanKind() != api.SpanKindClient,
				"a span %v of %v", span.SpanKind(), span.Parent())
			for name, m := range collect(t, reader) { // the metrics have them, too, and never the key
				all := written(t, m)
				testdb.ErrorIf(t, !strings.Contains(all, "?db.system.name=mariadb") || strings.Contains(all, "42"), "%s: %s", name, all)
			}
		})
	}
}

// TestOldest proves that the age of the oldest call that isn't answered yet is measured, however the others end.
func TestOldest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, reader := newObserver(t)
		began := make(map[int]time.Time)
		tell := func(kind txlock.Kind, n int) {
			e := txlock.Event{Kind: kind, Key: txlock.Named(fmt.Sprint("order:", n))}
			if kind == txlock.Requested {
				began[n] = time.Now()
			} else {
				e.Took = time.Since(began[n])
			}
			o.Observe(t.Context(), e)
		}
		oldest := func(want string) {
			t.Helper()
			got := written(t, collect(t, reader)["lockstep.waiting.oldest"])
			testdb.ErrorIf(t, got != want, "the oldest call is %s, want %s", got, want)
		}
		for n := range 4 {
			tell(txlock.Requested, n)
			time.Sleep(10 * time.Second)
		}
		o.Observe(t.Context(), txlock.Event{Kind: txlock.Requested, Key: txlock.Named("report"), Lease: true})
		time.Sleep(5 * time.Second)
		oldest("family=order kind=lock: 45 s; family=report kind=lease: 5 s")
		tell(txlock.Granted, 2) // not the oldest
		oldest("family=order kind=lock: 45 s; family=report kind=lease: 5 s")
		tell(txlock.Refused, 0)
		oldest("family=order kind=lock: 35 s; family=report kind=lease: 5 s")
		tell(txlock.Granted, 3)
		oldest("family=order kind=lock: 35 s; family=report kind=lease: 5 s")
		tell(txlock.Granted, 1)
		tell(txlock.Granted, 1) // of which nothing was told
		oldest("family=order kind=lock: 0 s; family=report kind=lease: 5 s")
	})
}

// TestWatchJobs proves that each collection reads what the table says of jobs, on both servers,
// until stop is called, that a table that can't be read is an error, and that nothing is watched of nil.
func TestWatchJobs(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db, ctx := testdb.Shared(t, engine).OpenLeases(t), t.Context()
		pool := db.Connect(t)
		m := testdb.Got(lease.NewManager(pool, lease.PurgeEvery(0, time.Hour)))(t)
		jobs := testdb.Got(job.New(pool, m, job.Log(nil)))(t)
		defer func() {
			must(t, errors.Join(jobs.Close(context.WithoutCancel(ctx)), m.Close(context.WithoutCancel(ctx))))
		}()
		at, broken := time.Unix(1_700_000_000, 0), errors.New("no paper")
		for i, tick := range []struct {
			job  string
			want error
		}{{"a", nil}, {"b", nil}, {"b", broken}, {"b", broken}} {
			_, err := jobs.Tick(ctx, txlock.Named(tick.job), at.Add(time.Duration(max(0, i-1))*time.Minute), func(context.Context, time.Time) error { return tick.want })
			testdb.Wants(t, "Tick", err, tick.want)
		}
		c := testdb.Got(jobs.Claim(ctx, txlock.Named("c"), at))(t)
		const ago = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED) - 1000000 * "
		db.Exec(t, "UPDATE lockstep_jobs SET next_us = "+ago+"7200 WHERE name = 'a'")
		db.Exec(t, "UPDATE lockstep_jobs SET limit_us = 1, started_us = "+ago+"3600 WHERE name = 'c'")

		o, reader := newObserver(t)
		if _, err := o.WatchJobs(nil); err == nil {
			t.Error("nil is watched")
		}
		stop := testdb.Got(o.WatchJobs(jobs))(t)
		all := collect(t, reader)
		about := func(name string, want ...string) {
			t.Helper()
			got := written(t, all["lockstep.job."+name])
			for _, part := range want {
				testdb.ErrorIf(t, !strings.Contains(got+";", part), "%s: %s, want %s", name, got, part)
			}
		}
		about("overdue", "job=a: 72", "job=b: 0 s;", "job=c: 0 s;")
		about("too_long", "job=a: 0 s;", "job=c: 36")
		about("failing", "job=a: 0 {run};", "job=b: 2 {run};")
		about("last_success", "job=a: 1700000000 s", "job=b: 1700000000 s")
		got := written(t, all["lockstep.job.last_success"])
		testdb.ErrorIf(t, strings.Contains(got, "job=c"), "a job that was never done has a last success: %s", got)
		must(t, c.Finish(ctx, nil))
		db.Exec(t, "DROP TABLE lockstep_jobs")
		err := reader.Collect(ctx, new(metricdata.ResourceMetrics))
		testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), txlock.ErrSchema.Error()), "without the table it returns %v", err)
		must(t, stop())
		all = collect(t, reader)
		testdb.ErrorIf(t, all["lockstep.job.overdue"].Data != nil, "after stop there is %v", all["lockstep.job.overdue"])
	})
}
