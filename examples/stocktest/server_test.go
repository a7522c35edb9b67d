package stocktest

import (
	_ "embed"
	"errors"
	"sync"
	"testing"

	"github.com/dca00107/lockstep/examples/internal/scratch"
	"github.com/dca00107/lockstep/examples/stocktest/stockdb"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
)

//go:embed schema.sql
var ddl string

func TestMain(m *testing.M) { testdb.Main(m) }

var must = testdb.Must

func wants(t *testing.T, err, want error) {
	t.Helper()
	testdb.ErrorIf(t, !errors.Is(err, want), "%v, want %v", err, want)
}

// A server is the judge of what the shop relies on: of 20 pieces 20 are sold to 30 buyers.
func TestSellOnServers(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		database := testdb.Got(scratch.New(t.Context(), testdb.Shared(t, engine).Config().FormatDSN(), ddl))(t)
		t.Cleanup(func() { must(t, database.Drop()) })
		db := testdb.Got(locksqlc.Open(database.DSN()))(t)
		t.Cleanup(func() { must(t, db.Close()) })
		must(t, stockdb.New(db).AddProduct(t.Context(), stockdb.AddProductParams{ID: 7, Quantity: 20}))
		shop := &Shop{db}
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				err := shop.Sell(t.Context(), 7, 1)
				testdb.ErrorIf(t, err != nil && !errors.Is(err, ErrSoldOut), "Sell: %v", err)
			})
		}
		wg.Wait()
		testdb.Equal(t, "left", testdb.Got(stockdb.New(db).Quantity(t.Context(), 7))(t), 0)
	})
}
