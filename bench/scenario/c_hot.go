package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/crowd"
	"github.com/dca00107/lockstep/bench/report"
	"github.com/dca00107/lockstep/bench/stats"
)

// hot is one key that all workers lock.
var hot = Scenario{
	Letter: "c",
	Title:  "One hot key",
	About: "8 and 64 workers in several processes lock the same key, change one row and commit, in a loop. " +
		"A hand-over lasts from the holder's COMMIT or release to the grant of the next waiter. " +
		"A grant is out of order if another worker that asked more than 5 ms earlier is still waiting. At the end, 200 workers (40 in a quick run) wait for a key that is never released. " +
		"Contenders that never wait (ShedLock, gocron-gorm-lock, Optimistic) are left out.",
	Metrics: []report.Metric{
		{Name: "transactions", Unit: "a second", About: "Of all workers; bold: relative to the bare upsert.", Ratio: true},
		{Name: "hand-over p50", Unit: "us", About: "Bold: relative to the bare upsert.", Ratio: true},
		{Name: "hand-over p99", Unit: "us"},
		{Name: "out of order", Unit: "% of grants"},
		{Name: "passed at most", Unit: "waiters", About: "The most waiters that one grant passed although they had asked earlier."},
		{Name: "load of waiting", Unit: "statements a second", About: "On the database and Redis while all workers wait."},
	},
	Base: against(contender.BareUpsert),
	Charts: []report.Chart{
		{Name: "hand-over", Metric: "hand-over p50", Log: true},
		{Name: "transactions", Metric: "transactions", Log: true},
		{Name: "waiting", Metric: "load of waiting"},
	},
	Run: runHot,
}

func runHot(ctx context.Context, g *Ground) error {
	makers := g.makers(func(m contender.Maker) bool { return !m.Unlocked && !m.Impatient })
	const private = 600 // each run has another hot key, of which nothing is left over
	key := int64(private)
	next := func() int64 {
		key = private + (key-private)%(Keys-private) + 1
		return key
	}
	for _, workers := range []int{8, 64} {
		kase := fmt.Sprintf("%d workers", workers)
		for round := range g.Effort.HotRounds {
			for _, i := range stats.Turns(round, len(makers)) {
				if err := runHotOnce(ctx, g, makers[i], kase, workers, next()); err != nil {
					return fmt.Errorf("%s, %s: %w", makers[i].Name, kase, err)
				}
			}
		}
	}
	for _, m := range makers {
		if err := watchWaiters(ctx, g, m, next()); err != nil {
			return fmt.Errorf("%s, %d wait: %w", m.Name, g.Effort.Waiters, err)
		}
	}
	return nil
}

func runHotOnce(ctx context.Context, g *Ground, m contender.Maker, kase string, workers int, key int64) (err error) {
	place := g.Link.Place(g.Database, workers/g.Effort.Processes+1, Keys)
	c, err := crowd.Gather(ctx, crowd.Order{
		Contender: m.Name, Place: place, Workers: workers, First: 1, Key: key, For: g.Effort.HotSlice,
	}, g.Effort.Processes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Disperse()) }()
	if err := c.Go(); err != nil {
		return err
	}
	spans, err := c.Spans()
	if err != nil {
		return err
	}
	r := crowd.Analyse(spans)
	g.add(kase, m.Name, "transactions", float64(len(spans))/g.Effort.HotSlice.Seconds())
	// A round without a hand-over counts as NaN, so that the rounds of the contenders stay aligned.
	g.add(kase, m.Name, "hand-over p50", stats.Percentile(r.HandOvers, 50))
	g.add(kase, m.Name, "hand-over p99", stats.Percentile(r.HandOvers, 99))
	passing := slices.DeleteFunc(slices.Clone(r.Passed), func(passed float64) bool { return passed == 0 })
	g.add(kase, m.Name, "out of order", 100*float64(len(passing))/float64(len(r.Passed)))
	g.add(kase, m.Name, "passed at most", stats.Percentile(r.Passed, 100))
	return nil
}

// watchWaiters counts what the waiters send while the key is held.
func watchWaiters(ctx context.Context, g *Ground, m contender.Maker, key int64) (err error) {
	const settle = 200 * time.Millisecond
	place := g.Link.Counted(g.Database, g.Effort.Waiters/g.Effort.Processes+1, Keys)
	c, err := crowd.Gather(ctx, crowd.Order{
		Contender: m.Name, Place: place, Workers: g.Effort.Waiters, First: 1, Key: key, For: time.Hour,
	}, g.Effort.Processes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Disperse()) }()
	place.Conns = 1
	holder, err := m.OpenTransactor(ctx, place)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, holder.Close()) }()
	return holder.Transact(ctx, []int64{key}, func(tx contender.Tx) error {
		if err := update(ctx, key)(tx); err != nil {
			return err
		}
		if err := c.Go(); err != nil {
			return err
		}
		time.Sleep(settle + g.Link.RoundTrip)
		before, began := g.Link.Counts(), time.Now()
		time.Sleep(g.Effort.Waiting)
		counts := g.Link.Counts().Minus(before)
		g.add(fmt.Sprintf("%d wait", g.Effort.Waiters), m.Name, "load of waiting", float64(counts.Commands)/time.Since(began).Seconds())
		return c.Disperse()
	})
}
