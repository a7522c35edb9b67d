package locktest_test

import (
	"database/sql"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// A test says which statements the program sends, and afterwards what must have been locked
// before them.
func ExampleOpen() {
	_ = func(t *testing.T) { // a test of the program
		db, mock, err := sqlmock.New()
		if err != nil {
			t.Fatal(err)
		}
		kit := locktest.Open(t, db)
		mock.ExpectBegin()
		mock.ExpectExec("UPDATE orders").WillReturnResult(sqlmock.NewResult(0, 1))
		mock.ExpectCommit()
		err = locksqlc.Run(t.Context(), kit.DB(), orders.Keys(42), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), "UPDATE orders SET paid = 1 WHERE id = 42")
			return err
		})
		testdb.ErrorIf(t, err != nil, "%v", err)
		kit.Before(orders.Key(42), "UPDATE orders")
	}
}

// A fault comes at the next call of its kind, and fails the test if there is none.
func ExampleKit_FailLock() {
	_ = func(kit *locktest.Kit) {
		kit.FailLock(orders.Key(42), locktest.Deadlock) // Run begins again
		kit.FailLock(orders.Key(42), locktest.Timeout)  // txlock.ErrWaitTimeout, or ErrBusy of TryLock
		kit.FailLock(orders.Key(42), locktest.Stale)    // txlock.ErrStaleSnapshot
		kit.FailStatement("UPDATE orders", locktest.LostConnection)
		kit.FailStatement("COMMIT", locktest.UnknownOutcome) // it is committed, and the answer is lost
	}
}
