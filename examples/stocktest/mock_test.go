package stocktest

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/examples/stocktest/stockdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/lockmock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

func newMock(t *testing.T) (*sql.DB, sqlmock.Sqlmock) {
	t.Helper()
	db, mock, err := sqlmock.New(sqlmock.QueryMatcherOption(sqlmock.QueryMatcherEqual))
	must(t, err)
	t.Cleanup(func() {
		must(t, lockmock.ExpectationsWereMet(mock))
		mock.ExpectClose()
		must(t, db.Close())
	})
	return db, mock
}

// On a mock a test says what the shop must send: the lock before the read, for example.
func TestSellOnAMock(t *testing.T) {
	t.Parallel()
	db, mock := newMock(t)
	ctx := t.Context()
	shop := &Shop{db}

	run := lockmock.ExpectRun(mock, nil).Granted()
	lockmock.ExpectLock(mock, Products.Key(7)).Granted(41)
	mock.ExpectQuery(stockdb.Quantity).WithArgs(7).WillReturnRows(sqlmock.NewRows([]string{"quantity"}).AddRow(5))
	mock.ExpectExec(stockdb.SetQuantity).WithArgs(2, 7).WillReturnResult(sqlmock.NewResult(0, 1))
	run.Commits()
	if err := shop.Sell(ctx, 7, 3); err != nil {
		t.Fatal(err)
	}
}

// After a deadlock the transaction is run again.
func TestSellAfterADeadlock(t *testing.T) {
	t.Parallel()
	db, mock := newMock(t)
	run := lockmock.ExpectRun(mock, nil).Granted()
	lockmock.ExpectLock(mock, Products.Key(7)).Deadlocks()
	run.RollsBack()
	run = lockmock.ExpectRun(mock, nil).Granted()
	lockmock.ExpectLock(mock, Products.Key(7)).Granted(41)
	mock.ExpectQuery(stockdb.Quantity).WithArgs(7).WillReturnRows(sqlmock.NewRows([]string{"quantity"}).AddRow(1))
	run.RollsBack()
	wants(t, (&Shop{db}).Sell(t.Context(), 7, 3), ErrSoldOut)
}

// After a conflict, too: with what was changed meanwhile.
func TestReturnAfterAConflict(t *testing.T) {
	t.Parallel()
	db, mock := newMock(t)
	expect := func(version uint64, quantity int64) *lockmock.ExpectedOptimistic {
		optimistic := lockmock.ExpectOptimistic(mock, Products.Key(7), version)
		mock.ExpectQuery(stockdb.Quantity).WithArgs(7).WillReturnRows(sqlmock.NewRows([]string{"quantity"}).AddRow(quantity))
		mock.ExpectExec(stockdb.SetQuantity).WithArgs(quantity+3, 7).WillReturnResult(sqlmock.NewResult(0, 1))
		return optimistic
	}
	expect(41, 5).Conflicts()
	expect(42, 4).Granted(43).Commits()
	must(t, (&Shop{db}).Return(t.Context(), 7, 3))
}

// A mock's pool doesn't know what is held, so what asserts that needs it switched off.
func TestCorrectOnAMock(t *testing.T) {
	t.Parallel()
	db, mock := newMock(t)
	run := lockmock.ExpectRun(mock, Products.Keys(7)).Granted(41)
	mock.ExpectExec(stockdb.SetQuantity).WithArgs(9, 7).WillReturnResult(sqlmock.NewResult(0, 1))
	run.Commits()
	must(t, (&Shop{db}).Correct(locktest.WithoutAssertions(t.Context()), 7, 9))
}

func TestRestockOnAMock(t *testing.T) {
	t.Parallel()
	db, mock := newMock(t)
	m, err := lease.NewManager(db, lease.TTL(time.Hour))
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(t.Context())) })
	leases := lockmock.ExpectLeases(t, mock)
	leases.ExpectAcquire(restocking).Granted(41)
	leases.ExpectRelease(restocking).Succeeds()
	var tokens []uint64
	must(t, Restock(t.Context(), m, []int64{7, 8}, func(_ context.Context, _ int64, token uint64) error {
		tokens = append(tokens, token)
		return nil
	}))
	if len(tokens) != 2 || tokens[0] != 41 || tokens[1] != 41 {
		t.Errorf("tokens %v", tokens)
	}
}

var _ Locks = (*txlock.Scope)(nil)
