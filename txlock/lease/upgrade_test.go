package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestUpgradeByAnotherManager proves that a reader is refused the lease by another manager
// too, over the same pool and over another, by the context of its lease and by its name,
// and also while a writer waits for it, in that manager and elsewhere.
func TestUpgradeByAnotherManager(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		for what, other := range map[string]*sql.DB{"the same pool": pool, "another pool": newPool(t, db, !poolKind(pool))} {
			for how, byName := range map[string]bool{"context": false, "name": true} {
				for who, waits := range map[string]int{"nobody waits": 0, "a writer waits elsewhere": 1, "a writer waits here": 2} {
					t.Run(what+"/"+how+"/"+who, func(t *testing.T) {
						t.Parallel()
						refusesUpgrade(t, newManager(t, pool), newManager(t, other), other, byName, waits)
					})
				}
			}
		}
	})
}

func refusesUpgrade(t *testing.T, reading, m *lease.Manager, pool *sql.DB, byName bool, waits int) {
	key, outer := named(), t.Context()
	if byName {
		outer = lease.WithOwner(outer, "reader of "+key.String())
	}
	reader, err := reading.AcquireShared(outer, key)
	must(t, err)
	ctx := outer
	if !byName {
		var end context.CancelFunc
		ctx, end = reader.Context(outer)
		defer end()
	}
	var writer *fairWait
	if waits > 0 {
		by := m
		if waits == 1 {
			by = newManager(t, pool)
		}
		writer = waitFor(t, by, key)
	}
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	for verb, acquire := range map[string]func(context.Context, txlock.Key, ...lease.AcquireOption) (*lease.Lease, error){
		"Acquire": m.Acquire, "TryAcquire": m.TryAcquire,
		"AcquireTx": func(ctx context.Context, key txlock.Key, _ ...lease.AcquireOption) (*lease.Lease, error) {
			tx := begin(t, pool, sql.LevelReadCommitted)
			l, err := m.AcquireTx(ctx, tx, key)
			return l, errors.Join(err, tx.Rollback())
		},
	} {
		for _, options := range [][]lease.AcquireOption{nil, {lease.Fair()}} {
			l, err := acquire(ctx, key, options...)
			if verb != "TryAcquire" || waits == 0 || !errors.Is(err, txlock.ErrBusy) { // it waits for nobody
				wants(t, verb, err, txlock.ErrUpgrade)
			}
			if err == nil {
				release(t, l)
			}
		}
	}
	wantsNone(t, "the reader", reader.Err())
	if byName {
		wants(t, "TryAcquire of another name", second(m.TryAcquire(lease.WithOwner(outer, "somebody else"), key)), txlock.ErrBusy)
	}
	release(t, reader)
	if writer != nil {
		release(t, writer.lease(t))
	}
	ctx = outer
	l, err := m.Acquire(ctx, key)
	wantsNone(t, "Acquire when nobody reads", err)
	release(t, l)
}

// waitFor lets somebody wait to write, and returns when it keeps readers out.
func waitFor(t testing.TB, m *lease.Manager, key txlock.Key) *fairWait {
	t.Helper()
	w := fairAcquire(t, m, key)
	waitUntil(t, "a writer keeps readers out", func() bool {
		l, err := m.TryAcquireShared(context.Background(), key)
		if err == nil {
			release(t, l)
		}
		return errors.Is(err, txlock.ErrBusy)
	})
	return w
}

// TestNameOfADeadReader proves that a program that was started again under its owner's name
// waits for the reader that it was, whose time will be over: that is no upgrade.
func TestNameOfADeadReader(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, key := newManager(t, pool), named()
		ctx := lease.WithOwner(t.Context(), "reader of "+key.String())
		release(t, share(t, m, key))
		readers(t, db, key, 1, ";of a process that is dead", "UNIX_TIMESTAMP() * 1000000 + 3600000000")
		exec(t, db, "UPDATE lockstep_leases SET owner = ? WHERE name = ? AND slot > 0", "reader of "+key.String(), key.String())
		wants(t, "TryAcquire", second(m.TryAcquire(ctx, key)), txlock.ErrBusy)
		exec(t, db, "UPDATE lockstep_leases SET expires_us = UNIX_TIMESTAMP() * 1000000 + 1000000 WHERE name = ? AND slot > 0", key.String())
		l, err := m.Acquire(ctx, key)
		wantsNone(t, "Acquire", err)
		release(t, l)
	})
}

// TestWriterWhoReadsReEnters proves that the holder of the lease re-enters it under its
// context by a third manager also where it reads by a second.
func TestWriterWhoReadsReEnters(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		key := named()
		reading := newManager(t, newPool(t, db, true))
		release(t, share(t, reading, key)) // and is of readers, too
		wantsNone(t, "Do", newManager(t, pool).Do(t.Context(), key, func(ctx context.Context, l *lease.Lease) error {
			reader, err := reading.TryAcquireShared(ctx, key)
			if err != nil {
				return err
			}
			again, err := newManager(t, pool).TryAcquire(ctx, key)
			if err == nil && again.Token() != l.Token() {
				t.Errorf("token %d, want %d", again.Token(), l.Token())
			}
			if err == nil {
				err = again.Release(ctx)
			}
			return errors.Join(err, reader.Release(ctx))
		}))
	})
}
