package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestCompareAndBumpInSQLModes: what the statement replies, and what it leaves in the row, is the
// same in the modes that change its arithmetic.
func TestCompareAndBumpInSQLModes(t *testing.T) {
	onModes(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		for _, key := range []txlock.Key{named(), hashed()} {
			comparesAndBumps(t, db, key, func() *session { return begin(t, pool, nil) })
		}
	})
}

// onModes runs a test in the modes that change arithmetic and empty texts. internal/ops.TestModes
// has all modes.
func onModes(t *testing.T, test func(t *testing.T, db *testdb.DB, pool *sql.DB)) {
	t.Helper()
	onServers(t, func(t *testing.T, db *testdb.DB) {
		modes := []string{"NO_UNSIGNED_SUBTRACTION"}
		if db.Engine() == testdb.MariaDB {
			modes = append(modes, "SIMULTANEOUS_ASSIGNMENT,EMPTY_STRING_IS_NULL", "ORACLE")
		}
		for _, mode := range modes {
			for _, interpolate := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/interpolate=%t", mode, interpolate), func(t *testing.T) {
					test(t, db, newPool(t, db, true, func(cfg *mysql.Config) {
						cfg.InterpolateParams, cfg.Params = interpolate, map[string]string{"sql_mode": "'" + mode + "'"}
					}))
				})
			}
		}
	})
}

// comparesAndBumps goes through the replies.
func comparesAndBumps(t *testing.T, db *testdb.DB, key txlock.Key, open func() *session) {
	t.Helper()
	version := func() uint64 {
		v, err := txlock.ReadVersion(t.Context(), db.Admin(), key)
		wants(t, "ReadVersion", err, nil)
		return v
	}
	refused := func(given uint64) {
		t.Helper()
		before, s := version(), open()
		wants(t, fmt.Sprintf("%v: version %d, the row has %d", key, given, before), s.CompareAndBump(t.Context(), key, given), txlock.ErrConflict)
		s.commit(t)
		if after := version(); after != before {
			t.Errorf("%v: version %d after a refusal, %d before", key, after, before)
		}
	}
	granted := func(given uint64) uint64 {
		t.Helper()
		s := open()
		wants(t, "CompareAndBump", s.CompareAndBump(t.Context(), key, given), nil)
		grant, held := s.Held(key)
		s.commit(t)
		if after := version(); !held || after != grant.Token() || after <= given {
			t.Errorf("%v: version %d after the grant %+v of %d", key, after, grant, given)
		}
		return grant.Token()
	}
	refused(4711) // no row, or one with token 0
	first := granted(0)
	refused(0)
	refused(first - 1)
	refused(1<<63 + first)
	second := granted(first)
	refused(first)
	if third := granted(second); third <= second || second <= first {
		t.Errorf("%v: tokens %d, %d, %d", key, first, second, third)
	}
}

// TestVersionsWaitForNobody reads the version of a key that another transaction holds, as
// the first that a transaction does, too.
func TestVersionsWaitForNobody(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, key := range []txlock.Key{named(), hashed()} {
			before := committed(t, db, key).Token()
			holder(t, db, key)
			for _, guarded := range []bool{true, false} {
				s := unread(t, newPool(t, db, guarded))
				if version, err := s.Version(t.Context(), key); err != nil || version != before {
					t.Errorf("hashed=%t, guarded=%t: Version: %d, %v, want %d", key.Hashed(), guarded, version, err, before)
				}
			}
			if version, err := txlock.ReadVersion(t.Context(), newPool(t, db, true), key); err != nil || version != before {
				t.Errorf("hashed=%t: ReadVersion: %d, %v, want %d", key.Hashed(), version, err, before)
			}
		}
	})
}

// TestVersionsAtSerializable: reading a version takes a shared lock there, so that of two
// who have read it and write, one is rolled back and the other goes on.
func TestVersionsAtSerializable(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			key := named()
			committed(t, db, key)
			options := &sql.TxOptions{Isolation: sql.LevelSerializable}
			a, b := begin(t, newPool(t, db, guarded), options), begin(t, newPool(t, db, guarded), options)
			version, err := a.Version(t.Context(), key)
			wants(t, "Version", err, nil)
			_, err = b.Version(t.Context(), key)
			wants(t, "Version", err, nil)
			first := db.Waiting(t, a.id, func() error { return a.CompareAndBump(t.Context(), key, version) })
			errs := []error{b.CompareAndBump(t.Context(), key, version), <-first}
			if slices.Index(errs, nil) < 0 || !errors.Is(errors.Join(errs...), txlock.ErrDeadlock) {
				t.Errorf("guarded=%t: %v", guarded, errs)
			}
		}
	})
}

// TestHashedNeighboursConflict: the keys of one center lock have one version.
func TestHashedNeighboursConflict(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		a := hashed()
		b, pool := neighbour(a), newPool(t, db, true)
		s, other := begin(t, pool, nil), begin(t, pool, nil)
		version, err := s.Version(t.Context(), a)
		wants(t, "Version", err, nil)
		wants(t, "the neighbour", other.CompareAndBump(t.Context(), b, version), nil)
		other.commit(t)
		wants(t, "a spurious conflict", s.CompareAndBump(t.Context(), a, version), txlock.ErrConflict)
		wants(t, "Rollback", s.tx.Rollback(), nil)
		// In one transaction they don't conflict with each other.
		s = begin(t, pool, nil)
		version, err = s.Version(t.Context(), a)
		wants(t, "Version", err, nil)
		wants(t, "the first", s.CompareAndBump(t.Context(), a, version), nil)
		wants(t, "its neighbour", s.CompareAndBump(t.Context(), b, version), nil)
		s.commit(t)
	})
}

// TestVersionObserved: an optimistic grant and a conflict are told like those of locks.
func TestVersionObserved(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		r, key := new(recorder), named()
		s := inTx(t, newPool(t, db, false), txlock.Observe(r.observe))
		wants(t, "a version of nobody", s.CompareAndBump(t.Context(), key, 0), nil)
		r.wants(t, "granted "+key.String())
		wants(t, "another version", s.CompareAndBump(t.Context(), key, 1), txlock.ErrConflict)
		wants(t, "what is told", r.last, txlock.ErrConflict)
		r.wants(t, "refused "+key.String())
	})
}

// TestNoContext: a call without a context is refused before anything is sent, and so is a version
// that no row has.
func TestNoContext(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			pool := newPool(t, db, guarded)
			s := begin(t, pool, nil)
			var none context.Context
			for verb, call := range map[string]func() error{
				"Lock":           func() error { return second(s.Lock(none, named())) },
				"TryRLock":       func() error { return second(s.TryRLock(none, named())) },
				"LockAll":        func() error { return second(s.LockAll(none, named(), named())) },
				"LockAny":        func() error { return second(s.LockAny(none, named())) },
				"Once":           func() error { return second(s.Once(none, named())) },
				"Version":        func() error { return second(s.Version(none, named())) },
				"CompareAndBump": func() error { return s.CompareAndBump(none, named(), 1) },
				"Verify":         func() error { return s.Verify(none) },
			} {
				wants(t, verb, call(), txlock.ErrInvalidOption)
			}
			s.commit(t)
			s = inTx(t, pool, txlock.NothingRead())
			wants(t, "the largest version", s.CompareAndBump(t.Context(), named(), math.MaxUint64), txlock.ErrConflict) // its first statement
			s.commit(t)
		}
	})
}
