package lockmock_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lockmock"
)

// TestOnceOfAScope calls Scope.Once on a mock, with every outcome.
func TestOnceOfAScope(t *testing.T) {
	onMocks(t, func(m *mocked) {
		for _, key := range []txlock.Key{orders.Key(7), carts.Key("k"), txlock.Namespace("shop").Named("k")} {
			for _, nothingRead := range []bool{true, false} {
				s, l, tx := m.joined(nothingRead)
				asks := func(what string, s *txlock.Scope, want bool, wantErr error) {
					m.Helper()
					first, err := s.Once(m.Context(), key, txlock.Fingerprint([]byte("x")))
					wants(m, what, err, wantErr)
					if first != want {
						m.Errorf("%s: first is %t", what, first)
					}
				}
				l.ExpectOnce(key).First()
				asks("First", s, true, nil)
				l.ExpectOnce(key).Again()
				asks("Again", s, false, nil)
				l.ExpectOnce(key).Mismatches()
				asks("Mismatches", s, false, txlock.ErrMismatch)
				l.ExpectOnce(key).TimesOut()
				asks("TimesOut", s, false, txlock.ErrWaitTimeout)
				const limit = 100 * time.Millisecond
				l.WaitAtMost(limit).ExpectOnce(key).First()
				asks("WaitAtMost", s.WaitAtMost(limit), true, nil)
				l.WaitAtMost(limit).ExpectOnce(key).TimesOut()
				asks("WaitAtMost that times out", s.WaitAtMost(limit), false, txlock.ErrWaitTimeout)
				missing := &mysql.MySQLError{Number: 1146, Message: "no table"}
				l.ExpectOnce(key).Fails(missing)
				asks("Fails", s, false, txlock.ErrSchema)
				l.ExpectOnce(key).Deadlocks()
				asks("Deadlocks", s, false, txlock.ErrDeadlock)
				m.end(tx)
			}
		}
	})
}

// TestOnce is Once and OnceValue on a mock.
func TestOnce(t *testing.T) {
	onMocks(t, func(m *mocked) {
		ctx, key := m.Context(), orders.Key(7)
		update := func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE t")
			return err
		}
		asks := func(what string, want bool, wantErr error) {
			m.Helper()
			first, err := locksqlc.Once(ctx, m.db, key, update, txlock.Fingerprint([]byte("x")))
			wants(m, what, err, wantErr)
			if first != want {
				m.Errorf("%s: first is %t", what, first)
			}
		}
		lockmock.ExpectOnce(m.mock, key, m.server).Deadlocks() // and it is run again
		run := lockmock.ExpectOnce(m.mock, key, m.server).First()
		m.mock.ExpectExec("UPDATE t").WillReturnResult(sqlmock.NewResult(0, 1))
		run.Commits()
		asks("First", true, nil)

		run = lockmock.ExpectOnce(m.mock, key, m.server).First()
		broken := &mysql.MySQLError{Number: 1180, Message: "broken"}
		m.mock.ExpectExec("UPDATE t").WillReturnError(broken)
		run.RollsBack()
		asks("RollsBack", false, broken)

		lockmock.ExpectOnce(m.mock, key, m.server).Again()
		asks("Again", false, nil)
		lockmock.ExpectOnce(m.mock, key, m.server).Mismatches()
		asks("Mismatches", false, txlock.ErrMismatch)
		lockmock.ExpectOnce(m.mock, key, m.server).TimesOut()
		asks("TimesOut", false, txlock.ErrWaitTimeout)

		type receipt struct{ N int }
		answers := func(want receipt, wantFirst bool) {
			m.Helper()
			got, first, err := locksqlc.OnceValue(ctx, m.db, key, func(*sql.Tx) (receipt, error) { return receipt{7}, nil })
			if got != want || first != wantFirst || err != nil {
				m.Errorf("%+v, %t, %v", got, first, err)
			}
		}
		run = lockmock.ExpectOnce(m.mock, key, m.server).First()
		run.Stores()
		run.Commits()
		answers(receipt{7}, true)
		lockmock.ExpectOnce(m.mock, key, m.server).AgainWith(receipt{8})
		answers(receipt{8}, false)
	})
	defer func() {
		if recover() == nil {
			t.Error("a value that can't be stored doesn't panic")
		}
	}()
	m := newMock(t, sqlmock.QueryMatcherRegexp)
	lockmock.ExpectOnce(m.mock, orders.Key(7)).AgainWith(func() {})
}
