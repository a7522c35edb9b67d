package scenario

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/report"
	"github.com/dca00107/lockstep/bench/stats"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// sale is the whole of a sale: read, decide, write.
var sale = Scenario{
	Letter: "g",
	Title:  "The whole of a sale",
	About: "Workers sell one item of one product: they read its stock, decide in Go, write the new stock and commit. FOR UPDATE locks as it reads. " +
		"With segments the stock is in 4 or 16 rows, each with its own lock, and a sale uses any free one. Without a lock, items are sold twice.",
	Metrics: []report.Metric{
		{Name: "sales", Unit: "a second", About: "Of all workers; bold: relative to FOR UPDATE.", Ratio: true},
		{Name: "p99", Unit: "us", About: "A sale, including retries."},
		{Name: "sold twice", Unit: "% of the sales"},
	},
	Base:   against(contender.ForUpdate),
	Charts: []report.Chart{{Name: "sales", Metric: "sales"}},
	Run:    runSale,
}

// Sellers are those that are no contenders elsewhere.
var Sellers = []string{"lockstep 4 segments", "lockstep 16 segments", "lockstep CommitWith", "lockstep LockWith, CommitWith", "FOR UPDATE, CommitWith"}

// seller sells one piece, of the rows of the stock that it has.
type seller struct {
	name string
	rows []int64
	pool *sql.DB
	sell func(ctx context.Context) error
}

func (s *seller) Close() error { return s.pool.Close() }

const pieces = 1 << 40

func runSale(ctx context.Context, g *Ground) error {
	for _, workers := range []int{1, 8, 16} {
		kase := fmt.Sprintf("%d workers", workers)
		if workers == 1 {
			kase = "1 worker"
		}
		if err := runSaleOf(ctx, g, kase, workers); err != nil {
			return fmt.Errorf("%s: %w", kase, err)
		}
	}
	return nil
}

func runSaleOf(ctx context.Context, g *Ground, kase string, workers int) (err error) {
	sellers, err := openSellers(ctx, g, workers)
	defer func() {
		for _, s := range sellers {
			err = errors.Join(err, s.Close())
		}
	}()
	if err != nil {
		return err
	}
	for round := range g.Effort.Rounds {
		for _, i := range stats.Turns(round, len(sellers)) {
			s := sellers[i]
			before, err := stock(ctx, g, s.rows)
			if err != nil {
				return err
			}
			took, whole, err := load(workers, g.Effort.Slice, func(int) error { return s.sell(ctx) })
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			after, err := stock(ctx, g, s.rows)
			if err != nil {
				return err
			}
			g.add(kase, s.name, "sales", float64(len(took))/whole.Seconds())
			g.add(kase, s.name, "p99", stats.Percentile(took, 99))
			g.add(kase, s.name, "sold twice", 100*(1-float64(before-after)/float64(len(took))))
		}
	}
	return nil
}

// openSellers opens those that are wanted, each with rows of its own.
func openSellers(ctx context.Context, g *Ground, workers int) ([]*seller, error) {
	var all []*seller
	place := g.Link.Place(g.Database, workers, 1)
	row := int64(1)
	for _, kind := range []struct {
		name     string
		segments int64
		open     func(context.Context, contender.Place) (*sql.DB, error)
		sell     func(s *seller) func(ctx context.Context) error
	}{
		{contender.NoLock, 1, contender.OpenPlain, inTransaction("")},
		{contender.ForUpdate, 1, contender.OpenPlain, inTransaction(" FOR UPDATE")},
		{"lockstep Run", 1, contender.OpenGuarded, underRun},
		{"lockstep Optimistic", 1, contender.OpenGuarded, optimistic},
		{Sellers[0], 4, contender.OpenGuarded, underSegments},
		{Sellers[1], 16, contender.OpenGuarded, underSegments},
		{Sellers[2], 1, contender.OpenGuarded, committing("", true, false)},
		{Sellers[3], 1, contender.OpenGuarded, committing("", false, true)},
		{Sellers[4], 1, contender.OpenGuarded, committing(" FOR UPDATE", false, false)},
	} {
		if !g.Wants(kind.name) {
			continue
		}
		s := &seller{name: kind.name}
		for range kind.segments {
			s.rows = append(s.rows, row)
			row++
		}
		var err error
		if s.pool, err = kind.open(ctx, place); err != nil {
			return all, fmt.Errorf("%s: %w", kind.name, err)
		}
		all = append(all, s)
		s.sell = kind.sell(s)
		if err := prepare(ctx, g, s); err != nil {
			return all, fmt.Errorf("%s: %w", kind.name, err)
		}
	}
	return all, nil
}

// prepare fills the stock and makes the locks.
func prepare(ctx context.Context, g *Ground, s *seller) error {
	for _, row := range s.rows {
		if _, err := g.Database.Pool.ExecContext(ctx, "UPDATE "+contender.Stock+" SET n = ? WHERE id = ?", pieces, row); err != nil {
			return err
		}
	}
	keys := append(s.keys(), contender.Family.Key(s.rows[0]))
	if err := txlock.Ensure(ctx, g.Database.Pool, keys...); err != nil {
		return err
	}
	return s.sell(ctx)
}

// keys are those of the segments.
func (s *seller) keys() []txlock.Key {
	return txlock.Segments(contender.Family.Key(s.rows[0]), len(s.rows))
}

// stock counts the pieces that are left.
func stock(ctx context.Context, g *Ground, rows []int64) (n int64, err error) {
	err = g.Database.Pool.QueryRowContext(ctx, "SELECT CAST(SUM(n) AS SIGNED) FROM "+contender.Stock+" WHERE id BETWEEN ? AND ?",
		slices.Min(rows), slices.Max(rows)).Scan(&n)
	return n, err
}

var errSoldOut = errors.New("sold out")

// business is the sale itself, of a row, whose write is under the last context.
func business(ctx, last context.Context, tx *sql.Tx, row int64, suffix string) error {
	var n int64
	if err := tx.QueryRowContext(ctx, "SELECT n FROM "+contender.Stock+" WHERE id = ?"+suffix, row).Scan(&n); err != nil {
		return err
	}
	if n < 1 {
		return errSoldOut
	}
	_, err := tx.ExecContext(last, "UPDATE "+contender.Stock+" SET n = ? WHERE id = ?", n-1, row)
	return err
}

// inTransaction sells without a lock, or under that of the row.
func inTransaction(suffix string) func(s *seller) func(ctx context.Context) error {
	return func(s *seller) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			return contender.Transact(ctx, s.pool, nil, func(tx *sql.Tx) error { return business(ctx, ctx, tx, s.rows[0], suffix) })
		}
	}
}

func underRun(s *seller) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		return locksqlc.Run(ctx, s.pool, contender.Family.Keys(s.rows[0]), func(tx *sql.Tx) error { return business(ctx, ctx, tx, s.rows[0], "") })
	}
}

// committing lets the write commit, under a lock that is taken before, one that the read takes
// with it, or that of the row.
func committing(suffix string, before, with bool) func(s *seller) func(ctx context.Context) error {
	return func(s *seller) func(ctx context.Context) error {
		var keys []txlock.Key
		if before {
			keys = contender.Family.Keys(s.rows[0])
		}
		return func(ctx context.Context) error {
			return locksqlc.Run(ctx, s.pool, keys, func(tx *sql.Tx) error {
				scope, err := locksqlc.Join(ctx, tx)
				if err != nil {
					return err
				}
				reads := ctx
				if with {
					reads = scope.LockWith(ctx, contender.Family.Key(s.rows[0]))
				}
				return business(reads, scope.CommitWith(ctx, 1), tx, s.rows[0], suffix)
			})
		}
	}
}

// optimistic goes on where Optimistic gives up, which it does after ten conflicts.
func optimistic(s *seller) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		for {
			err := locksqlc.Optimistic(ctx, s.pool, contender.Family.Key(s.rows[0]), func(tx *sql.Tx) error { return business(ctx, ctx, tx, s.rows[0], "") })
			if !txlock.Retryable(err) && !errors.Is(err, txlock.ErrConflict) {
				return err
			}
		}
	}
}

// underSegments takes any segment that is free, and waits for one where none is.
func underSegments(s *seller) func(ctx context.Context) error {
	keys := s.keys()
	return func(ctx context.Context) error {
		first := rand.IntN(len(keys))
		rotated := slices.Concat(keys[first:], keys[:first])
		return locksqlc.Run(ctx, s.pool, nil, func(tx *sql.Tx) error {
			locks, err := locksqlc.Join(ctx, tx)
			if err != nil {
				return err
			}
			grant, err := locks.LockAny(ctx, rotated...)
			if errors.Is(err, txlock.ErrBusy) {
				grant, err = locks.Lock(ctx, rotated[0])
			}
			if err != nil {
				return err
			}
			return business(ctx, ctx, tx, s.rows[slices.Index(keys, grant.Key())], "")
		})
	}
}
