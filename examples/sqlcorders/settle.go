package main

import (
	"context"
	"database/sql"

	"github.com/dca00107/lockstep/examples/sqlcorders/ordersdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// settlement is the key of the settlement. There is only one.
var settlement = txlock.Named("settlement")

// Bank takes the list of what was paid. It is another system, so that no
// transaction of ours can undo what was sent to it.
type Bank interface {
	Send(ctx context.Context, paid []ordersdb.Order) error
}

// Settle tells the bank of all orders that were paid since the last time, and
// returns how many. Every server of the shop may call it, on its own schedule: one
// of them does it, the others wait until it is done and then find nothing to do.
//
// Do holds the lock on a connection of its own, and so does each call that waits
// for it; the work uses other connections, as many as it likes. So the pool needs
// room for more connections than there are calls of Settle at a time. Should the
// connection with the lock be lost, ctx ends, and nothing more is sent.
//
// No lock makes two systems one: where the bank was told and this process then
// dies, the next settlement tells it again, with the same identifiers.
func (s *Service) Settle(ctx context.Context, bank Bank) (settled int, err error) {
	err = locksqlc.Do(ctx, s.db, settlement, func(ctx context.Context) error {
		paid, err := s.queries.PaidOrders(ctx)
		if err != nil || len(paid) == 0 {
			return err
		}
		if err := bank.Send(ctx, paid); err != nil {
			return err
		}
		settled = len(paid)
		return s.markSettled(ctx, paid)
	})
	return settled, err
}

// markSettled writes down what the bank knows, in one transaction.
func (s *Service) markSettled(ctx context.Context, paid []ordersdb.Order) error {
	keys := make([]txlock.Key, len(paid))
	for i, order := range paid {
		keys[i] = orders.Key(order.ID)
	}
	return locksqlc.Run(ctx, s.db, keys, func(tx *sql.Tx) error {
		queries := s.queries.WithTx(tx)
		for _, order := range paid {
			err := queries.SetStatus(ctx, ordersdb.SetStatusParams{ID: order.ID, Status: ordersdb.OrdersStatusSettled})
			if err != nil {
				return err
			}
		}
		return nil
	})
}
