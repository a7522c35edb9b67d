package scenario

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/report"
)

// held is what it costs to keep many leases.
var held = Scenario{
	Letter: "e",
	Title:  "Many leases are held",
	About: "One process holds 10 to 20,000 leases of different keys and keeps renewing them. lockstep's manager renews in the background. The others renew one lease after the other, at most 300 in a round. " +
		"The cost is the time until the server answers, measured by a proxy. The contenders run one after the other here, since each keeps renewing. " +
		"Locks that last as long as their connection, or forever (GET_LOCK, gocron-gorm-lock), are left out.",
	Metrics: []report.Metric{
		{Name: "renewal", Unit: "us a lease", About: "Bold: relative to the smallest number of leases.", Ratio: true},
		{Name: "statements", Unit: "for 1,000 renewals"},
		{Name: "memory", Unit: "bytes a lease", About: "On the heap of the process that holds them."},
	},
	Base:   smallest(heldCase(10)),
	Charts: []report.Chart{{Name: "renewal", Metric: "renewal", Lines: true, Log: true, XLabel: "leases held"}},
	Run:    runHeld,
}

func heldCase(n int64) string { return report.Number(float64(n)) + " leases" }

// atOnce is how many goroutines acquire and release.
const atOnce = 16

func runHeld(ctx context.Context, g *Ground) error {
	makers := g.makers(func(m contender.Maker) bool {
		return m.Leaser != nil && m.Renews && !m.OnlyHot
	})
	for _, n := range g.Effort.Held {
		for _, m := range makers {
			if err := runHeldOne(ctx, g, m, n); err != nil {
				return fmt.Errorf("%s, %s: %w", m.Name, heldCase(n), err)
			}
		}
	}
	return nil
}

func runHeldOne(ctx context.Context, g *Ground, m contender.Maker, n int64) (err error) {
	place := g.Link.Counted(g.Database, atOnce, 0)
	place.RenewEvery = g.Effort.RenewEvery
	l, err := m.Leaser(ctx, place)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	before := heap()
	all := make([]contender.Lease, n)
	err = each(n, func(i int64) (err error) {
		all[i], err = l.Acquire(ctx, i+1)
		return err
	})
	if err != nil {
		return err
	}
	if n >= 100 { // fewer are lost among what else is on the heap
		g.add(heldCase(n), m.Name, "memory", float64(heap()-before)/float64(n))
	}
	for range g.Effort.HeldRounds {
		if err := renewOnce(ctx, g, m.Name, l, all); err != nil {
			return err
		}
	}
	return each(n, func(i int64) error { return all[i].Release(ctx) })
}

// renewOnce renews, or sees that happen, and writes down what it cost.
func renewOnce(ctx context.Context, g *Ground, name string, l contender.Leaser, all []contender.Lease) error {
	const most = 300
	before := g.Link.Counts()
	var renewed int64
	if r, ok := l.(contender.Renewer); ok {
		began := r.Renewals()
		for deadline := time.Now().Add(time.Minute + 20*g.Effort.RenewEvery); renewed < int64(len(all)); renewed = r.Renewals() - began {
			if time.Now().After(deadline) {
				return fmt.Errorf("%d of %d leases have been renewed", renewed, len(all))
			}
			time.Sleep(10 * time.Millisecond)
		}
	} else {
		for _, lease := range all[:min(most, len(all))] {
			if err := lease.Renew(ctx); err != nil {
				return err
			}
			renewed++
		}
	}
	counts := g.Link.Counts().Minus(before)
	g.add(heldCase(int64(len(all))), name, "renewal", micro(counts.Answering)/float64(renewed))
	g.add(heldCase(int64(len(all))), name, "statements", 1000*float64(counts.Commands)/float64(renewed))
	return nil
}

// each calls f with 0 to n-1, in several goroutines.
func each(n int64, f func(i int64) error) error {
	var next atomic.Int64
	errs := make([]error, min(atOnce, n))
	var running sync.WaitGroup
	for w := range errs {
		running.Go(func() {
			for errs[w] == nil {
				i := next.Add(1) - 1
				if i >= n {
					return
				}
				errs[w] = f(i)
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// heap is what is in use after a collection.
func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
