package lockmock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lockmock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var (
	orders = txlock.NewFamily[int64]("order")
	carts  = txlock.NewFamily[string]("cart", txlock.Hashed(), txlock.Exact())
)

// mocked is a mock as a test of a user's has it.
type mocked struct {
	*testing.T
	db      *sql.DB
	mock    sqlmock.Sqlmock
	server  lockmock.Option
	mariaDB bool
	equal   bool
}

// onMocks runs a test on mocks of both servers, both matchers, in order and out of it.
func onMocks(t *testing.T, test func(m *mocked)) {
	t.Helper()
	t.Parallel()
	for _, version := range []string{lockmock.MySQL, lockmock.MariaDB, "10.6.12-MariaDB"} {
		for name, matcher := range map[string]sqlmock.QueryMatcher{"regexp": sqlmock.QueryMatcherRegexp, "equal": sqlmock.QueryMatcherEqual} {
			for _, ordered := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/ordered=%t", version, name, ordered), func(t *testing.T) {
					t.Parallel()
					m := newMock(t, matcher)
					m.server, m.mariaDB, m.equal = lockmock.Server(version), version != lockmock.MySQL, name == "equal"
					m.mock.MatchExpectationsInOrder(ordered)
					test(m)
					m.met()
				})
			}
		}
	}
}

// newMock is a mock of MySQL that is closed at the end.
func newMock(t *testing.T, matcher sqlmock.QueryMatcher) *mocked {
	t.Helper()
	db, mock, err := sqlmock.New(sqlmock.QueryMatcherOption(matcher))
	if err != nil {
		t.Fatal(err)
	}
	m := &mocked{T: t, db: db, mock: mock, server: lockmock.Server(lockmock.MySQL)}
	t.Cleanup(func() {
		mock.MatchExpectationsInOrder(false) // closing comes now, whatever is left
		for range 4 {                        // connections at most
			mock.ExpectClose()
		}
		if err := db.Close(); err != nil {
			t.Errorf("close the mock: %v", err)
		}
	})
	return m
}

// met tells that all was sent.
func (m *mocked) met() {
	m.Helper()
	if err := m.mock.ExpectationsWereMet(); err != nil {
		m.Error(err)
	}
}

// begin begins a transaction that is rolled back at the end of the test.
func (m *mocked) begin() *sql.Tx {
	m.Helper()
	m.mock.ExpectBegin()
	tx, err := m.db.BeginTx(context.WithoutCancel(m.Context()), nil) // not rolled back behind the test
	if err != nil {
		m.Fatal(err)
	}
	return tx
}

// end rolls back.
func (m *mocked) end(tx *sql.Tx) {
	m.Helper()
	m.mock.ExpectRollback()
	if err := tx.Rollback(); err != nil {
		m.Error(err)
	}
}

func wants(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
