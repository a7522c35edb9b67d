package stocktest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/examples/stocktest/stockdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// onKit returns a shop on a Kit over a mock, which demands at the end that all was sent.
func onKit(t *testing.T) (*Shop, *locktest.Kit, sqlmock.Sqlmock) {
	t.Helper()
	db, mock, err := sqlmock.New(sqlmock.QueryMatcherOption(sqlmock.QueryMatcherEqual))
	must(t, err)
	t.Cleanup(func() {
		must(t, mock.ExpectationsWereMet())
		mock.ExpectClose()
		must(t, db.Close())
	})
	kit := locktest.Open(t, db)
	return &Shop{kit.DB()}, kit, mock
}

func quantity(n int64) *sqlmock.Rows { return sqlmock.NewRows([]string{"quantity"}).AddRow(n) }

// The mock gets the statements of the program. The Kit takes the locks, and knows afterwards
// what was locked before a statement.
func TestSell(t *testing.T) {
	t.Parallel()
	shop, kit, mock := onKit(t)
	mock.ExpectBegin()
	mock.ExpectQuery(stockdb.Quantity).WithArgs(7).WillReturnRows(quantity(5))
	mock.ExpectExec(stockdb.SetQuantity).WithArgs(2, 7).WillReturnResult(sqlmock.NewResult(0, 1))
	mock.ExpectCommit()
	must(t, shop.Sell(t.Context(), 7, 3))
	kit.Before(Products.Key(7), "SELECT quantity")
}

// What a server says now and then, the Kit says on demand. After a deadlock the transaction is
// run again.
func TestSellAfterADeadlock(t *testing.T) {
	t.Parallel()
	shop, kit, mock := onKit(t)
	kit.FailLock(Products.Key(7), locktest.Deadlock)
	mock.ExpectBegin()
	mock.ExpectQuery(stockdb.Quantity).WithArgs(7).WillReturnRows(quantity(1))
	mock.ExpectRollback()
	wants(t, shop.Sell(t.Context(), 7, 3), ErrSoldOut)
}

// Nobody knows whether a COMMIT without an answer has committed.
func TestSellWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	shop, kit, mock := onKit(t)
	kit.FailStatement("COMMIT", locktest.UnknownOutcome)
	mock.ExpectBegin()
	mock.ExpectQuery(stockdb.Quantity).WithArgs(7).WillReturnRows(quantity(5))
	mock.ExpectExec(stockdb.SetQuantity).WithArgs(2, 7).WillReturnResult(sqlmock.NewResult(0, 1))
	mock.ExpectCommit()
	wants(t, shop.Sell(t.Context(), 7, 3), txlock.ErrUnknownOutcome)
}

// Return is run again when its version isn't the last one any more.
func TestReturnAgain(t *testing.T) {
	t.Parallel()
	shop, kit, mock := onKit(t)
	kit.FailLock(Products.Key(7), locktest.Stale)
	put := func(n int64) {
		mock.ExpectBegin()
		mock.ExpectQuery(stockdb.Quantity).WithArgs(7).WillReturnRows(quantity(n))
		mock.ExpectExec(stockdb.SetQuantity).WithArgs(n+3, 7).WillReturnResult(sqlmock.NewResult(0, 1))
	}
	put(5)
	mock.ExpectRollback()
	put(4)
	mock.ExpectCommit()
	must(t, shop.Return(t.Context(), 7, 3))
}

// The pool of a Kit knows what is held, so that AssertLocked works as in production.
func TestCorrect(t *testing.T) {
	t.Parallel()
	shop, kit, mock := onKit(t)
	mock.ExpectBegin()
	mock.ExpectExec(stockdb.SetQuantity).WithArgs(9, 7).WillReturnResult(sqlmock.NewResult(0, 1))
	mock.ExpectCommit()
	must(t, shop.Correct(t.Context(), 7, 9))
	kit.Before(Products.Key(7), "UPDATE products")
}

// In the bubble of synctest the time of the leases passes at once.
func TestRestock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		kit := locktest.Open(t, nil)
		leases, err := lease.NewManager(kit.DB()) // as in the program
		must(t, err)
		t.Cleanup(func() { must(t, leases.Close(context.Background())) })

		ordered := 0
		err = Restock(t.Context(), leases, []int64{7, 8}, func(context.Context, int64, uint64) error {
			ordered++
			kit.Disconnect() // the lease is renewed no more
			time.Sleep(time.Minute)
			return nil
		})
		wants(t, err, txlock.ErrLost)
		if ordered != 1 {
			t.Errorf("%d orders", ordered)
		}
	})
}
