package lockotel

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// calls are those that ask and are not answered yet, by what is measured of them.
type calls struct {
	mu    sync.Mutex
	since map[[2]string][]time.Time // by kind and family, the oldest first
}

func (c *calls) begin(kind, family string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since == nil {
		c.since = make(map[[2]string][]time.Time)
	}
	of := [2]string{kind, family}
	c.since[of] = append(c.since[of], time.Now())
}

// end ends the call that has taken so long: events don't say which one it was, but the one whose
// beginning is nearest has the same age.
func (c *calls) end(kind, family string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of, began := [2]string{kind, family}, time.Now().Add(-took)
	all := c.since[of]
	i, _ := slices.BinarySearchFunc(all, began, time.Time.Compare)
	if i > 0 && (i == len(all) || began.Sub(all[i-1]) < all[i].Sub(began)) {
		i--
	}
	if i < len(all) {
		c.since[of] = slices.Delete(all, i, i+1)
	}
}

// oldest observes the ages of the oldest calls.
func (o *Observer) oldest(_ context.Context, to metric.Float64Observer) error {
	o.calls.mu.Lock()
	defer o.calls.mu.Unlock()
	for of, all := range o.calls.since {
		age := 0.0
		if len(all) > 0 {
			age = time.Since(all[0]).Seconds()
		}
		to.Observe(age, o.with(Kind.String(of[0]), Family.String(of[1])))
	}
	return nil
}
