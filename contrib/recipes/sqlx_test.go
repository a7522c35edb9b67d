package recipes_test

import (
	"context"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// sellBySQLX sells one piece. A *sqlx.Tx is a txlock.Tx.
func sellBySQLX(ctx context.Context, db *sqlx.DB, id int64) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	locks, err := txlock.Join(ctx, tx)
	if err != nil {
		return err
	}
	if _, err := locks.Lock(ctx, Stock.Key(id)); err != nil {
		return err
	}
	var n int64
	if err := tx.GetContext(ctx, &n, "SELECT n FROM stock WHERE id = ?", id); err != nil {
		return err
	}
	if _, err := tx.NamedExecContext(ctx, "UPDATE stock SET n = :n WHERE id = :id", map[string]any{"n": n - 1, "id": id}); err != nil {
		return err
	}
	return tx.Commit()
}

func openSQLX(ctx context.Context, dsn string) (*sqlx.DB, error) {
	return sqlx.ConnectContext(ctx, locksqlc.DriverName, dsn)
}

func TestSQLX(t *testing.T) {
	onShops(t, func(t *testing.T, dsn string, product int64) {
		db, err := openSQLX(t.Context(), dsn)
		check(t, err)
		defer func() { check(t, db.Close()) }()
		sells(t, db.DB, product, func(ctx context.Context) error { return sellBySQLX(ctx, db, product) })
	})
}
