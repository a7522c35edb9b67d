package lockgorm_test

import (
	"context"
	"errors"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// Bill is a model whose writes lock it.
type Bill struct {
	ID   int64
	Paid bool
}

func (b *Bill) LockKeys(*gorm.DB) ([]txlock.Key, error) { return orders.Keys(b.ID), nil }

// TestKit locks on a Kit, in every way that lockgorm has.
func TestKit(t *testing.T) {
	t.Parallel()
	db, kit, mock := mocked(t)
	db = db.WithContext(t.Context())
	key := orders.Key(7)
	update := func() {
		mock.ExpectBegin()
		mock.ExpectExec("UPDATE `bills` SET").WithArgs(true, 7).WillReturnResult(sqlmock.NewResult(0, 1))
	}
	pay := func(tx *gorm.DB) error { return tx.Model(&Bill{ID: 7}).Update("paid", true).Error }

	// By hand, in GORM's transaction.
	noError(t, db.Transaction(func(tx *gorm.DB) error {
		noError(t, second(lockgorm.Lock(tx, key)))
		kit.FailLock(orders.Key(8), locktest.Timeout)
		scope, ctx := scopeOf(t, tx), t.Context()
		wantError(t, "TryLock", second(scope.TryLock(ctx, orders.Key(8))), txlock.ErrBusy)
		for _, lock := range []func(context.Context, txlock.Key) (txlock.Grant, error){scope.RLock, scope.TryRLock} {
			grant, err := lock(ctx, orders.Key(9))
			noError(t, err)
			if grant.Key() != orders.Key(9) || !grant.Shared() {
				t.Errorf("granted %+v", grant)
			}
		}
		noError(t, second(scope.LockAll(ctx, orders.Keys(2, 1)...)))
		noError(t, second(scope.LockAny(ctx, orders.Keys(3, 4)...)))
		return lockgorm.AssertLocked(tx, key)
	}))

	// By Transaction, which begins again.
	kit.FailLock(key, locktest.Deadlock)
	update()
	mock.ExpectCommit()
	noError(t, lockgorm.Transaction(db, []txlock.Key{key}, pay))
	failed := errors.New("failed")
	wantError(t, "Transaction", lockgorm.Transaction(db, nil, func(*gorm.DB) error { return failed }), failed)

	// By Optimistic, which begins again.
	kit.FailLock(orders.Key(8), locktest.Stale)
	update()
	mock.ExpectRollback()
	update()
	mock.ExpectCommit()
	noError(t, lockgorm.Optimistic(db, orders.Key(8), pay))

	// By the plugin, in the transaction that GORM begins for a write.
	update()
	mock.ExpectCommit()
	noError(t, pay(db))
	kit.FailLock(key, locktest.Timeout)
	wantError(t, "Update", pay(db), txlock.ErrWaitTimeout)

	for _, locked := range append(orders.Keys(1, 2, 3, 9), key) {
		if !kit.Locked(locked) {
			t.Errorf("%v was not locked", locked)
		}
	}
	kit.Before(key, "UPDATE `bills`")
}

// TestKitLeases guards a transaction of GORM by a lease.
func TestKitLeases(t *testing.T) {
	t.Parallel()
	db, kit, mock := mocked(t)
	db = db.WithContext(t.Context())
	manager, err := lease.NewManager(kit.DB())
	noError(t, err)
	t.Cleanup(func() { noError(t, manager.Close(t.Context())) })
	permits, err := manager.Semaphore(orders.Key(7), 3)
	noError(t, err)
	guards := func(l *lease.Lease, err error) {
		t.Helper()
		noError(t, err)
		mock.ExpectBegin()
		mock.ExpectExec("DELETE FROM `bills`").WillReturnResult(sqlmock.NewResult(0, 1))
		mock.ExpectCommit()
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(guard(tx, l), tx.Exec("DELETE FROM `bills`").Error)
		}))
		noError(t, l.Release(t.Context()))
	}
	key := txlock.Named("job")
	guards(manager.Acquire(t.Context(), key))
	guards(manager.AcquireShared(t.Context(), key))
	kit.Before(key, "DELETE FROM `bills`")
	guards(permits.Acquire(t.Context()))
}
