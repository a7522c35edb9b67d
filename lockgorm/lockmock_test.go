package lockgorm_test

import (
	"errors"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/lockmock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// Bill is a model whose writes lock it.
type Bill struct {
	ID   int64
	Paid bool
}

func (b *Bill) LockKeys(*gorm.DB) ([]txlock.Key, error) { return orders.Keys(b.ID), nil }

// onMocks calls a test with GORM over mocks of both servers.
func onMocks(t *testing.T, test func(t *testing.T, db *gorm.DB, mock sqlmock.Sqlmock, server lockmock.Option)) {
	t.Parallel()
	for _, version := range []string{lockmock.MySQL, lockmock.MariaDB} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			db, mock := mocked(t)
			test(t, db.WithContext(t.Context()), mock, lockmock.Server(version))
		})
	}
}

func wantGrant(t *testing.T, grant txlock.Grant, err error, key txlock.Key, token uint64, shared bool) {
	t.Helper()
	if err != nil || grant.Key() != key || grant.Token() != token || grant.Shared() != shared {
		t.Errorf("granted %+v, %v, want %s with token %d, shared %t", grant, err, key, token, shared)
	}
}

// TestLockmock locks on a mock, in every way that lockgorm has.
func TestLockmock(t *testing.T) {
	onMocks(t, func(t *testing.T, db *gorm.DB, mock sqlmock.Sqlmock, server lockmock.Option) {
		key := orders.Key(7)
		update := func() {
			mock.ExpectExec("UPDATE `bills` SET").WithArgs(true, 7).WillReturnResult(sqlmock.NewResult(0, 1))
		}

		// By hand, in GORM's transaction.
		mock.ExpectBegin()
		lockmock.ExpectLock(mock, key, server).Granted(41)
		lockmock.ExpectTryLock(mock, orders.Key(8), server).Busy()
		lockmock.ExpectRLock(mock, orders.Key(9), server).Granted(5)
		lockmock.ExpectTryRLock(mock, orders.Key(9), server).Granted(5)
		lockmock.ExpectLockAll(mock, orders.Keys(2, 1), server).Granted(6, 7)
		lockmock.ExpectLockAny(mock, orders.Keys(3, 4), server).Granted(orders.Key(4), 8)
		mock.ExpectCommit()
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			grant, err := lockgorm.Lock(tx, key)
			wantGrant(t, grant, err, key, 41, false)
			_, err = tryLock(tx, orders.Key(8))
			wantError(t, "TryLock", err, txlock.ErrBusy)
			grant, err = rLock(tx, orders.Key(9))
			wantGrant(t, grant, err, orders.Key(9), 5, true)
			grant, err = tryRLock(tx, orders.Key(9))
			wantGrant(t, grant, err, orders.Key(9), 5, true)
			_, err = lockAll(tx, orders.Keys(2, 1)...)
			noError(t, err)
			grant, err = lockAny(tx, orders.Keys(3, 4)...)
			wantGrant(t, grant, err, orders.Key(4), 8, false)
			return lockgorm.AssertLocked(tx.WithContext(locktest.WithoutAssertions(t.Context())), key)
		}))

		// By Transaction, which begins again.
		lockmock.ExpectRun(mock, []txlock.Key{key}, server).Deadlocks()
		run := lockmock.ExpectRun(mock, []txlock.Key{key}, server).Granted(42)
		lockmock.ExpectLockAll(mock, []txlock.Key{key}, server).Granted(42) // of the plugin
		update()
		run.Commits()
		noError(t, lockgorm.Transaction(db, []txlock.Key{key}, func(tx *gorm.DB) error {
			return tx.Model(&Bill{ID: 7}).Update("paid", true).Error
		}))
		run = lockmock.ExpectRun(mock, nil, server).Granted()
		run.RollsBack()
		failed := errors.New("failed")
		wantError(t, "Transaction", lockgorm.Transaction(db, nil, func(*gorm.DB) error { return failed }), failed)

		// By Optimistic, which begins again after a conflict.
		for _, version := range []uint64{42, 43} {
			o := lockmock.ExpectOptimistic(mock, orders.Key(8), version, server)
			lockmock.ExpectLockAll(mock, []txlock.Key{key}, server).Granted(version) // of the plugin
			update()
			if version == 42 {
				o.Conflicts()
			} else {
				o.Granted(44).Commits()
			}
		}
		noError(t, lockgorm.Optimistic(db, orders.Key(8), func(tx *gorm.DB) error {
			return tx.Model(&Bill{ID: 7}).Update("paid", true).Error
		}))

		// By the plugin, in the transaction that GORM begins for a write.
		mock.ExpectBegin()
		lockmock.ExpectLockAll(mock, []txlock.Key{key}, server).Granted(43)
		update()
		mock.ExpectCommit()
		noError(t, db.Model(&Bill{ID: 7}).Update("paid", true).Error)
		mock.ExpectBegin()
		lockmock.ExpectLockAll(mock, []txlock.Key{key}, server).TimesOut()
		mock.ExpectRollback()
		wantError(t, "Update", db.Model(&Bill{ID: 7}).Update("paid", true).Error, txlock.ErrWaitTimeout)
	})
}

// TestLockmockLeases guards a transaction of GORM by a lease.
func TestLockmockLeases(t *testing.T) {
	onMocks(t, func(t *testing.T, db *gorm.DB, mock sqlmock.Sqlmock, server lockmock.Option) {
		key := txlock.Named("job")
		manager, err := lease.NewManager(poolOf(t, db), lease.TTL(time.Hour))
		noError(t, err)
		t.Cleanup(func() { noError(t, manager.Close(t.Context())) })
		leases := lockmock.ExpectLeases(t, mock, server)
		guards := func(l *lease.Lease, err error) {
			noError(t, err)
			mock.ExpectBegin()
			leases.ExpectGuard(l.Key()).Succeeds()
			mock.ExpectCommit()
			noError(t, db.Transaction(func(tx *gorm.DB) error { return guard(tx, l) }))
			leases.ExpectRelease(l.Key()).Succeeds()
			noError(t, l.Release(t.Context()))
		}
		leases.ExpectAcquire(key).Granted(41)
		guards(manager.Acquire(t.Context(), key))
		leases.ExpectAcquireShared(key).Granted(42)
		guards(manager.AcquireShared(t.Context(), key))
		permits, err := manager.Semaphore(orders.Key(7), 3)
		noError(t, err)
		leases.ExpectPermit(orders.Key(7), 3).Granted(43)
		guards(permits.Acquire(t.Context()))
	})
}
