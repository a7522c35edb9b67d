package outerpool

import (
	"context"
	"database/sql"

	"example.com/shop/lockeddb"
)

type shop struct {
	db      *sql.DB
	queries *lockeddb.Queries
}

func (s *shop) wrong(ctx context.Context, id int64) error {
	return s.queries.Run(ctx, s.db, lockeddb.Orders.Keys(id), func(q *lockeddb.Locked) error {
		if _, err := s.db.ExecContext(ctx, pay, id); err != nil { // want `s.db is the pool, not the transaction of Run`
			return err
		}
		return s.queries.PayOrder(ctx, id) // want `s.queries queries the pool, not the transaction of Run`
	})
}

func (s *shop) wrongInFront(ctx context.Context, id int64) error {
	return lockeddb.Run(ctx, s.db, nil, func(q *lockeddb.Locked) error {
		return s.queries.PayOrder(ctx, id) // want `s.queries queries the pool, not the transaction of Run`
	})
}

func (s *shop) right(ctx context.Context, id int64) error {
	return s.queries.Run(ctx, s.db, lockeddb.Orders.Keys(id), func(q *lockeddb.Locked) error {
		return q.PayOrder(ctx, id)
	})
}

func (s *shop) wrongByPointer(ctx context.Context, id int64) error {
	return s.queries.Run(ctx, s.db, lockeddb.Orders.Keys(id), func(q *lockeddb.Locked) error {
		_, err := (*s.db).ExecContext(ctx, pay, id) // want `s.db is the pool, not the transaction of Run`
		return err
	})
}

func (s *shop) byMethodExpression(ctx context.Context, pools []*sql.DB, id int64) error {
	return s.queries.Run(ctx, s.db, lockeddb.Orders.Keys(id), func(q *lockeddb.Locked) error {
		_, err := (*sql.DB).ExecContext(pools[0], ctx, pay, id)
		return err
	})
}
