// A deposit under a lock.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// Accounts makes the keys of locks: "account:7" is the key of account 7.
var Accounts = txlock.NewFamily[int64]("account")

func main() {
	ctx := context.Background()
	db, err := locksqlc.Open(os.Getenv("SHOP_DSN")) // a *sql.DB, opened instead of sql.Open
	must(err)
	must(schema.Install(ctx, db)) // creates lockstep's tables if they are missing
	_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)")
	must(err)
	_, err = db.ExecContext(ctx, "INSERT IGNORE INTO accounts VALUES (7, 100)")
	must(err)

	err = locksqlc.Run(ctx, db, Accounts.Keys(7), func(tx *sql.Tx) error {
		return deposit(ctx, tx, 7, 10) // nil commits; deadlocks are retried
	})
	must(err)
	fmt.Println("account 7 has 10 more")
}

// deposit reads the balance, computes, and writes it back.
func deposit(ctx context.Context, tx *sql.Tx, account, amount int64) error {
	var balance int64
	err := tx.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = ?", account).Scan(&balance)
	if err != nil {
		return err // Run rolls back
	}
	_, err = tx.ExecContext(ctx, "UPDATE accounts SET balance = ? WHERE id = ?", balance+amount, account)
	return err
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
