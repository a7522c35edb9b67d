package lockmock_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lockmock"
)

// TestRun is Run on a mock: it commits, rolls back, and begins again.
func TestRun(t *testing.T) {
	onMocks(t, func(m *mocked) {
		ctx, keys := m.Context(), orders.Keys(1, 2)
		update := func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE t")
			return err
		}
		lockmock.ExpectRun(m.mock, keys, m.server).Deadlocks()
		run := lockmock.ExpectRun(m.mock, keys, m.server).Granted(5, 6)
		m.mock.ExpectExec("UPDATE t").WillReturnResult(sqlmock.NewResult(0, 1))
		run.Commits()
		must(m, locksqlc.Run(ctx, m.db, keys, update))

		run = lockmock.ExpectRun(m.mock, nil, m.server).Granted()
		m.mock.ExpectExec("UPDATE t").WillReturnResult(sqlmock.NewResult(0, 1))
		broken := &mysql.MySQLError{Number: 1180, Message: "broken"}
		run.Commits().WillReturnError(broken)
		wants(m, "Run", locksqlc.Run(ctx, m.db, nil, update), broken)

		run = lockmock.ExpectRun(m.mock, keys[:1], m.server).Granted(7)
		m.mock.ExpectExec("UPDATE t").WillReturnError(broken)
		run.RollsBack()
		wants(m, "Run", locksqlc.Run(ctx, m.db, keys[:1], update), broken)

		lockmock.ExpectRun(m.mock, keys, m.server).TimesOut()
		wants(m, "Run", locksqlc.Run(ctx, m.db, keys, update), txlock.ErrWaitTimeout)
	})
}

// TestOptimistic is Optimistic on a mock: it commits, rolls back, and begins again.
func TestOptimistic(t *testing.T) {
	onMocks(t, func(m *mocked) {
		ctx := m.Context()
		broken := &mysql.MySQLError{Number: 1180, Message: "broken"}
		for _, key := range []txlock.Key{orders.Key(7), carts.Key("k")} {
			run := func() error {
				return locksqlc.Optimistic(ctx, m.db, key, func(tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, "UPDATE t")
					return err
				})
			}
			expect := func(version uint64) *lockmock.ExpectedOptimistic {
				o := lockmock.ExpectOptimistic(m.mock, key, version, m.server)
				m.mock.ExpectExec("UPDATE t").WillReturnResult(sqlmock.NewResult(0, 1))
				return o
			}
			expect(40).Conflicts() // and it is run again
			expect(41).Deadlocks()
			expect(41).Granted(42).Commits()
			must(m, run())

			expect(42).TimesOut()
			wants(m, "Optimistic", run(), txlock.ErrWaitTimeout)
			expect(42).Fails(broken)
			wants(m, "Optimistic", run(), broken)
			expect(42).Granted(43).Commits().WillReturnError(broken)
			wants(m, "Optimistic", run(), broken)

			o := lockmock.ExpectOptimistic(m.mock, key, 43, m.server)
			m.mock.ExpectExec("UPDATE t").WillReturnError(broken)
			o.RollsBack()
			wants(m, "Optimistic", run(), broken)
		}
	})
}

// TestTheLastConflict is given up after ten tries.
func TestTheLastConflict(t *testing.T) {
	t.Parallel()
	m := newMock(t, sqlmock.QueryMatcherEqual)
	for range 10 {
		lockmock.ExpectOptimistic(m.mock, orders.Key(7), 40).Conflicts()
	}
	err := locksqlc.Optimistic(t.Context(), m.db, orders.Key(7), func(*sql.Tx) error { return nil })
	wants(t, "Optimistic", err, txlock.ErrConflict)
	m.met()
}

// TestRunJoinsAgain locks by a function that joins the transaction by itself.
func TestRunJoinsAgain(t *testing.T) {
	onMocks(t, func(m *mocked) {
		run := lockmock.ExpectRun(m.mock, nil, m.server).Granted()
		lockmock.ExpectLock(m.mock, orders.Key(3), m.server).Granted(9)
		lockmock.ExpectRLock(m.mock, orders.Key(4), m.server).Granted(0)
		lockmock.ExpectTryLock(m.mock, orders.Key(5), m.server).Busy()
		lockmock.ExpectTryRLock(m.mock, orders.Key(5), m.server).Busy()
		lockmock.ExpectLockAll(m.mock, orders.Keys(6, 5), m.server).Granted(1, 2)
		lockmock.ExpectLockAny(m.mock, orders.Keys(8, 7), m.server).Granted(orders.Key(7), 3)
		run.Commits()
		err := locksqlc.Run(m.Context(), m.db, nil, func(tx *sql.Tx) error {
			join := func() *txlock.Scope {
				s, err := locksqlc.Join(m.Context(), tx)
				must(m, err)
				return s
			}
			grant, err := join().Lock(m.Context(), orders.Key(3))
			granted(m, grant, err, orders.Key(3), 9, false)
			grant, err = join().RLock(m.Context(), orders.Key(4))
			granted(m, grant, err, orders.Key(4), 0, true)
			_, err = join().TryLock(m.Context(), orders.Key(5))
			wants(m, "TryLock", err, txlock.ErrBusy)
			_, err = join().TryRLock(m.Context(), orders.Key(5))
			wants(m, "TryRLock", err, txlock.ErrBusy)
			_, err = join().LockAll(m.Context(), orders.Keys(6, 5)...)
			must(m, err)
			grant, err = join().LockAny(m.Context(), orders.Keys(8, 7)...)
			granted(m, grant, err, orders.Key(7), 3, false)
			return nil
		})
		must(m, err)
	})
}

// TestDo is Do and TryDo on a mock.
func TestDo(t *testing.T) {
	onMocks(t, func(m *mocked) {
		key, called := orders.Key(1), 0
		work := func(context.Context) error { called++; return nil }
		lockmock.ExpectDo(m.mock, key, m.server).Granted(7).Ends()
		must(m, locksqlc.Do(m.Context(), m.db, key, work))
		lockmock.ExpectDo(m.mock, key, m.server).TimesOut()
		wants(m, "Do", locksqlc.Do(m.Context(), m.db, key, work), txlock.ErrWaitTimeout)
		lockmock.ExpectTryDo(m.mock, key, m.server).Granted(8).Ends()
		must(m, locksqlc.TryDo(m.Context(), m.db, key, work))
		lockmock.ExpectTryDo(m.mock, key, m.server).Busy()
		wants(m, "TryDo", locksqlc.TryDo(m.Context(), m.db, key, work), txlock.ErrBusy)
		if called != 2 {
			m.Errorf("the function was called %d times", called)
		}
	})
}
