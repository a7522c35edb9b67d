package main

import (
	"errors"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"

	"example.com/shop/shopdb"

	"github.com/dca00107/lockstep/txlock/lockmock"
)

// After a deadlock the order is placed again, from its beginning.
func TestOrderAfterADeadlock(t *testing.T) {
	shop, mock := newMock(t)
	keys := shopdb.Products.Keys(7)

	lockmock.ExpectRun(mock, keys).Deadlocks()

	run := lockmock.ExpectRun(mock, keys).Granted(1)
	locks := lockmock.ExpectJoin(mock)
	locks.ExpectLockAll(keys...).Granted(1) // by Stock
	mock.ExpectQuery("SELECT stock").WithArgs(7).WillReturnRows(sqlmock.NewRows([]string{"stock"}).AddRow(5))
	locks.ExpectLockAll(keys...).Granted(1) // by PutStock
	mock.ExpectExec("INSERT INTO products").WithArgs(7, 4).WillReturnResult(sqlmock.NewResult(0, 2))
	mock.ExpectExec("INSERT INTO orders").WithArgs(7).WillReturnResult(sqlmock.NewResult(1, 1))
	run.Commits()

	if err := shop.Order(t.Context(), 7); err != nil {
		t.Error(err)
	}
}

// What can't be sold is rolled back.
func TestSoldOut(t *testing.T) {
	shop, mock := newMock(t)
	keys := shopdb.Products.Keys(7)

	run := lockmock.ExpectRun(mock, keys).Granted(1)
	lockmock.ExpectJoin(mock).ExpectLockAll(keys...).Granted(1)
	mock.ExpectQuery("SELECT stock").WithArgs(7).WillReturnRows(sqlmock.NewRows([]string{"stock"}).AddRow(0))
	run.RollsBack()

	if err := shop.Order(t.Context(), 7); !errors.Is(err, ErrSoldOut) {
		t.Errorf("%v, want ErrSoldOut", err)
	}
}

// newMock returns a shop on a mock. At the end, all that was expected must have been sent.
func newMock(t *testing.T) (*Shop, sqlmock.Sqlmock) {
	db, mock, err := sqlmock.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mock.ExpectClose()
		if err := errors.Join(db.Close(), lockmock.ExpectationsWereMet(mock)); err != nil {
			t.Error(err)
		}
	})
	return &Shop{db, shopdb.New(db)}, mock
}
