package lockmock_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lockmock"
)

// failure is a program that doesn't do what its test expects, and what it is told.
type failure struct {
	expect  func(m *mocked)
	program func(m *mocked) error
	// came is in the program's error, in which the library names what the program did.
	came string
	// expected are the lines of ExpectationsWereMet, which name what it should have done.
	// The first of them is in the mock's own messages as well, but for those of brief,
	// where the mock shows no arguments.
	expected []string
	brief    bool
}

// inScope is a program that joins a transaction of its own.
func inScope(work func(ctx context.Context, s *txlock.Scope, tx *sql.Tx) error) func(m *mocked) error {
	return func(m *mocked) error {
		tx, err := m.db.BeginTx(context.WithoutCancel(m.Context()), nil)
		must(m, err)
		m.Cleanup(func() {
			m.mock.MatchExpectationsInOrder(false) // some are left
			m.end(tx)
		})
		s, err := locksqlc.Join(m.Context(), tx)
		must(m, err)
		return work(m.Context(), s, tx)
	}
}

// joins expects such a program.
func joins(expect func(l *lockmock.Locks)) func(m *mocked) {
	return func(m *mocked) {
		m.mock.ExpectBegin()
		expect(lockmock.ExpectJoin(m.mock, m.server))
	}
}

// locksOf takes the locks of keys one after the other.
func locksOf(keys ...txlock.Key) func(m *mocked) error {
	return inScope(func(ctx context.Context, s *txlock.Scope, _ *sql.Tx) error {
		for _, key := range keys {
			if _, err := s.Lock(ctx, key); err != nil {
				return err
			}
		}
		return nil
	})
}

func expectLocksOf(keys ...txlock.Key) func(m *mocked) {
	return joins(func(l *lockmock.Locks) {
		for _, key := range keys {
			l.ExpectLock(key).Granted(41)
		}
	})
}

// lockFailures are those of calls on one scope.
var lockFailures = map[string]failure{
	"wrong key": {
		expectLocksOf(orders.Key(7)), locksOf(orders.Key(8)), `lock "order:8"`,
		[]string{`Lock("order:7"), in place of which came the key "order:8"`}, false,
	},
	"wrong hashed key": {
		expectLocksOf(carts.Key("a")), locksOf(carts.Key("b")), `lock "cart:b"`,
		[]string{`Lock("cart:a"), in place of which came a hashed key of slot 62524`}, false,
	},
	"a key with signs of expressions": {
		expectLocksOf(txlock.Named(`a.*\E(`)), locksOf(txlock.Named("b")), `lock "b"`,
		[]string{`Lock("a.*\\E("), in place of which came the key "b"`}, false,
	},
	"wrong verb, shared": {
		expectLocksOf(orders.Key(7)),
		inScope(func(ctx context.Context, s *txlock.Scope, _ *sql.Tx) error {
			_, err := s.RLock(ctx, orders.Key(7))
			return err
		}), `lock shared "order:7"`, []string{`Lock("order:7")`}, false,
	},
	"wrong verb, a try": {
		joins(func(l *lockmock.Locks) { l.ExpectTryLock(orders.Key(7)).Busy() }),
		locksOf(orders.Key(7)), `lock "order:7"`, []string{`TryLock("order:7")`}, false,
	},
	"wrong order": {
		expectLocksOf(orders.Key(7), orders.Key(8)), locksOf(orders.Key(8), orders.Key(7)), `lock "order:8"`,
		[]string{`Lock("order:7"), in place of which came the key "order:8"`, `Lock("order:8")`}, false,
	},
	"too few": {
		expectLocksOf(orders.Key(7), orders.Key(8)), locksOf(orders.Key(7)), "", []string{`Lock("order:8")`}, false,
	},
	"too many": {expectLocksOf(orders.Key(7)), locksOf(orders.Key(7), orders.Key(8)), `lock "order:8"`, nil, false},
	"another statement between": {
		expectLocksOf(orders.Key(7)),
		inScope(func(ctx context.Context, s *txlock.Scope, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, "UPDATE t"); err != nil {
				return err
			}
			_, err := s.Lock(ctx, orders.Key(7))
			return err
		}), "UPDATE t", []string{`Lock("order:7")`}, false,
	},
	"a key too many of several": {
		joins(func(l *lockmock.Locks) { l.ExpectLockAll(orders.Keys(7, 8)...).Granted(41, 42) }),
		inScope(func(ctx context.Context, s *txlock.Scope, _ *sql.Tx) error {
			_, err := s.LockAll(ctx, orders.Keys(7, 8, 9)...)
			return err
		}), "lock all 3 keys", []string{`LockAll("order:7", "order:8")`}, false,
	},
	"wrong key of several": {
		joins(func(l *lockmock.Locks) { l.ExpectLockAny(orders.Keys(7, 8)...).Granted(orders.Key(8), 42) }),
		inScope(func(ctx context.Context, s *txlock.Scope, _ *sql.Tx) error {
			_, err := s.LockAny(ctx, orders.Keys(7, 9)...)
			return err
		}), `lock "order:9"`, []string{`LockAny("order:7", "order:8"), in place of which came the key "order:9"`}, false,
	},
	"version of the wrong key": {
		joins(func(l *lockmock.Locks) { l.ExpectVersion(orders.Key(7), 40) }),
		inScope(func(ctx context.Context, s *txlock.Scope, _ *sql.Tx) error {
			_, err := s.Version(ctx, orders.Key(8))
			return err
		}), `version of "order:8"`, []string{`Version("order:7"), in place of which came the key "order:8"`}, false,
	},
	"compared the wrong key": {
		joins(func(l *lockmock.Locks) { l.ExpectCompareAndBump(orders.Key(7), 40).Granted(41) }),
		inScope(func(ctx context.Context, s *txlock.Scope, _ *sql.Tx) error {
			return s.CompareAndBump(ctx, orders.Key(8), 40)
		}), `"order:8"`, []string{`CompareAndBump("order:7", 40), in place of which came the key "order:8"`}, false,
	},
	"not verified": {
		joins(func(l *lockmock.Locks) { l.ExpectVerify(true) }), locksOf(), "", []string{"Verify()"}, false,
	},
}

// frameFailures are those of whole transactions.
var frameFailures = map[string]failure{
	"no Run": {
		func(m *mocked) {
			run := lockmock.ExpectRun(m.mock, orders.Keys(7, 8), m.server).Granted(41, 42)
			run.Commits()
		},
		func(*mocked) error { return nil }, "",
		[]string{
			`Begin for Run("order:7", "order:8")`, `Join for Run("order:7", "order:8")`,
			`LockAll("order:7", "order:8")`, "Commit",
		}, true,
	},
	"another statement instead of Run": {
		func(m *mocked) { lockmock.ExpectRun(m.mock, nil, m.server).Granted().RollsBack() },
		func(m *mocked) error {
			_, err := m.db.ExecContext(m.Context(), "UPDATE t")
			return err
		}, "UPDATE t", []string{"Begin for Run()", "Join for Run()", "Rollback"}, true,
	},
	"too many keys of Run": {
		func(m *mocked) { lockmock.ExpectRun(m.mock, nil, m.server).Granted().Commits() },
		func(m *mocked) error {
			return locksqlc.Run(m.Context(), m.db, orders.Keys(7), func(*sql.Tx) error { return nil })
		}, `lock "order:7"`, []string{"Commit"}, true,
	},
	"no lock in Run": {
		func(m *mocked) {
			run := lockmock.ExpectRun(m.mock, nil, m.server).Granted()
			lockmock.ExpectLock(m.mock, orders.Key(7), m.server).Granted(41)
			run.Commits()
		},
		func(m *mocked) error {
			return locksqlc.Run(m.Context(), m.db, nil, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(m.Context(), "UPDATE t")
				return err
			})
		}, "UPDATE t", []string{`Join for Lock("order:7")`, `Lock("order:7")`, "Commit"}, false,
	},
	"Optimistic of the wrong key": {
		func(m *mocked) { lockmock.ExpectOptimistic(m.mock, orders.Key(7), 40, m.server).Granted(41) },
		func(m *mocked) error {
			return locksqlc.Optimistic(m.Context(), m.db, orders.Key(8), func(*sql.Tx) error { return nil })
		}, `version of "order:8"`,
		[]string{`Version("order:7"), in place of which came the key "order:8"`, `CompareAndBump("order:7", 40)`}, false,
	},
	"Do of the wrong key": {
		func(m *mocked) { lockmock.ExpectDo(m.mock, orders.Key(7), m.server).Granted(41).Ends() },
		func(m *mocked) error {
			return locksqlc.Do(m.Context(), m.db, orders.Key(8), func(context.Context) error { return nil })
		}, `lock "order:8"`,
		[]string{`Lock("order:7"), in place of which came the key "order:8"`, `the end of Do("order:7")`}, false,
	},
	"no Do": {
		func(m *mocked) { lockmock.ExpectDo(m.mock, orders.Key(7), m.server).Granted(41).Ends() },
		func(*mocked) error { return nil }, "",
		[]string{
			`Begin for Do("order:7")`, `Join for Do("order:7")`, `Do("order:7")`,
			`Lock("order:7")`, `the end of Do("order:7")`,
		}, true,
	},
}

// TestMessages reads what a program and its test are told where the one doesn't do what
// the other expects: in words, and whatever the server and the matcher.
func TestMessages(t *testing.T) {
	t.Parallel()
	matchers := map[string]sqlmock.QueryMatcher{"regexp": sqlmock.QueryMatcherRegexp, "equal": sqlmock.QueryMatcherEqual}
	for _, version := range []string{lockmock.MySQL, lockmock.MariaDB} {
		for matcher := range matchers {
			for _, failures := range []map[string]failure{lockFailures, frameFailures, leaseFailures} {
				for name, f := range failures {
					t.Run(version+"/"+matcher+"/"+name, func(t *testing.T) {
						t.Parallel()
						m := newMock(t, matchers[matcher])
						m.server, m.equal = lockmock.Server(version), matcher == "equal"
						m.fails(f)
					})
				}
			}
		}
	}
}

// fails checks what is said of a failure.
func (m *mocked) fails(f failure) {
	m.Helper()
	f.expect(m)
	err := f.program(m)
	switch {
	case f.came == "" && err != nil:
		m.Errorf("the program is told %v", err)
	case f.came != "" && (err == nil || !strings.Contains(err.Error(), f.came)):
		m.Errorf("the program is told %v, without %q", err, f.came)
	}
	unmet, own := lockmock.ExpectationsWereMet(m.mock), m.mock.ExpectationsWereMet()
	if len(f.expected) == 0 {
		must(m, errors.Join(unmet, own))
		return
	}
	want := "lockmock: these calls are expected and were not made, or not to their end:\n  " + strings.Join(f.expected, "\n  ") + "\n"
	if unmet == nil || !strings.HasPrefix(unmet.Error(), want) || !strings.HasSuffix(unmet.Error(), "\n"+own.Error()) {
		m.Errorf("the test is told %v, want %s%v", unmet, want, own)
	}
	if !f.brief && !strings.Contains(own.Error(), f.expected[0]) {
		m.Errorf("the mock says %v, without %q", own, f.expected[0])
	}
	call, _, _ := strings.Cut(f.expected[0], ", in place of")
	if sends := call + " sends: "; !m.equal && strings.Contains(own.Error(), "matches sql") && !strings.Contains(call, `\`) && !strings.Contains(own.Error(), sends) {
		m.Errorf("the mock says %v, without %q", own, sends)
	}
}

// TestTheProgramsOwnStatements are the mock's concern, and those that come in any order
// stand for none.
func TestTheProgramsOwnStatements(t *testing.T) {
	t.Parallel()
	m := newMock(t, sqlmock.QueryMatcherRegexp)
	expectLocksOf(orders.Key(9), orders.Key(7), orders.Key(8))(m)
	m.mock.MatchExpectationsInOrder(false)
	must(t, locksOf(orders.Key(8), orders.Key(7))(m))
	want := "not made, or not to their end:\n  Lock(\"order:9\")\nthere is"
	if err := lockmock.ExpectationsWereMet(m.mock); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the test is told %v, want %q in it", err, want)
	}

	m = newMock(t, sqlmock.QueryMatcherRegexp)
	expectLocksOf(orders.Key(7))(m)
	m.mock.ExpectExec("UPDATE t")
	must(t, locksOf(orders.Key(7))(m))
	if err := lockmock.ExpectationsWereMet(m.mock); err == nil || err.Error() != m.mock.ExpectationsWereMet().Error() {
		t.Errorf("the test is told %v", err)
	}
}
