package contender

import (
	"context"
	"database/sql"
)

// ForUpdate is the name of the lock on the business row.
const ForUpdate = "FOR UPDATE"

func forUpdate() Maker {
	return Maker{
		Name: ForUpdate, About: "SELECT ... FOR UPDATE on the business row itself, in the transaction",
		Many: true,
		Transactor: plain(func(ctx context.Context, db *sql.DB, keys []int64, work func(tx Tx) error) error {
			return Transact(ctx, db, nil, func(tx *sql.Tx) error {
				for _, key := range keys {
					var n int64
					err := tx.QueryRowContext(ctx, "SELECT n FROM "+Stock+" WHERE id = ? FOR UPDATE", key).Scan(&n)
					if err != nil {
						return err
					}
				}
				return work(sqlTx{tx})
			})
		}),
	}
}
