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
		asks := map[string]verb{
			"Lock": verbs["Lock"], "RLock": verbs["RLock"], "WaitAtMost": verbs["Lock"].within(time.Minute), "LockAll": verbs["LockAll"], "Version": verbs["Version"],
			"Once": func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
				if first, err := s.Once(ctx, key); err != nil || first {
					return txlock.Grant{}, fmt.Errorf("first is %t, %w", first, err)
				}
				return txlock.Grant{}, nil
			},
		}
		table := db.CreateTable(t, "serial", "id INT PRIMARY KEY, n INT NOT NULL")
		exec(t, db.Admin(), "INSERT INTO "+table+" VALUES (1, 0)")
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
						next := begin(t, pool, &sql.TxOptions{Isolation: sql.LevelSerializable})
						granted := db.Waiting(t, next.id, func() error { return second(ask(next.Scope, t.Context(), key)) })
						exec(t, first.tx, "UPDATE "+table+" SET n = n + 1")
						first.commit(t)
						wants(t, way, <-granted, nil)
						if n, want := number(t, next.tx, "SELECT n FROM "+table), number(t, db.Admin(), "SELECT n FROM "+table); n != want {
							t.Errorf("%d was read, not %d", n, want)
						}
						next.commit(t)
					})
				}
			}
		}
	})
}
