package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/idempotency"
)

// Accounts are the keys of the accounts, as every program of this shop locks them.
var Accounts = txlock.NewFamily[int64]("account")

// Payment is what a client asks for, and Receipt what it gets.
type (
	Payment struct{ Payer, Payee, Amount int64 }
	Receipt struct{ ID int64 }
)

// Service makes payments: POST /payments, with an Idempotency-Key.
type Service struct {
	http.Handler
	received atomic.Int64
}

// NewService returns the service on a pool of locksqlc.Open. Who may pay would be found
// out around OnceHandler, and told to it by idempotency.ClientOf.
func NewService(db *sql.DB) *Service {
	s := new(Service)
	mux := http.NewServeMux()
	mux.Handle("POST /payments", locksqlc.OnceHandler(db, http.HandlerFunc(servePayment), idempotency.KeyRequired()))
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.received.Add(1)
		mux.ServeHTTP(w, r)
	})
	return s
}

// servePayment makes a payment in the transaction of its request. It needs to know nothing
// of repetitions: a request that comes again doesn't reach it.
func servePayment(w http.ResponseWriter, r *http.Request) {
	var payment Payment
	if err := json.NewDecoder(r.Body).Decode(&payment); err != nil || payment.Amount <= 0 {
		http.Error(w, "a payment has a payer, a payee and an amount", http.StatusUnprocessableEntity)
		return
	}
	receipt, err := pay(r.Context(), locksqlc.TxOf(r.Context()), payment)
	switch {
	case err != nil:
		idempotency.Fail(r.Context(), err) // rolled back; after a deadlock run again
	case receipt.ID == 0:
		http.Error(w, "the payer has too little money", http.StatusPaymentRequired)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", fmt.Sprint("/payments/", receipt.ID))
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(receipt) // kept in memory
	}
}

// pay moves the money. The receipt is empty if the payer has too little.
func pay(ctx context.Context, tx *sql.Tx, p Payment) (receipt Receipt, err error) {
	locks, err := locksqlc.Join(ctx, tx)
	if err != nil {
		return receipt, err
	}
	if _, err := locks.LockAll(ctx, Accounts.Keys(p.Payer, p.Payee)...); err != nil {
		return receipt, err
	}
	var has int64
	if err := tx.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = ?", p.Payer).Scan(&has); err != nil || has < p.Amount {
		return receipt, err
	}
	for account, change := range map[int64]int64{p.Payer: -p.Amount, p.Payee: p.Amount} {
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + ? WHERE id = ?", change, account); err != nil {
			return receipt, err
		}
	}
	made, err := tx.ExecContext(ctx, "INSERT INTO payments (payer, payee, amount) VALUES (?, ?, ?)", p.Payer, p.Payee, p.Amount)
	if err != nil {
		return receipt, err
	}
	receipt.ID, err = made.LastInsertId()
	return receipt, err
}
