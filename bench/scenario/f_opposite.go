package scenario

import (
	"context"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/report"
	"github.com/dca00107/lockstep/bench/stats"
)

// opposite is two keys that are wanted in opposite orders.
var opposite = Scenario{
	Letter: "f",
	Title:  "Two keys in opposite orders",
	About: "8 workers lock the same two keys in one transaction, half of them in the opposite order, change both rows and commit. Run and lockgorm.Transaction acquire them by LockAll, which sorts them; " +
		"the others acquire one after the other, in the order given. A transaction that fails with a deadlock is retried. " +
		"A proxy counts the deadlocks, on loopback too. Locks that aren't part of a transaction are left out: they would wait until a TTL expires.",
	Metrics: []report.Metric{
		{Name: "transactions", Unit: "a second", About: "Of all workers; bold: relative to FOR UPDATE.", Ratio: true},
		{Name: "deadlocks", Unit: "for 1,000 transactions"},
		{Name: "p99", Unit: "us", About: "A whole transaction, including retries."},
	},
	Base:   against(contender.ForUpdate),
	Charts: []report.Chart{{Name: "transactions", Metric: "transactions"}, {Name: "deadlocks", Metric: "deadlocks"}},
	Run:    runOpposite,
}

func runOpposite(ctx context.Context, g *Ground) (err error) {
	const workers = 8
	makers := g.makers(func(m contender.Maker) bool { return m.Many && !m.Unlocked })
	all, err := openAll(makers, func(m contender.Maker) (contender.Transactor, error) {
		return warmed(ctx, m, g.Link.Counted(g.Database, workers, 2), 2)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(all)) }()
	for round := range g.Effort.Rounds {
		for _, i := range stats.Turns(round, len(all)) {
			before := g.Link.Counts()
			took, whole, err := load(workers, g.Effort.Slice, func(worker int) error { return changeBoth(ctx, all[i].it, worker) })
			if err != nil {
				return fmt.Errorf("%s: %w", all[i].Name, err)
			}
			deadlocks := g.Link.Counts().Minus(before).Deadlocks
			g.add("", all[i].Name, "transactions", float64(len(took))/whole.Seconds())
			g.add("", all[i].Name, "deadlocks", 1000*float64(deadlocks)/float64(len(took)))
			g.add("", all[i].Name, "p99", stats.Percentile(took, 99))
		}
	}
	return nil
}

// changeBoth is a transaction of a worker: every other one takes the keys in the opposite
// order.
func changeBoth(ctx context.Context, t contender.Transactor, worker int) error {
	order := []int64{1, 2}
	if worker%2 == 1 {
		order = []int64{2, 1}
	}
	return t.Transact(ctx, order, func(tx contender.Tx) error {
		if err := update(ctx, order[0])(tx); err != nil {
			return err
		}
		return update(ctx, order[1])(tx)
	})
}
