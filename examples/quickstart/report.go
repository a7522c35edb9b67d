package main

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// result is what became of the stock in one run.
type result struct {
	engine    string
	way       way
	stock     int64 // what there was to sell
	sold      int64 // what the buyers were told
	orders    int64 // that were written
	oversold  int64 // orders beyond the stock
	lost      int64 // updates: orders that the stock knows nothing of
	took      time.Duration
	latencies []time.Duration // of the purchases, sorted
}

// right tells whether exactly the stock was sold, and written down.
func (r result) right() bool {
	return r.sold == r.stock && r.orders == r.stock && r.oversold == 0 && r.lost == 0
}

// check returns an error where the run didn't show what it was to show.
func (r result) check() error {
	switch {
	case r.way.locked && !r.right():
		return fmt.Errorf("%s, %s: sold %d of %d, %d orders, %d oversold, %d lost updates: the lock did not hold",
			r.engine, r.way.name, r.sold, r.stock, r.orders, r.oversold, r.lost)
	case !r.way.locked && r.oversold == 0 && r.lost == 0:
		return fmt.Errorf("%s, %s: nothing was oversold or lost: the demo proves nothing on this machine", r.engine, r.way.name)
	}
	return nil
}

// perSecond is the number of purchases per second.
func (r result) perSecond() float64 { return float64(r.sold) / r.took.Seconds() }

// latency returns a quantile of the latencies, 0.5 for the median.
func (r result) latency(quantile float64) time.Duration {
	if len(r.latencies) == 0 {
		return 0
	}
	at := int(quantile * float64(len(r.latencies)))
	return r.latencies[min(at, len(r.latencies)-1)]
}

// report writes the table and what it says, and returns what doesn't hold.
func report(w io.Writer, cfg config, results []result) error {
	if _, err := fmt.Fprintf(w, "\n%d buyers at a time, %d products with %d items each: %d items to sell\n\n",
		cfg.buyers, cfg.products, cfg.items, cfg.stock()); err != nil {
		return err
	}
	lines := fmt.Sprintf("%-8s %-21s %6s %7s %9s %13s %12s %10s %10s\n",
		"engine", "run", "sold", "orders", "oversold", "lost updates", "purchases/s", "median", "p99")
	for _, r := range results {
		lines += fmt.Sprintf("%-8s %-21s %6d %7d %9d %13d %12.0f %10s %10s\n", r.engine, r.way.name,
			r.sold, r.orders, r.oversold, r.lost, r.perSecond(), milliseconds(r.latency(0.5)), milliseconds(r.latency(0.99)))
	}
	if _, err := io.WriteString(w, lines); err != nil {
		return err
	}

	var failed []error
	var oversold int64
	for _, r := range results {
		failed = append(failed, r.check())
		oversold += r.oversold
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nWithout a lock %d items were sold that the shop didn't have. With one, none.\n", oversold)
	return err
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}
