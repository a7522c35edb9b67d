package stocktest

import (
	"database/sql"
	_ "embed"
	"errors"
	"sync"
	"testing"

	"github.com/dca00107/lockstep/examples/internal/scratch"
	"github.com/dca00107/lockstep/examples/stocktest/stockdb"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
)

//go:embed schema.sql
var ddl string

func TestMain(m *testing.M) { testdb.Main(m) }

var must = leasetest.Must

func wants(t *testing.T, err, want error) {
	t.Helper()
	testdb.ErrorIf(t, !errors.Is(err, want), "%v, want %v", err, want)
}

func unlessSoldOut(err error) error {
	if errors.Is(err, ErrSoldOut) {
		return nil
	}
	return err
}

// onServers runs a test on every server, with 20 pieces of product 7.
func onServers(t *testing.T, test func(t *testing.T, db *sql.DB)) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		database := leasetest.Got(scratch.New(t.Context(), testdb.Shared(t, engine).Config().FormatDSN(), ddl))(t)
		t.Cleanup(func() { must(t, database.Drop()) })
		db := leasetest.Got(locksqlc.Open(database.DSN()))(t)
		t.Cleanup(func() { must(t, db.Close()) })
		must(t, stockdb.New(db).AddProduct(t.Context(), stockdb.AddProductParams{ID: 7, Quantity: 20}))
		test(t, db)
	})
}

// A server is the judge of what the shop relies on.
func TestSellOnServers(t *testing.T) {
	onServers(t, func(t *testing.T, db *sql.DB) {
		shop := &Shop{db}
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				leasetest.Wants(t, "Sell", unlessSoldOut(shop.Sell(t.Context(), 7, 1)), nil)
			})
		}
		wg.Wait()
		left := leasetest.Got(stockdb.New(db).Quantity(t.Context(), 7))(t)
		leasetest.Equal(t, "left", left, 0)
	})
}
