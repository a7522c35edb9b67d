package scenario

import (
	"context"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/report"
	"github.com/dca00107/lockstep/bench/stats"
)

// transaction is one lock inside a writing business transaction.
var transaction = Scenario{
	Letter: "a",
	Title:  "One lock inside a writing business transaction",
	About: "One worker begins, locks one of 10 keys, changes one row by an UPDATE and commits. Locks that aren't part of a transaction are acquired before it and released after it. " +
		"A proxy counts the round trips and statements, to the database and to Redis, including BEGIN and COMMIT.",
	Metrics: []report.Metric{
		{Name: "time", Unit: "us", About: "A whole transaction, the median of the rounds; bold: relative to the transaction without a lock.", Ratio: true},
		{Name: "added", Unit: "us", About: "The time minus that of the transaction without a lock."},
		{Name: "round trips", Unit: "a transaction"},
		{Name: "statements", Unit: "a transaction"},
	},
	Base: func(c report.Cell) report.Cell {
		base := contender.NoLock
		if m, err := contender.ByName(c.Contender); err == nil && m.Base != "" {
			base = m.Base
		}
		c.Contender = base
		return c
	},
	Charts: []report.Chart{{Name: "time", Metric: "time"}, {Name: "added", Metric: "added"}},
	Run:    runTransaction,
}

func runTransaction(ctx context.Context, g *Ground) (err error) {
	const keys = 10
	makers := g.makers(func(m contender.Maker) bool { return (m.Transactor != nil || !m.Unlocked) && !m.OnlyHot })
	all, err := openAll(makers, func(m contender.Maker) (contender.Transactor, error) {
		return warmed(ctx, m, g.Link.Place(g.Database, 1, keys), keys)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(all)) }()
	for round := range g.Effort.Rounds {
		medians := make(map[string]float64)
		for _, i := range stats.Turns(round, len(all)) {
			took, err := times(g.Effort.Operations, func(n int) error {
				key := int64(n%keys + 1)
				return all[i].it.Transact(ctx, []int64{key}, update(ctx, key))
			})
			if err != nil {
				return fmt.Errorf("%s: %w", all[i].Name, err)
			}
			medians[all[i].Name] = stats.Percentile(took, 50)
		}
		for _, o := range all {
			g.add("", o.Name, "time", medians[o.Name])
			base := g.Book.Base(report.Cell{Contender: o.Name}).Contender
			if without, measured := medians[base]; measured && base != o.Name {
				g.add("", o.Name, "added", medians[o.Name]-without)
			}
		}
	}
	return countTransaction(ctx, g, makers, keys)
}

// warmed opens a contender and uses each key several times, so that its connection has seen
// what it sends again and again.
func warmed(ctx context.Context, m contender.Maker, at contender.Place, keys int64) (contender.Transactor, error) {
	t, err := m.OpenTransactor(ctx, at)
	if err != nil {
		return nil, err
	}
	for n := range 3 * keys {
		if err := t.Transact(ctx, []int64{n%keys + 1}, update(ctx, n%keys+1)); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

// countTransaction counts what one transaction costs, through the proxy.
func countTransaction(ctx context.Context, g *Ground, makers []contender.Maker, keys int64) error {
	for _, m := range makers {
		t, err := warmed(ctx, m, g.Link.Counted(g.Database, 1, keys), keys)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		before := g.Link.Counts()
		for key := int64(1); key <= keys && err == nil; key++ {
			err = t.Transact(ctx, []int64{key}, update(ctx, key))
		}
		counts := g.Link.Counts().Minus(before)
		if err := errors.Join(err, t.Close()); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		g.add("", m.Name, "round trips", float64(counts.Trips)/float64(keys))
		g.add("", m.Name, "statements", float64(counts.Commands)/float64(keys))
	}
	return nil
}
