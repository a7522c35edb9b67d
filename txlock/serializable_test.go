package txlock_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestWaitsAtSerializable waits for the holder in every way, and is granted the lock, also
// where the server refuses rows that have changed since the snapshot: at SERIALIZABLE a
// MariaDB takes that before it waits. What is read under the lock is fresh.
func TestWaitsAtSerializable(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		refusing := func(cfg *mysql.Config) {
			if db.HasSnapshotIsolation(t) {
				cfg.Params = map[string]string{"innodb_snapshot_isolation": "ON"}
			}
		}
		type ask = func(ctx context.Context, s *session, key txlock.Key) error
		asks := map[string]ask{
			"Lock":  func(ctx context.Context, s *session, key txlock.Key) error { _, err := s.Lock(ctx, key); return err },
			"RLock": func(ctx context.Context, s *session, key txlock.Key) error { _, err := s.RLock(ctx, key); return err },
			"WaitAtMost": func(ctx context.Context, s *session, key txlock.Key) error {
				_, err := s.WaitAtMost(time.Minute).Lock(ctx, key)
				return err
			},
			"LockAll": func(ctx context.Context, s *session, key txlock.Key) error {
				_, err := s.LockAll(ctx, key, named())
				return err
			},
			"Version": func(ctx context.Context, s *session, key txlock.Key) error { _, err := s.Version(ctx, key); return err },
			"Once": func(ctx context.Context, s *session, key txlock.Key) error {
				if first, err := s.Once(ctx, key); err != nil || first {
					return fmt.Errorf("first is %t, %w", first, err)
				}
				return nil
			},
		}
		table := db.CreateTable(t, "serial", "id INT PRIMARY KEY, n INT NOT NULL")
		exec(t, db, "INSERT INTO "+table+" VALUES (1, 0)")
		for _, guarded := range []bool{true, false} {
			pool := newPool(t, db, guarded, refusing)
			for way, ask := range asks {
				for _, key := range []txlock.Key{named(), hashed()} {
					if way == "Once" && key.Hashed() {
						continue // its keys are never hashed
					}
					t.Run(fmt.Sprintf("%s/guarded=%t/hashed=%t", way, guarded, key.Hashed()), func(t *testing.T) {
						if way != "Once" {
							committed(t, db, key)
						}
						first := begin(t, pool, nil)
						if way == "Once" {
							first.once(t, key, true)
						} else {
							first.lock(t, key)
						}
						second := begin(t, pool, &sql.TxOptions{Isolation: sql.LevelSerializable})
						granted := make(chan error, 1)
						go func() { granted <- ask(t.Context(), second, key) }()
						db.WaitForLockWait(t, second.id)
						_, err := first.tx.ExecContext(t.Context(), "UPDATE "+table+" SET n = n + 1")
						wants(t, "UPDATE", err, nil)
						first.commit(t)
						wants(t, way, <-granted, nil)
						want := number(t, db, "SELECT n FROM "+table)
						var n int64
						wants(t, "read", second.tx.QueryRowContext(t.Context(), "SELECT n FROM "+table).Scan(&n), nil)
						if n != want {
							t.Errorf("%d was read, not %d", n, want)
						}
						second.commit(t)
					})
				}
			}
		}
	})
}
