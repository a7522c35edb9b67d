package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// BenchmarkProcedures compares transactions on a MySQL with lockstep's procedures, in which
// a lock is called, with the same on one without, to which it is sent as text. Each takes
// locks, and rolls back.
func BenchmarkProcedures(b *testing.B) {
	read := func(ctx context.Context, tx *sql.Tx) error {
		var n int
		return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM lockstep_leases").Scan(&n)
	}
	hashed := txlock.NewFamily[int64]("procedures", txlock.Hashed()).Key(1)
	for _, verb := range []struct {
		name string
		run  func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error
	}{
		{"Lock", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			_, err := s.Lock(ctx, key)
			return err
		}},
		{"Lock-hashed", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, _ txlock.Key) error {
			_, err := s.Lock(ctx, hashed)
			return err
		}},
		{"Lock-after-a-read", func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			err := read(ctx, tx)
			_, lockErr := s.Lock(ctx, key)
			return errors.Join(err, lockErr)
		}},
		{"Lock-of-two", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			_, err := s.Lock(ctx, key)
			_, second := s.Lock(ctx, besides(key, "a"))
			return errors.Join(err, second)
		}},
		{"TryLock", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			_, err := s.TryLock(ctx, key)
			return err
		}},
		{"WaitAtMost", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			_, err := s.WaitAtMost(time.Minute).Lock(ctx, key)
			return err
		}},
		{"RLock", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			_, err := s.RLock(ctx, key)
			return err
		}},
		{"RLock-behind-Lock", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			_, err := s.Lock(ctx, besides(key, "a"))
			_, second := s.RLock(ctx, key)
			return errors.Join(err, second)
		}},
		{"RLock-after-a-read", func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			err := read(ctx, tx)
			_, lockErr := s.RLock(ctx, key)
			return errors.Join(err, lockErr)
		}},
		{"TryRLock", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			_, err := s.TryRLock(ctx, key)
			return err
		}},
		{"Once", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			_, err := s.Once(ctx, key)
			return err
		}},
		{"LockAll-of-3", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			_, err := s.LockAll(ctx, key, besides(key, "a"), besides(key, "b"))
			return err
		}},
		{"LockAll-of-900", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, _ txlock.Key) error {
			_, err := s.LockAll(ctx, many...)
			return err
		}},
		{"Version", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			_, err := s.Version(ctx, key)
			return err
		}},
		{"Version-after-a-read", func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			err := read(ctx, tx)
			_, versionErr := s.Version(ctx, key)
			return errors.Join(err, versionErr)
		}},
		{"Version-and-CompareAndBump", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
			version, err := s.Version(ctx, key)
			return errors.Join(err, s.CompareAndBump(ctx, key, version))
		}},
	} {
		b.Run(verb.name, func(b *testing.B) {
			called, sent := testdb.Shared(b, testdb.MySQL).Open(b), testdb.Shared(b, testdb.MySQL).Open(b)
			sent.DropProcedures(b)
			on := func(db *testdb.DB) func(i int) time.Duration {
				pool, key := benchPool(b, db, true), uniqueKey(b, "procedures")
				check(b, txlock.Ensure(b.Context(), pool, append([]txlock.Key{key, besides(key, "a"), besides(key, "b")}, many...)...))
				return func(int) time.Duration {
					began := time.Now()
					tx, err := pool.BeginTx(b.Context(), nil)
					check(b, err)
					scope, err := locksqlc.Join(b.Context(), tx)
					check(b, err)
					check(b, verb.run(b.Context(), tx, scope, key))
					check(b, tx.Rollback())
					return time.Since(began)
				}
			}
			pairs(b, on(sent), on(called))
		})
	}
}

// many are as many keys as LockAll sends in one statement.
var many = txlock.NewFamily[int]("procedures").Keys(upTo(900)...)

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i + 1
	}
	return all
}
