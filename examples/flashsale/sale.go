package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dca00107/lockstep/examples/internal/scratch"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// ddl is the shop. Nothing in it keeps the stock from being sold twice: the number is
// read, compared in Go and written.
const ddl = `
CREATE TABLE stock (
  product INT    NOT NULL,
  segment INT    NOT NULL,
  items   BIGINT NOT NULL,
  PRIMARY KEY (product, segment)
) ENGINE = InnoDB;
CREATE TABLE orders (
  id       BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  product  INT    NOT NULL,
  items    BIGINT NOT NULL,
  segments INT    NOT NULL
) ENGINE = InnoDB;
`

// products are the keys of the products; txlock.Segments makes those of their parts.
var products = txlock.NewFamily[int]("flashsale-product")

// sale sells one product out.
type sale struct {
	config
	db      *sql.DB
	product int
	keys    []txlock.Key // of the segments
}

// runSale lets the buyers in, and counts. Every sale has a product of its own.
func runSale(ctx context.Context, c config, database *scratch.Database, segments int) (r result, err error) {
	s, err := newSale(ctx, c, database, segments)
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, s.db.Close()) }()
	began := time.Now()
	if err := s.open(ctx); err != nil {
		return result{}, err
	}
	r = result{segments: segments, took: time.Since(began)}
	err = s.count(ctx, &r)
	return r, err
}

// newSale divides the stock into segments.
func newSale(ctx context.Context, c config, database *scratch.Database, segments int) (*sale, error) {
	s := &sale{config: c, product: segments, keys: txlock.Segments(products.Key(segments), segments)}
	var err error
	if s.db, err = locksqlc.Open(database.DSN()); err != nil {
		return nil, err
	}
	s.db.SetMaxOpenConns(c.connections)
	s.db.SetMaxIdleConns(c.connections)
	if err := s.stockUp(ctx); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

// stockUp fills the segments as evenly as the stock can be divided, and makes the rows
// of their locks, so that the first buyers needn't.
func (s *sale) stockUp(ctx context.Context) error {
	n := int64(len(s.keys))
	for i := range n {
		items := s.stock / n
		if i < s.stock%n {
			items++
		}
		if _, err := s.db.ExecContext(ctx, "INSERT INTO stock VALUES (?, ?, ?)", s.product, i, items); err != nil {
			return err
		}
	}
	return txlock.Ensure(ctx, s.db, s.keys...)
}

// open lets all buyers in, and returns when the last of them has gone.
func (s *sale) open(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var buyers sync.WaitGroup
	for range s.buyers {
		buyers.Go(func() {
			if err := s.visit(ctx); err != nil {
				cancel(err)
			}
		})
	}
	buyers.Wait()
	return context.Cause(ctx)
}

// visit is a buyer, who comes back until there is nothing left.
func (s *sale) visit(ctx context.Context) error {
	for {
		err := s.buy(ctx, 1+rand.Int64N(s.most))
		switch {
		case errors.Is(err, errSoldOut):
			return nil
		case err != nil:
			return err
		}
	}
}

var (
	errSoldOut  = errors.New("sold out")
	errTooShort = errors.New("the segment has too little left")
)

// buy buys some items: from any segment that is free, or else from one after the other,
// waiting for its turn there. Where no segment has as many, it buys what is left in all
// of them together.
//
// Which segments are worth a lock it knows from a read without one. The stock only goes
// down, so what was read is enough to pass a segment over, but not to buy from it.
func (s *sale) buy(ctx context.Context, items int64) error {
	there, err := s.all(ctx, s.db)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(there, func(n int64) bool { return n > 0 }) {
		return errSoldOut
	}
	left := slices.DeleteFunc(rand.Perm(len(s.keys)), func(i int) bool { return there[i] < items })
	for len(left) > 0 {
		segment, err := s.buyFromAny(ctx, left, items)
		if errors.Is(err, txlock.ErrBusy) {
			segment = left[0]
			err = s.buyFrom(ctx, segment, items)
		}
		if !errors.Is(err, errTooShort) {
			return err
		}
		left = slices.DeleteFunc(left, func(i int) bool { return i == segment })
	}
	return s.buyRest(ctx, items)
}

// buyFromAny buys from the first of the segments that nobody has locked. LockAny
// doesn't wait: it returns txlock.ErrBusy where all of them are.
func (s *sale) buyFromAny(ctx context.Context, segments []int, items int64) (segment int, err error) {
	err = locksqlc.Run(ctx, s.db, nil, func(tx *sql.Tx) error {
		locks, err := locksqlc.Join(ctx, tx)
		if err != nil {
			return err
		}
		keys := make([]txlock.Key, len(segments))
		for i, segment := range segments {
			keys[i] = s.keys[segment]
		}
		grant, err := locks.LockAny(ctx, keys...)
		if err != nil {
			return err
		}
		segment = slices.Index(s.keys, grant.Key())
		return s.take(ctx, tx, segment, items)
	})
	return segment, err
}

// buyFrom buys from one segment, and waits for its lock in the server's queue.
func (s *sale) buyFrom(ctx context.Context, segment int, items int64) error {
	return locksqlc.Run(ctx, s.db, []txlock.Key{s.keys[segment]}, func(tx *sql.Tx) error {
		return s.take(ctx, tx, segment, items)
	})
}

// take is the purchase itself, under the lock of the segment.
func (s *sale) take(ctx context.Context, tx *sql.Tx, segment int, items int64) error {
	var there int64
	row := tx.QueryRowContext(ctx, "SELECT items FROM stock WHERE product = ? AND segment = ?", s.product, segment)
	if err := row.Scan(&there); err != nil {
		return err
	}
	if there < items {
		return errTooShort // the transaction has written nothing
	}
	if err := s.pay(ctx); err != nil {
		return err
	}
	if err := s.set(ctx, tx, segment, there-items); err != nil {
		return err
	}
	return s.order(ctx, tx, items, 1)
}

// buyRest collects items from several segments, and takes fewer where there are no
// more. LockAll takes the locks in one order for everybody, so that collectors don't
// deadlock.
func (s *sale) buyRest(ctx context.Context, items int64) error {
	return locksqlc.Run(ctx, s.db, s.keys, func(tx *sql.Tx) error {
		there, err := s.all(ctx, tx)
		if err != nil {
			return err
		}
		var bought int64
		from := 0
		for segment, n := range there {
			n = min(n, items-bought)
			if n == 0 {
				continue
			}
			if err := s.set(ctx, tx, segment, there[segment]-n); err != nil {
				return err
			}
			bought += n
			from++
		}
		if bought == 0 {
			return errSoldOut
		}
		if err := s.pay(ctx); err != nil {
			return err
		}
		return s.order(ctx, tx, bought, from)
	})
}

// queryer is a pool or a transaction.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// all reads what every segment has.
func (s *sale) all(ctx context.Context, db queryer) (there []int64, err error) {
	rows, err := db.QueryContext(ctx, "SELECT items FROM stock WHERE product = ? ORDER BY segment", s.product)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		there = append(there, n)
	}
	return there, rows.Err()
}

// pay is what takes time in a purchase.
func (s *sale) pay(ctx context.Context) error {
	timer := time.NewTimer(s.takes)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *sale) set(ctx context.Context, tx *sql.Tx, segment int, items int64) error {
	_, err := tx.ExecContext(ctx, "UPDATE stock SET items = ? WHERE product = ? AND segment = ?", items, s.product, segment)
	return err
}

func (s *sale) order(ctx context.Context, tx *sql.Tx, items int64, segments int) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO orders (product, items, segments) VALUES (?, ?, ?)", s.product, items, segments)
	return err
}

// count reads what was sold, and returns an error where that is not the stock.
func (s *sale) count(ctx context.Context, r *result) error {
	row := s.db.QueryRowContext(ctx, "SELECT COUNT(*), COALESCE(SUM(items), 0), COALESCE(SUM(segments > 1), 0) FROM orders WHERE product = ?", s.product)
	if err := row.Scan(&r.purchases, &r.items, &r.collected); err != nil {
		return err
	}
	var left, below int64
	row = s.db.QueryRowContext(ctx, "SELECT SUM(items), SUM(items < 0) FROM stock WHERE product = ?", s.product)
	if err := row.Scan(&left, &below); err != nil {
		return err
	}
	if r.items != s.stock || left != 0 || below != 0 {
		return fmt.Errorf("%d items of %d were sold, %d are left, %d segments are below zero", r.items, s.stock, left, below)
	}
	return nil
}
