package main

import (
	"context"
	_ "embed"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/examples/internal/scratch"
	"github.com/dca00107/lockstep/examples/quickstart/shopdb"
	"github.com/dca00107/lockstep/txlock"
)

//go:embed schema.sql
var ddl string

// shop is the shop on one server.
type shop struct {
	cfg      config
	server   server
	database *scratch.Database
	queries  *shopdb.Queries // for setting up and counting
}

// newShop opens a database and puts the products on sale.
func newShop(ctx context.Context, cfg config, s server) (*shop, error) {
	database, err := scratch.New(ctx, s.dsn, ddl)
	if err != nil {
		return nil, err
	}
	sh := &shop{cfg: cfg, server: s, database: database, queries: shopdb.New(database.Pool())}
	for i := range cfg.products {
		if err := sh.queries.AddProduct(ctx, shopdb.AddProductParams{ID: int64(i + 1)}); err != nil {
			return nil, errors.Join(err, sh.drop())
		}
	}
	return sh, nil
}

func (s *shop) drop() error { return s.database.Drop() }

// sellAll fills up the stock, lets the buyers in and returns what became of it.
func (s *shop) sellAll(ctx context.Context, w way, p *progress) (_ result, err error) {
	if err := s.queries.ForgetOrders(ctx); err != nil {
		return result{}, err
	}
	if err := s.queries.Restock(ctx, s.cfg.items); err != nil {
		return result{}, err
	}
	c, err := w.open(s.database.DSN(), s.cfg.buyers)
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, c.close()) }()

	sale := &sale{counter: c, soldOut: make([]atomic.Bool, s.cfg.products)}
	stop := p.watch(s.server.engine+", "+w.name, &sale.sold)
	begin := time.Now()
	err = sale.run(ctx, s.cfg.buyers)
	r := result{engine: s.server.engine, way: w, stock: s.cfg.stock(), sold: sale.sold.Load(), took: time.Since(begin)}
	stop()
	if err != nil {
		return result{}, err
	}
	slices.Sort(sale.latencies)
	r.latencies = sale.latencies
	return r, s.count(ctx, &r)
}

// count compares the orders with the stock.
func (s *shop) count(ctx context.Context, r *result) error {
	rows, err := s.queries.Tally(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		r.orders += row.Ordered
		r.oversold += max(0, row.Ordered-s.cfg.items)
		r.lost += row.Ordered - (s.cfg.items - row.Stock)
	}
	return nil
}

// sale is one opening of the shop.
type sale struct {
	counter counter
	soldOut []atomic.Bool // by product
	sold    atomic.Int64  // what the buyers were told

	mu        sync.Mutex
	latencies []time.Duration // of the purchases
}

// run lets the buyers buy until everything is sold out.
func (s *sale) run(ctx context.Context, buyers int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range buyers {
		wg.Go(func() {
			if err := s.buyer(ctx, int64(i+1)); err != nil {
				cancel(err) // the others go home, the first error stays
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// buyer buys one random product after the other.
func (s *sale) buyer(ctx context.Context, id int64) error {
	var latencies []time.Duration
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.latencies = append(s.latencies, latencies...)
	}()
	for {
		product, ok := s.pick()
		if !ok {
			return nil
		}
		begin := time.Now()
		err := s.counter.buy(ctx, product, id)
		for txlock.Retryable(err) && ctx.Err() == nil {
			// Run and Transaction of lockstep do this by themselves, a plain
			// db.Transaction doesn't.
			err = s.counter.buy(ctx, product, id)
		}
		switch {
		case err == nil:
			s.sold.Add(1)
			latencies = append(latencies, time.Since(begin))
		case errors.Is(err, errSoldOut):
			s.soldOut[product-1].Store(true)
		default:
			return err
		}
	}
}

// pick returns a random product that isn't known to be sold out, false where all
// are.
func (s *sale) pick() (product int64, ok bool) {
	first := rand.IntN(len(s.soldOut))
	for i := range s.soldOut {
		at := (first + i) % len(s.soldOut)
		if !s.soldOut[at].Load() {
			return int64(at + 1), true
		}
	}
	return 0, false
}
