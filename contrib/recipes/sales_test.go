package recipes_test

import (
	"context"
	"database/sql"
	"sync"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// pieces is how many of a product there are.
const pieces = 40

// Stock makes the keys of products.
var Stock = txlock.NewFamily[int64]("stock")

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// onShops runs a test on each server, in a database with pieces of a product.
func onShops(t *testing.T, test func(t *testing.T, dsn string, product int64)) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		shop := testdb.Open(t, engine)
		shop.Exec(t, "CREATE TABLE IF NOT EXISTS stock (id BIGINT PRIMARY KEY AUTO_INCREMENT, n BIGINT NOT NULL)")
		row, err := shop.Admin().ExecContext(t.Context(), "INSERT INTO stock (n) VALUES (?)", pieces)
		check(t, err)
		product, err := row.LastInsertId()
		check(t, err)
		test(t, shop.AdminDSN(), product)
	})
}

// sells sells all pieces of a product with several programs at once, and finds none left. A
// guarded pool is what they must have.
func sells(t *testing.T, db *sql.DB, product int64, sell func(ctx context.Context) error) {
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
	check(t, db.QueryRowContext(t.Context(), "SELECT n FROM stock WHERE id = ?", product).Scan(&left))
	if left != 0 {
		t.Errorf("%d pieces are left, want none", left)
	}
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
