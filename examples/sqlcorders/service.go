package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/examples/sqlcorders/ordersdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// The keys that the programs of this shop lock by. They are package-level so that
// the same record has the same key everywhere. Orders grow without bound, so their
// keys share the center rows and leave none of their own behind.
var (
	accounts = txlock.NewFamily[int64]("account")
	orders   = txlock.NewFamily[int64]("order", txlock.Hashed)
)

// The errors of the shop's own rules.
var (
	ErrTooPoor = errors.New("the account has too little money")
	ErrNotOpen = errors.New("the order is not open")
)

// till is the account of the shop itself.
const till = 1

// Service is what the shop can do. The queries are those that sqlc has generated,
// prepared once on the pool: emit_prepared_queries in sqlc.yaml.
type Service struct {
	db      *sql.DB
	queries *ordersdb.Queries
}

// NewService returns the service on a pool of locksqlc.Open.
func NewService(ctx context.Context, db *sql.DB) (*Service, error) {
	queries, err := ordersdb.Prepare(ctx, db)
	if err != nil {
		return nil, err
	}
	return &Service{db: db, queries: queries}, nil
}

// Close closes the prepared statements. The pool stays open.
func (s *Service) Close() error { return s.queries.Close() }

// Transfer moves money between two accounts. Run locks both before anything is
// read, in an order that is the same for a transfer the other way round: so there
// is no deadlock, and what is read stays true until the commit. Code that looks at
// the balance of an account in order to change it needs no more than this.
func (s *Service) Transfer(ctx context.Context, from, to, amount int64) error {
	return locksqlc.Run(ctx, s.db, accounts.Keys(from, to), func(tx *sql.Tx) error {
		return s.move(ctx, tx, from, to, amount)
	})
}

// move is plain sqlc: WithTx, read, decide in Go, write. The caller has locked the
// accounts.
func (s *Service) move(ctx context.Context, tx *sql.Tx, from, to, amount int64) error {
	queries := s.queries.WithTx(tx)
	rich, err := queries.Balance(ctx, from)
	if err != nil {
		return fmt.Errorf("read account %d: %w", from, err)
	}
	if rich < amount {
		return fmt.Errorf("account %d: %w", from, ErrTooPoor)
	}
	if err := queries.SetBalance(ctx, ordersdb.SetBalanceParams{ID: from, Balance: rich - amount}); err != nil {
		return err
	}
	poor, err := queries.Balance(ctx, to)
	if err != nil {
		return fmt.Errorf("read account %d: %w", to, err)
	}
	return queries.SetBalance(ctx, ordersdb.SetBalanceParams{ID: to, Balance: poor + amount})
}

// Buy places an order and pays it, in one transaction: when the money doesn't
// suffice there is no order either.
func (s *Service) Buy(ctx context.Context, account, amount int64) (order int64, err error) {
	err = locksqlc.Run(ctx, s.db, accounts.Keys(account, till), func(tx *sql.Tx) error {
		order, err = s.queries.WithTx(tx).AddOrder(ctx, ordersdb.AddOrderParams{AccountID: account, Amount: amount})
		if err != nil {
			return err
		}
		return s.PayTx(ctx, tx, order, account)
	})
	return order, err
}

// PayTx pays an open order in a transaction that somebody else has begun, and will
// commit or roll back. It joins that transaction to lock what it needs by itself,
// so it is right whoever calls it; locks that the transaction holds already, as
// those of the accounts under Buy, cost no statement.
//
// Where the caller has read before, it may return txlock.ErrStaleSnapshot, and
// where others lock at the same time txlock.ErrDeadlock. Run starts such a
// transaction again by itself; who begins his own asks txlock.Retryable.
func (s *Service) PayTx(ctx context.Context, tx *sql.Tx, order, account int64) error {
	scope, err := locksqlc.Join(ctx, tx)
	if err != nil {
		return err
	}
	keys := append(accounts.Keys(account, till), orders.Key(order))
	if _, err := scope.LockAll(ctx, keys...); err != nil {
		return err
	}
	queries := s.queries.WithTx(tx)
	o, err := queries.Order(ctx, order)
	if err != nil {
		return fmt.Errorf("read order %d: %w", order, err)
	}
	if o.Status != ordersdb.OrdersStatusOpen || o.AccountID != account {
		return fmt.Errorf("order %d: %w", order, ErrNotOpen)
	}
	if err := s.move(ctx, tx, account, till, o.Amount); err != nil {
		return err
	}
	return queries.SetStatus(ctx, ordersdb.SetStatusParams{ID: order, Status: ordersdb.OrdersStatusPaid})
}
