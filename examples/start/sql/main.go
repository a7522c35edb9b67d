// A lock with database/sql.
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

// Accounts makes the keys of the locks: "account:7" is the key of account 7.
var Accounts = txlock.NewFamily[int64]("account")

func main() {
	ctx := context.Background()
	db, err := locksqlc.Open(os.Getenv("SHOP_DSN")) // in place of sql.Open
	must(err)
	must(schema.Install(ctx, db)) // the tables of lockstep, if they are missing
	_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)")
	must(err)
	_, err = db.ExecContext(ctx, "INSERT IGNORE INTO accounts VALUES (7, 100)")
	must(err)

	err = locksqlc.Run(ctx, db, Accounts.Keys(7), func(tx *sql.Tx) error {
		var balance int64 // nobody else changes account 7 until COMMIT
		err := tx.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = 7").Scan(&balance)
		if err != nil {
			return err // ROLLBACK
		}
		_, err = tx.ExecContext(ctx, "UPDATE accounts SET balance = ? WHERE id = 7", balance+10)
		return err
	})
	must(err)
	fmt.Println("account 7 has 10 more")
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
