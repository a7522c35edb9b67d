package lockotel_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lockotel"
)

// TestNamesAreBounded proves that keys without a family, of which there may be any number, make
// no more than 200 values of an attribute and "_OTHER", from many goroutines, and that what is
// counted up and down is zero in the end for each of them.
func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	o, collect := newObserver(t)
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
	for name, m := range collect() {
		values := make(map[attribute.Key]map[string]bool)
		note := func(set attribute.Set) {
			for _, kv := range set.ToSlice() {
				if values[kv.Key] == nil {
					values[kv.Key] = make(map[string]bool)
				}
				values[kv.Key][kv.Value.Emit()] = true
			}
		}
		switch data := m.Data.(type) {
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				note(p.Attributes)
			}
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				note(p.Attributes)
				if !data.IsMonotonic && p.Value != 0 {
					t.Errorf("%s is %d in the end for %v", name, p.Value, p.Attributes.ToSlice())
				}
			}
		}
		for _, attribute := range []attribute.Key{lockotel.Family, lockotel.Job, lockotel.Election} {
			if seen := values[attribute]; seen != nil && (len(seen) != 201 || !seen["_OTHER"]) {
				t.Errorf("%s has %d values of %s", name, len(seen), attribute)
			}
		}
	}
}
