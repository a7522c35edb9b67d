package lockotel_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	api "go.opentelemetry.io/otel/trace"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lockotel"
)

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
			if span.Status().Code != test.status || strings.Contains(span.Status().Description, "42") || len(span.Events()) > 0 {
				t.Errorf("status %v, events %v", span.Status(), span.Events())
			}
			if span.Parent().SpanID() != caller.SpanContext().SpanID() || span.SpanKind() != api.SpanKindClient {
				t.Errorf("a span %v of %v", span.SpanKind(), span.Parent())
			}
			for name, m := range collect(t, reader) { // the metrics have them, too, and never the key
				all := written(t, m)
				testdb.ErrorIf(t, !strings.Contains(all, "?db.system.name=mariadb") || strings.Contains(all, "42"), "%s: %s", name, all)
			}
		})
	}
}
