package lockmock_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/inside"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lockmock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// joined is a scope of the library and what the mock expects of it.
func (m *mocked) joined(nothingRead bool) (*txlock.Scope, *lockmock.Locks, *sql.Tx) {
	m.Helper()
	tx := m.begin()
	options := []lockmock.Option{m.server}
	var join []txlock.JoinOption
	if nothingRead {
		options = append(options, lockmock.NothingRead)
		join = append(join, txlock.NothingRead())
	}
	locks := lockmock.ExpectJoin(m.mock, options...)
	scope, err := locksqlc.Join(m.Context(), tx, join...)
	must(m, err)
	return scope, locks, tx
}

// granted checks a lock that was given.
func granted(t testing.TB, grant txlock.Grant, err error, key txlock.Key, token uint64, shared bool) {
	t.Helper()
	if want := inside.LockOf[*txlock.Scope, txlock.Key, txlock.Grant, txlock.PoolOption]().NewGrant(key, token, shared); err != nil || grant != want {
		t.Errorf("granted %+v, %v, want %+v", grant, err, want)
	}
}

// TestVerbs calls every verb of a scope on a mock, with every outcome.
func TestVerbs(t *testing.T) {
	t.Parallel()
	for _, key := range []txlock.Key{orders.Key(7), carts.Key("k")} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/first=%t", key, first), func(t *testing.T) {
				onMocks(t, func(m *mocked) { m.verbs(key, first) })
			})
		}
	}
}

// verbs makes each call with each outcome in a scope of its own.
func (m *mocked) verbs(key txlock.Key, first bool) {
	ctx := m.Context()
	in := func(f func(s *txlock.Scope, l *lockmock.Locks)) {
		s, l, tx := m.joined(first)
		f(s, l)
		m.end(tx)
	}
	refused := func(what string, grant txlock.Grant, err, want error) {
		m.Helper()
		wants(m, what, err, want)
		if grant != (txlock.Grant{}) {
			m.Errorf("%s: granted %+v", what, grant)
		}
	}
	const limit = 200 * time.Millisecond
	waits := []struct {
		name   string
		expect func(*lockmock.Locks) *lockmock.ExpectedLock
		call   func(*txlock.Scope) (txlock.Grant, error)
		shared bool
	}{
		{"Lock", func(l *lockmock.Locks) *lockmock.ExpectedLock { return l.ExpectLock(key) }, func(s *txlock.Scope) (txlock.Grant, error) { return s.Lock(ctx, key) }, false},
		{"RLock", func(l *lockmock.Locks) *lockmock.ExpectedLock { return l.ExpectRLock(key) }, func(s *txlock.Scope) (txlock.Grant, error) { return s.RLock(ctx, key) }, true},
		{"WaitAtMost Lock", func(l *lockmock.Locks) *lockmock.ExpectedLock { return l.WaitAtMost(limit).ExpectLock(key) }, func(s *txlock.Scope) (txlock.Grant, error) { return s.WaitAtMost(limit).Lock(ctx, key) }, false},
		{"WaitAtMost RLock", func(l *lockmock.Locks) *lockmock.ExpectedLock { return l.WaitAtMost(limit).ExpectRLock(key) }, func(s *txlock.Scope) (txlock.Grant, error) { return s.WaitAtMost(limit).RLock(ctx, key) }, true},
	}
	for _, v := range waits {
		in(func(s *txlock.Scope, l *lockmock.Locks) {
			v.expect(l).Granted(41)
			grant, err := v.call(s)
			granted(m, grant, err, key, 41, v.shared)
			v.expect(l).Granted(41) // a plain pool asks again
			grant, err = v.call(s)
			granted(m, grant, err, key, 41, v.shared)
		})
		in(func(s *txlock.Scope, l *lockmock.Locks) {
			v.expect(l).TimesOut()
			grant, err := v.call(s)
			refused(v.name, grant, err, txlock.ErrWaitTimeout)
			v.expect(l).Granted(3)
			grant, err = v.call(s)
			granted(m, grant, err, key, 3, v.shared)
		})
		in(func(s *txlock.Scope, l *lockmock.Locks) {
			v.expect(l).Deadlocks()
			grant, err := v.call(s)
			refused(v.name, grant, err, txlock.ErrDeadlock)
		})
		in(func(s *txlock.Scope, l *lockmock.Locks) {
			missing := &mysql.MySQLError{Number: 1146, Message: "no table"}
			v.expect(l).Fails(missing)
			grant, err := v.call(s)
			refused(v.name, grant, err, txlock.ErrSchema)
			refused(v.name, grant, err, missing)
		})
		if first {
			continue
		}
		in(func(s *txlock.Scope, l *lockmock.Locks) {
			v.expect(l).Stale()
			grant, err := v.call(s)
			refused(v.name, grant, err, txlock.ErrStaleSnapshot)
		})
	}
	in(func(s *txlock.Scope, l *lockmock.Locks) {
		l.ExpectTryLock(key).Busy()
		grant, err := s.TryLock(ctx, key)
		refused("TryLock", grant, err, txlock.ErrBusy)
		l.ExpectTryRLock(key).Busy()
		grant, err = s.TryRLock(ctx, key)
		refused("TryRLock", grant, err, txlock.ErrBusy)
		l.ExpectTryRLock(key).Granted(5)
		grant, err = s.TryRLock(ctx, key)
		granted(m, grant, err, key, 5, true)
		_, err = s.Lock(ctx, key) // costs nothing
		wants(m, "upgrade", err, txlock.ErrUpgrade)
		l.ExpectVerify(true)
		wants(m, "Verify", s.Verify(ctx), nil)
		l.ExpectVerify(false)
		wants(m, "Verify", s.Verify(ctx), txlock.ErrTxDoomed)
	})
	in(func(s *txlock.Scope, l *lockmock.Locks) {
		l.ExpectTryLock(key).Granted(6)
		grant, err := s.TryLock(ctx, key)
		granted(m, grant, err, key, 6, false)
		l.ExpectRLock(key).Granted(6)
		grant, err = s.RLock(ctx, key)
		granted(m, grant, err, key, 6, false)
	})
}

// TestVersions reads and compares versions on a mock, with every outcome.
func TestVersions(t *testing.T) {
	t.Parallel()
	named, hashed := orders.Key(7), carts.Key("k")
	for _, c := range []struct {
		key          txlock.Key
		first, reads bool
		limit        time.Duration
	}{
		{named, true, true, 0}, {named, false, false, 0}, {named, true, false, time.Minute}, {named, false, true, time.Minute},
		{hashed, true, false, 0}, {hashed, false, true, 0}, {hashed, true, true, time.Minute}, {hashed, false, false, time.Minute},
	} {
		t.Run(fmt.Sprintf("%s/first=%t/reads=%t/limit=%v", c.key, c.first, c.reads, c.limit), func(t *testing.T) {
			onMocks(t, func(m *mocked) { m.versions(c.key, c.first, c.reads, c.limit) })
		})
	}
}

func (m *mocked) versions(key txlock.Key, first, reads bool, limit time.Duration) {
	ctx := m.Context()
	in := func(f func(l *lockmock.Locks, compare func(version uint64) error)) {
		s, l, tx := m.joined(first)
		if reads {
			l.ExpectVersion(key, 40)
			version, err := s.Version(ctx, key)
			must(m, err)
			if version != 40 {
				m.Errorf("version %d", version)
			}
		}
		if limit > 0 {
			s, l = s.WaitAtMost(limit), l.WaitAtMost(limit)
		}
		f(l, func(version uint64) error { return s.CompareAndBump(ctx, key, version) })
		m.end(tx)
	}
	in(func(l *lockmock.Locks, compare func(uint64) error) {
		l.ExpectCompareAndBump(key, 40).Granted(41)
		must(m, compare(40))
	})
	in(func(l *lockmock.Locks, compare func(uint64) error) {
		l.ExpectCompareAndBump(key, 40).Conflicts()
		wants(m, "conflict", compare(40), txlock.ErrConflict)
		l.ExpectCompareAndBump(key, 40).TimesOut()
		wants(m, "wait", compare(40), txlock.ErrWaitTimeout)
		l.ExpectCompareAndBump(key, 40).Deadlocks()
		wants(m, "deadlock", compare(40), txlock.ErrDeadlock)
	})
	if first || reads {
		return
	}
	in(func(l *lockmock.Locks, compare func(uint64) error) {
		l.ExpectCompareAndBump(key, 40).Stale()
		wants(m, "stale", compare(40), txlock.ErrStaleSnapshot)
	})
}

// TestMixedKeys calls LockAll and RLockAll with shared keys, and Run, on a mock.
func TestMixedKeys(t *testing.T) {
	onMocks(t, func(m *mocked) {
		ctx, keys := m.Context(), []txlock.Key{orders.Key(9), txlock.Shared(orders.Key(7)), txlock.Shared(carts.Key("c"))}
		for _, first := range []bool{true, false} {
			s, l, tx := m.joined(first)
			l.ExpectLockAll(keys...).Granted(5, 6, 7)
			grants, err := s.LockAll(ctx, keys...)
			must(m, err)
			for i, grant := range grants {
				if grant.Token() != uint64(5+i) || grant.Shared() != (i > 0) {
					m.Errorf("grant %d is %+v", i, grant)
				}
			}
			m.end(tx)
			s, l, tx = m.joined(first)
			l.ExpectRLockAll(orders.Keys(1, 2)...).TimesOut()
			_, err = s.RLockAll(ctx, orders.Keys(1, 2)...)
			wants(m, "RLockAll", err, txlock.ErrWaitTimeout)
			l.ExpectLockAll(keys...).Deadlocks()
			_, err = s.LockAll(ctx, keys...)
			wants(m, "LockAll", err, txlock.ErrDeadlock)
			m.end(tx)
		}
	})
}

// TestManyKeys calls LockAll and LockAny on a mock.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	named := orders.Keys(9, 7)
	for name, keys := range map[string][]txlock.Key{"named": named, "mixed": append(carts.Keys("c", "a"), named...), "one": named[:1]} {
		t.Run(name, func(t *testing.T) {
			onMocks(t, func(m *mocked) {
				m.manyKeys(keys, true)
				m.manyKeys(keys, false)
			})
		})
	}
}

func (m *mocked) manyKeys(keys []txlock.Key, first bool) {
	ctx := m.Context()
	tokens := []uint64{50, 40, 30, 20}[:len(keys)]
	all := func(grants []txlock.Grant, err error) {
		m.Helper()
		must(m, err)
		for i, grant := range grants {
			granted(m, grant, nil, keys[i], tokens[i], false)
		}
	}
	s, l, tx := m.joined(first)
	l.ExpectLockAll(keys...).Granted(tokens...)
	all(s.LockAll(ctx, keys...))
	l.ExpectLockAll(keys...).Granted(tokens...)
	all(s.LockAll(ctx, keys...))
	m.end(tx)

	s, l, tx = m.joined(first)
	l.ExpectLockAll(keys...).TimesOut()
	_, err := s.LockAll(ctx, keys...)
	wants(m, "LockAll", err, txlock.ErrWaitTimeout)
	l.ExpectLockAll(keys...).Deadlocks()
	_, err = s.LockAll(ctx, keys...)
	wants(m, "LockAll", err, txlock.ErrDeadlock)
	if !m.equal {
		l.WaitAtMost(time.Minute).ExpectLockAll(keys...).Granted(tokens...)
		all(s.WaitAtMost(time.Minute).LockAll(ctx, keys...))
	}
	m.end(tx)
	if !first {
		s, l, tx = m.joined(first)
		l.ExpectLockAll(keys...).Stale()
		_, err = s.LockAll(ctx, keys...)
		wants(m, "LockAll", err, txlock.ErrStaleSnapshot)
		m.end(tx)
	}

	s, l, tx = m.joined(first)
	l.ExpectLockAny(keys...).Busy()
	_, err = s.LockAny(ctx, keys...)
	wants(m, "LockAny", err, txlock.ErrBusy)
	last := keys[len(keys)-1]
	l.ExpectLockAny(keys...).Granted(last, 8)
	grant, err := s.LockAny(ctx, keys...)
	granted(m, grant, err, last, 8, false)
	m.end(tx)
}

// TestMistakes makes expectations that no call can meet.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		expect func(mock sqlmock.Sqlmock)
		says   string
	}{
		"stale as the first statement": {func(mock sqlmock.Sqlmock) {
			lockmock.ExpectLock(mock, orders.Key(7), lockmock.NothingRead).Stale()
		}, `Lock("order:7") can't be expected to return ` + txlock.ErrStaleSnapshot.Error()},
		"zero key":   {func(mock sqlmock.Sqlmock) { lockmock.ExpectLock(mock, orders.Key(0)).Granted(7) }, txlock.ErrInvalidKey.Error()},
		"zero token": {func(mock sqlmock.Sqlmock) { lockmock.ExpectLock(mock, orders.Key(7)).Granted(0) }, `Lock("order:7")`},
		"stale where the version was read": {func(mock sqlmock.Sqlmock) {
			lockmock.ExpectOptimistic(mock, orders.Key(7), 40).Stale()
		}, txlock.ErrStaleSnapshot.Error()},
		"too few tokens": {func(mock sqlmock.Sqlmock) {
			lockmock.ExpectRun(mock, orders.Keys(7, 8)).Granted(1)
		}, "1 tokens: it takes one for each of its 2 keys"},
		"a limit to compare": {func(mock sqlmock.Sqlmock) {
			lockmock.ExpectJoin(mock, lockmock.Verbatim).WaitAtMost(time.Second).ExpectLockAll(orders.Keys(7)...)
		}, "use sqlmock.QueryMatcherRegexp"},
		"upgrade": {func(mock sqlmock.Sqlmock) {
			locks := lockmock.ExpectJoin(mock)
			locks.ExpectRLock(orders.Key(7)).Granted(1)
			locks.ExpectLock(orders.Key(7)).Granted(2)
		}, txlock.ErrUpgrade.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMock(t, sqlmock.QueryMatcherRegexp)
			m.mock.MatchExpectationsInOrder(false) // some are left
			defer func() {
				if said, ok := recover().(string); !ok || !strings.Contains(said, c.says) {
					t.Errorf("it says %q, want %q in it", said, c.says)
				}
			}()
			c.expect(m.mock)
		})
	}
}

// TestAssertLockedOnAMock can't know what is held, says so, and is switched off.
func TestAssertLockedOnAMock(t *testing.T) {
	t.Parallel()
	m := newMock(t, sqlmock.QueryMatcherRegexp)
	tx := m.begin()
	lockmock.ExpectJoin(m.mock).ExpectVerify(true)
	if _, err := locksqlc.Join(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	wants(t, "AssertLocked", locktest.AssertLocked(t.Context(), tx, orders.Key(7)), txlock.ErrNotHeld)
	m.met()
	if err := locktest.AssertLocked(t.Context(), tx, orders.Key(7)); err == nil || !strings.Contains(err.Error(), "order:7") {
		t.Errorf("AssertLocked that the mock doesn't expect: %v", err)
	}
	must(t, locktest.AssertLocked(locktest.WithoutAssertions(t.Context()), tx, orders.Key(7)))
	m.end(tx)
}

// TestVerbatim gives the statements to a matcher of the program's own.
func TestVerbatim(t *testing.T) {
	t.Parallel()
	m := newMock(t, sqlmock.QueryMatcherFunc(func(expected, actual string) error {
		return sqlmock.QueryMatcherEqual.Match(strings.ToLower(expected), strings.ToLower(actual))
	}))
	lockmock.ExpectRun(m.mock, orders.Keys(7), lockmock.Verbatim).Granted(1).Commits()
	must(t, locksqlc.Run(t.Context(), m.db, orders.Keys(7), func(*sql.Tx) error { return nil }))
	m.met()
}
