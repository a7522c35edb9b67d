package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/report"
	"github.com/dca00107/lockstep/bench/site"
	"github.com/dca00107/lockstep/bench/stats"
)

// keys is what a lock costs where the tables have many keys.
var keys = Scenario{
	Letter: "d",
	Title:  "Many keys in the tables",
	About: "One worker locks a random key, in a business transaction or by a lease. The tables have a row for each of 10 to 1,000,000 keys. " +
		"Contenders without such a table, or that delete its rows at each release, are left out. (ShedLock inserts before it updates when a process uses a key for the first time.)",
	Metrics: []report.Metric{
		{Name: "time", Unit: "us", About: "A transaction, or an acquire and a release, the median of the rounds; bold: relative to the smallest number of keys.", Ratio: true},
		{Name: "size", Unit: "bytes a key", About: "Data and indexes of the table, as the server reports them; at least one page."},
	},
	Base:   smallest(keysCase(10)),
	Charts: []report.Chart{{Name: "time", Metric: "time", Lines: true, XLabel: "keys in the table"}},
	Run:    runKeys,
}

func keysCase(n int64) string { return report.Number(float64(n)) + " keys" }

// sized is a contender on a database of one size.
type sized struct {
	contender.Maker
	keys  int64
	once  func(key int64) error
	close func() error
}

func runKeys(ctx context.Context, g *Ground) (err error) {
	var all []sized
	var closers []func() error
	defer func() {
		for _, f := range slices.Backward(closers) { // the contenders before their database
			err = errors.Join(err, f())
		}
	}()
	for _, n := range g.Effort.Sizes {
		d, err := g.Server.NewDatabase(ctx, 1, false)
		if err != nil {
			return err
		}
		closers = append(closers, d.Drop)
		filled := make(map[string]bool) // two contenders may have the same table
		for _, m := range g.makers(func(m contender.Maker) bool { return m.Table != "" }) {
			s, err := openSized(ctx, g, d, m, n, !filled[m.Table])
			filled[m.Table] = true
			if err != nil {
				return fmt.Errorf("%s, %s: %w", m.Name, keysCase(n), err)
			}
			all, closers = append(all, s), append(closers, s.close)
		}
	}
	for round := range g.Effort.Rounds {
		for _, i := range stats.Turns(round, len(all)) {
			s := all[i]
			took, err := times(g.Effort.Operations, func(int) error { return s.once(1 + rand.Int64N(s.keys)) })
			if err != nil {
				return fmt.Errorf("%s, %s: %w", s.Name, keysCase(s.keys), err)
			}
			g.add(keysCase(s.keys), s.Name, "time", stats.Percentile(took, 50))
		}
	}
	return nil
}

// openSized opens a contender, and gives its table a row for each key.
func openSized(ctx context.Context, g *Ground, d *site.Database, m contender.Maker, n int64, fill bool) (sized, error) {
	place := g.Link.Place(d, 1, 1)
	s := sized{Maker: m, keys: n}
	if m.Transactor != nil {
		t, err := m.Transactor(ctx, place)
		if err != nil {
			return s, err
		}
		s.close = t.Close
		s.once = func(key int64) error { return t.Transact(ctx, []int64{key}, update(ctx, 1)) }
	} else {
		l, err := m.Leaser(ctx, place)
		if err != nil {
			return s, err
		}
		s.close = l.Close
		s.once = func(key int64) error {
			held, err := l.Acquire(ctx, key)
			if err != nil {
				return err
			}
			return held.Release(ctx)
		}
	}
	err := s.once(1)
	if err == nil && fill {
		err = d.CopyRows(ctx, m.Table, m.Column, n)
	}
	var bytes int64
	if err == nil {
		bytes, err = d.TableBytes(ctx, m.Table)
	}
	if err != nil {
		return s, errors.Join(err, s.close())
	}
	g.add(keysCase(n), m.Name, "size", float64(bytes)/float64(n))
	return s, nil
}
