package main

import (
	"errors"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"

	"example.com/shop/shopdb"

	"github.com/dca00107/lockstep/txlock/locktest"
)

// After a deadlock the order is retried from its start.
func TestOrderAfterADeadlock(t *testing.T) {
	shop, kit, mock := newMock(t)
	key := shopdb.Products.Key(7)
	kit.FailLock(key, locktest.Deadlock)

	mock.ExpectBegin()
	mock.ExpectQuery("SELECT stock").WithArgs(7).WillReturnRows(sqlmock.NewRows([]string{"stock"}).AddRow(5))
	mock.ExpectExec("INSERT INTO products").WithArgs(7, 4).WillReturnResult(sqlmock.NewResult(0, 2))
	mock.ExpectExec("INSERT INTO orders").WithArgs(7).WillReturnResult(sqlmock.NewResult(1, 1))
	mock.ExpectCommit()

	if err := shop.Order(t.Context(), 7); err != nil {
		t.Error(err)
	}
	kit.Before(key, "SELECT stock")
	kit.Before(key, "INSERT INTO products")
}

// An order that can't be fulfilled is rolled back.
func TestSoldOut(t *testing.T) {
	shop, _, mock := newMock(t)
	mock.ExpectBegin()
	mock.ExpectQuery("SELECT stock").WithArgs(7).WillReturnRows(sqlmock.NewRows([]string{"stock"}).AddRow(0))
	mock.ExpectRollback()

	if err := shop.Order(t.Context(), 7); !errors.Is(err, ErrSoldOut) {
		t.Errorf("%v, want ErrSoldOut", err)
	}
}

// newMock returns a shop on a mock. At the end, all expected statements must have been sent.
func newMock(t *testing.T) (*Shop, *locktest.Kit, sqlmock.Sqlmock) {
	db, mock, err := sqlmock.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mock.ExpectationsWereMet(); err != nil {
			t.Error(err)
		}
	})
	kit := locktest.Open(t, db)
	return &Shop{kit.DB(), shopdb.New(kit.DB())}, kit, mock
}
