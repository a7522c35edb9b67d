package recipes_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// pieces is how many of product 1 there are.
const pieces = 40

// Stock makes the keys of products.
var Stock = txlock.NewFamily[int64]("stock")

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// onShops runs a test on each server, in a database with pieces of product 1.
func onShops(t *testing.T, test func(t *testing.T, shop *testdb.DB, db *sql.DB)) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			shop := testdb.Fresh(t, engine)
			db, err := locksqlc.Open(shop.AdminDSN())
			check(t, err)
			t.Cleanup(func() { check(t, db.Close()) })
			check(t, install(t.Context(), db))
			test(t, shop, db)
		})
	}
}

// sells sells all pieces of product 1 with several programs at once, and finds none left. A
// guarded pool is what they must have.
func sells(t *testing.T, db *sql.DB, sell func(ctx context.Context) error) {
	t.Helper()
	if err := txlock.CheckGuarded(t.Context(), db); err != nil {
		t.Error(err)
	}
	var selling sync.WaitGroup
	for worker := range 4 {
		selling.Go(func() {
			for i := worker; i < pieces; i += 4 {
				if err := retry(func() error { return sell(t.Context()) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	selling.Wait()
	var left int
	check(t, db.QueryRowContext(t.Context(), "SELECT n FROM stock WHERE id = 1").Scan(&left))
	if left != 0 {
		t.Errorf("%d pieces are left, want none", left)
	}
}

func install(ctx context.Context, db *sql.DB) error {
	if err := schema.Install(ctx, db); err != nil {
		return err
	}
	for _, text := range []string{
		"CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)", fmt.Sprintf("INSERT INTO stock VALUES (1, %d)", pieces),
	} {
		if _, err := db.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// retry runs a transaction again that the server has rolled back.
func retry(transaction func() error) (err error) {
	for range 10 {
		if err = transaction(); !txlock.Retryable(err) {
			return err
		}
	}
	return err
}
