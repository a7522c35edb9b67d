package recipes_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

var products = txlock.NewFamily[int64]("recipe")

// sellBySQLX sells a piece in a transaction of sqlx, which is a txlock.Tx.
func sellBySQLX(ctx context.Context, db *sqlx.DB, id int64) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	locks, err := txlock.Join(ctx, tx)
	if err != nil {
		return err
	}
	var n int64
	if err := tx.GetContext(locks.LockWith(ctx, products.Key(id)), &n, "SELECT n FROM stock WHERE id = ?", id); err != nil {
		return err
	}
	_, err = tx.ExecContext(locks.CommitWith(ctx, 1), "UPDATE stock SET n = ? WHERE id = ?", n-1, id)
	return err
}

// sellByBun sells a piece in a transaction of bun, of which the *sql.Tx is joined.
func sellByBun(ctx context.Context, db *bun.DB, id int64) error {
	return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		locks, err := txlock.Join(ctx, tx.Tx)
		if err != nil {
			return err
		}
		if _, err := locks.Lock(ctx, products.Key(id)); err != nil {
			return err
		}
		var n int64
		if err := tx.NewSelect().Table("stock").Column("n").Where("id = ?", id).Scan(ctx, &n); err != nil {
			return err
		}
		_, err = tx.NewUpdate().Table("stock").Set("n = ?", n-1).Where("id = ?", id).Exec(ctx)
		return err
	})
}

// entOf is a driver of ent that sends everything in one transaction, for
// ent.NewClient(ent.Driver(entOf(tx))). What ent begins and commits in it is that transaction.
func entOf(tx *sql.Tx) dialect.Driver {
	return entTx{entsql.NewDriver(dialect.MySQL, entsql.Conn{ExecQuerier: tx})}
}

type entTx struct{ dialect.Driver }

func (d entTx) Tx(context.Context) (dialect.Tx, error) { return dialect.NopTx(d), nil }

// sellByEnt sells a piece by ent, in a transaction of Run.
func sellByEnt(ctx context.Context, db *sql.DB, id int64) error {
	return locksqlc.Run(ctx, db, products.Keys(id), func(tx *sql.Tx) error {
		drv := entOf(tx)
		var rows entsql.Rows
		if err := drv.Query(ctx, "SELECT n FROM stock WHERE id = ?", []any{id}, &rows); err != nil {
			return err
		}
		n, err := entsql.ScanInt64(rows)
		if err = errors.Join(err, rows.Close()); err != nil {
			return err
		}
		inner, err := drv.Tx(ctx)
		if err != nil {
			return err
		}
		if err := inner.Exec(ctx, "UPDATE stock SET n = ? WHERE id = ?", []any{n - 1, id}, nil); err != nil {
			return err
		}
		return inner.Commit()
	})
}

// TestTransactions sells by each of these libraries at once, to the last piece.
func TestTransactions(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			const each = 20
			database := testdb.Shared(t, engine).Open(t)
			database.Exec(t, "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)")
			database.Exec(t, fmt.Sprintf("INSERT INTO stock VALUES (1, %d)", 3*each))
			database.Grant(t, "stock")
			db, err := locksqlc.Open(database.DSN())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			ofSQLX, ofBun := sqlx.NewDb(db, "mysql"), bun.NewDB(db, mysqldialect.New())
			var selling sync.WaitGroup
			for _, sell := range []func(ctx context.Context) error{
				func(ctx context.Context) error { return sellBySQLX(ctx, ofSQLX, 1) },
				func(ctx context.Context) error { return sellByBun(ctx, ofBun, 1) },
				func(ctx context.Context) error { return sellByEnt(ctx, db, 1) },
			} {
				selling.Go(func() {
					for range each {
						err := sell(t.Context())
						for ; txlock.Retryable(err); err = sell(t.Context()) {
						}
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			selling.Wait()
			var left int64
			if err := db.QueryRowContext(t.Context(), "SELECT n FROM stock WHERE id = 1").Scan(&left); err != nil || left != 0 {
				t.Errorf("%d pieces are left, %v", left, err)
			}
		})
	}
}
