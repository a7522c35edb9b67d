package lease_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestAcquireTxLocksNoOtherKey proves that a lease that is taken in a transaction locks
// no row but its own, also at REPEATABLE READ after plain reads: a neighbour's lease is
// renewed, taken and released meanwhile, and a new key gets its row.
func TestAcquireTxLocksNoOtherKey(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		for name, level := range map[string]sql.IsolationLevel{"repeatable read": sql.LevelRepeatableRead, "read committed": sql.LevelReadCommitted} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				key := keyOf(t, m, true).String()
				next := acquire(t, other, txlock.Named(key+":2"))
				tx := begin(t, pool, level)
				reads(t, tx, counter(t, db))
				l := acquireTx(t, m, tx, txlock.Named(key))
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				quickly(t, "Renew", func() { wantsNone(t, "Renew of the next key", next.Renew(ctx)) })
				quickly(t, "Release", func() { wantsNone(t, "Release of the next key", next.Release(ctx)) })
				for _, suffix := range []string{":1", ":2", ":3"} {
					quickly(t, "TryAcquire", func() {
						l, err := other.TryAcquire(ctx, txlock.Named(key+suffix))
						wantsNone(t, "TryAcquire of "+suffix, err)
						if err == nil {
							release(t, l)
						}
					})
				}
				commit(t, tx)
				release(t, l)
			})
		}
	})
}

// TestAcquireTxWaitsForNoOtherKey proves that a lease that was shared before, and is free, is
// granted in a transaction while others guard the leases of the keys before and behind it.
func TestAcquireTxWaitsForNoOtherKey(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		for name, level := range map[string]sql.IsolationLevel{"repeatable read": sql.LevelRepeatableRead, "read committed": sql.LevelReadCommitted} {
			for _, read := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%t", name, read), func(t *testing.T) {
					t.Parallel()
					key := keyOf(t, m, true).String()
					l, err := other.AcquireShared(t.Context(), txlock.Named(key+":2"))
					wantsNone(t, "AcquireShared", err)
					release(t, l)
					guarded := begin(t, pool, sql.LevelReadCommitted)
					for _, suffix := range []string{":1", ":3"} {
						l := acquire(t, other, txlock.Named(key+suffix))
						wantsNone(t, "Guard", l.Guard(t.Context(), guarded))
						defer release(t, l)
					}
					tx := begin(t, pool, level)
					if read {
						reads(t, tx, counter(t, db))
					}
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					l, err = m.AcquireTx(ctx, tx, txlock.Named(key+":2"))
					wantsNone(t, "AcquireTx", err)
					if err == nil {
						commit(t, tx)
						release(t, l)
					}
					commit(t, guarded)
				})
			}
		}
	})
}

// wantsNone is wants for no error.
func wantsNone(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}
