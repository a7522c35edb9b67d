package main

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// Messages are the keys of the messages that were handed over.
var Messages = txlock.NewFamily[int64]("payment-message")

// message tells of a payment. A queue hands it over at least once.
type message struct{ payment, payer, amount int64 }

// consumeAll hands every message to two consumers at once.
func consumeAll(ctx context.Context, db *sql.DB) (err error) {
	rows, err := db.QueryContext(ctx, "SELECT id, payer, amount FROM payments")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var messages []message
	for rows.Next() {
		var m message
		if err := rows.Scan(&m.payment, &m.payer, &m.amount); err != nil {
			return err
		}
		messages = append(messages, m)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		wg.Go(func() {
			for _, m := range messages {
				errs[i] = errors.Join(errs[i], consume(ctx, db, m))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// consume gives the payer a point for each unit of money. After an error the queue hands
// the message over again, whatever has become of this one.
func consume(ctx context.Context, db *sql.DB, m message) error {
	_, err := locksqlc.Once(ctx, db, Messages.Key(m.payment), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE accounts SET points = points + ? WHERE id = ?", m.amount, m.payer)
		return err
	})
	return err
}
