package scenario

import (
	"context"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/report"
	"github.com/dca00107/lockstep/bench/stats"
)

// leases is acquiring and releasing, each goroutine a key of its own.
var leases = Scenario{
	Letter: "b",
	Title:  "A lease is acquired and released",
	About:  "1, 8 and 64 goroutines acquire and release in a loop, each its own key.",
	Metrics: []report.Metric{
		{Name: "pairs", Unit: "a second", About: "Of all goroutines; bold: relative to two bare upserts.", Ratio: true},
		{Name: "p50", Unit: "us", About: "An acquire and a release.", Ratio: true},
		{Name: "p99", Unit: "us"},
	},
	Base:   against(contender.BareUpserts),
	Charts: []report.Chart{{Name: "pairs", Metric: "pairs", Lines: true, XLabel: "goroutines"}, {Name: "p50", Metric: "p50", Case: "1 goroutine"}},
	Run:    runLeases,
}

func runLeases(ctx context.Context, g *Ground) error {
	for _, goroutines := range []int{1, 8, 64} {
		kase := fmt.Sprintf("%d goroutines", goroutines)
		if goroutines == 1 {
			kase = "1 goroutine"
		}
		if err := runLeasesOf(ctx, g, kase, goroutines); err != nil {
			return fmt.Errorf("%s: %w", kase, err)
		}
	}
	return nil
}

func runLeasesOf(ctx context.Context, g *Ground, kase string, goroutines int) (err error) {
	pair := func(l contender.Leaser) func(worker int) error {
		return func(worker int) error {
			held, err := l.Acquire(ctx, int64(worker)+1)
			if err != nil {
				return err
			}
			return held.Release(ctx)
		}
	}
	makers := g.makers(func(m contender.Maker) bool { return m.Leaser != nil && !m.OnlyHot })
	all, err := openAll(makers, func(m contender.Maker) (contender.Leaser, error) {
		l, err := m.Leaser(ctx, g.Link.Place(g.Database, goroutines, int64(goroutines)))
		if err != nil {
			return nil, err
		}
		_, _, err = load(goroutines, 1, pair(l)) // once, to warm up
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		return l, nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(all)) }()
	for round := range g.Effort.Rounds {
		for _, i := range stats.Turns(round, len(all)) {
			took, whole, err := load(goroutines, g.Effort.Slice, pair(all[i].it))
			if err != nil {
				return fmt.Errorf("%s: %w", all[i].Name, err)
			}
			g.add(kase, all[i].Name, "pairs", float64(len(took))/whole.Seconds())
			g.add(kase, all[i].Name, "p50", stats.Percentile(took, 50))
			g.add(kase, all[i].Name, "p99", stats.Percentile(took, 99))
		}
	}
	return nil
}
