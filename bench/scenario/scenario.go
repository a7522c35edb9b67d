// Package scenario has what is measured. Each scenario is one file.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/report"
	"github.com/dca00107/lockstep/bench/site"
)

// Scenario is what is measured of all contenders.
type Scenario struct {
	Letter  string
	Title   string
	About   string
	Metrics []report.Metric
	Base    func(report.Cell) report.Cell
	Charts  []report.Chart
	Run     func(ctx context.Context, g *Ground) error
}

// All are the scenarios.
func All() []Scenario {
	return []Scenario{transaction, leases, hot, keys, held, opposite, sale, claim}
}

// Effort is how much is measured.
type Effort struct {
	Rounds     int
	Operations int           // of (a) and (d), in each round
	Slice      time.Duration // of (b) and (f) to (h), in each round
	HotRounds  int           // of (c)
	HotSlice   time.Duration // of (c), in each round
	Waiters    int           // of (c)
	Waiting    time.Duration // how long waiters are watched
	Processes  int           // of (c)
	Sizes      []int64       // of (d)
	Held       []int64       // of (e)
	HeldRounds int           // of (e)
	RenewEvery time.Duration // of (e)
}

// Whole is what the published figures take.
var Whole = Effort{
	Rounds: 9, Operations: 100, Slice: 300 * time.Millisecond,
	HotRounds: 3, HotSlice: 2 * time.Second, Waiters: 200, Waiting: 3 * time.Second, Processes: 4,
	Sizes: []int64{10, 1_000, 100_000, 1_000_000},
	Held:  []int64{10, 1_000, 20_000}, HeldRounds: 5, RenewEvery: 3 * time.Second,
}

// Quick shows within two minutes that all is well.
var Quick = Effort{
	Rounds: 3, Operations: 10, Slice: 40 * time.Millisecond,
	HotRounds: 1, HotSlice: 200 * time.Millisecond, Waiters: 40, Waiting: 200 * time.Millisecond, Processes: 2,
	Sizes: []int64{10, 10_000},
	Held:  []int64{10, 200}, HeldRounds: 3, RenewEvery: 200 * time.Millisecond,
}

// Keys is how many rows the stock has, and more than any scenario has workers.
const Keys = 1024

// Ground is where a scenario is run: a database on one server, over one link.
type Ground struct {
	Server   *site.Server
	Database *site.Database
	Link     *site.Link
	Book     *report.Book
	Effort   Effort
	Wants    func(contender string) bool
}

// add writes a figure down.
func (g *Ground) add(kase, contender, metric string, value float64) {
	g.Book.Add(report.Cell{Engine: g.Server.Engine, Link: g.Link.Name(), Case: kase, Contender: contender, Metric: metric}, value)
}

// makers returns the contenders that are wanted and that can do what is asked.
func (g *Ground) makers(can func(m contender.Maker) bool) []contender.Maker {
	return slices.DeleteFunc(contender.All(), func(m contender.Maker) bool { return !g.Wants(m.Name) || !can(m) })
}

// open is a contender that is open.
type open[C interface{ Close() error }] struct {
	contender.Maker
	it C
}

// openAll opens contenders, and closes all of them where one can't be opened.
func openAll[C interface{ Close() error }](makers []contender.Maker, one func(m contender.Maker) (C, error)) ([]open[C], error) {
	var all []open[C]
	for _, m := range makers {
		it, err := one(m)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", m.Name, err), closeAll(all))
		}
		all = append(all, open[C]{m, it})
	}
	return all, nil
}

func closeAll[C interface{ Close() error }](all []open[C]) error {
	var errs []error
	for _, o := range all {
		errs = append(errs, o.it.Close())
	}
	return errors.Join(errs...)
}

// update is the business of a transaction: it writes one row.
func update(ctx context.Context, key int64) func(tx contender.Tx) error {
	return func(tx contender.Tx) error {
		return tx.Exec(ctx, "UPDATE "+contender.Stock+" SET n = n + 1 WHERE id = ?", key)
	}
}

// times runs something several times and returns how long each took, in microseconds.
func times(n int, f func(i int) error) ([]float64, error) {
	took := make([]float64, 0, n)
	for i := range n {
		began := time.Now()
		if err := f(i); err != nil {
			return nil, err
		}
		took = append(took, micro(time.Since(began)))
	}
	return took, nil
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// load runs something in several goroutines until the time is over. It returns how long
// each run took, in microseconds, and how long all took together.
func load(workers int, slice time.Duration, f func(worker int) error) (took []float64, all time.Duration, err error) {
	began := time.Now()
	lists := make([][]float64, workers)
	errs := make([]error, workers)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for at := time.Now(); at.Sub(began) < slice; {
				if errs[w] = f(w); errs[w] != nil {
					return
				}
				now := time.Now()
				lists[w] = append(lists[w], micro(now.Sub(at)))
				at = now
			}
		})
	}
	running.Wait()
	return slices.Concat(lists...), time.Since(began), errors.Join(errs...)
}

// against returns what compares each cell with another contender.
func against(name string) func(report.Cell) report.Cell {
	return func(c report.Cell) report.Cell {
		c.Contender = name
		return c
	}
}

// smallest returns what compares each cell with the same contender's in another case.
func smallest(kase string) func(report.Cell) report.Cell {
	return func(c report.Cell) report.Cell {
		c.Case = kase
		return c
	}
}
