// A lock with sqlc.
package main

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"log"
	"os"

	"example.com/start/sqlc/shopdb" // made by sqlc generate

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

//go:embed schema.sql
var tables string

var Orders = txlock.NewFamily[int64]("order")

func main() {
	ctx := context.Background()
	db, err := locksqlc.Open(os.Getenv("SHOP_DSN"))
	must(err)
	must(schema.Install(ctx, db))
	_, err = db.ExecContext(ctx, tables)
	must(err)
	queries := shopdb.New(db)
	must(queries.PutOrder(ctx, shopdb.PutOrderParams{ID: 42}))

	err = locksqlc.Run(ctx, db, Orders.Keys(42), func(tx *sql.Tx) error {
		q := queries.WithTx(tx)
		paid, err := q.IsPaid(ctx, 42)
		if err != nil || paid {
			return err
		}
		return q.PutOrder(ctx, shopdb.PutOrderParams{ID: 42, Paid: true})
	})
	must(err)
	fmt.Println("order 42 is paid, once")
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
