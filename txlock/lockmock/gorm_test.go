package lockmock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/lockmock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// Order is a model whose writes lock it.
type Order struct {
	ID   int64
	Paid bool
}

func (o *Order) LockKeys(*gorm.DB) ([]txlock.Key, error) { return orders.Keys(o.ID), nil }

// gorm is GORM over the mock.
func (m *mocked) gorm() *gorm.DB {
	m.Helper()
	db, err := gorm.Open(mysql.New(mysql.Config{Conn: m.db, SkipInitializeWithVersion: true}), &gorm.Config{Logger: logger.Discard})
	must(m, err)
	must(m, db.Use(lockgorm.New()))
	return db.WithContext(m.Context())
}

// ofGORM makes the mock expect a statement of GORM's own.
func (m *mocked) ofGORM(pattern, text string) *sqlmock.ExpectedExec {
	if m.equal {
		return m.mock.ExpectExec(text)
	}
	return m.mock.ExpectExec(pattern)
}

// TestGORM locks by GORM, in every way that lockgorm has.
func TestGORM(t *testing.T) {
	onMocks(t, func(m *mocked) {
		db, key := m.gorm(), orders.Key(7)
		update := func() {
			m.ofGORM("UPDATE `orders` SET", "UPDATE `orders` SET `paid`=? WHERE `id` = ?").WithArgs(true, 7).WillReturnResult(sqlmock.NewResult(0, 1))
		}

		// By hand, in GORM's transaction.
		m.mock.ExpectBegin()
		lockmock.ExpectLock(m.mock, key, m.server).Granted(41)
		lockmock.ExpectTryLock(m.mock, orders.Key(8), m.server).Busy()
		lockmock.ExpectRLock(m.mock, orders.Key(9), m.server).Granted(5)
		lockmock.ExpectTryRLock(m.mock, orders.Key(9), m.server).Granted(5)
		lockmock.ExpectLockAll(m.mock, orders.Keys(2, 1), m.server).Granted(6, 7)
		lockmock.ExpectLockAny(m.mock, orders.Keys(3, 4), m.server).Granted(orders.Key(4), 8)
		m.mock.ExpectCommit()
		must(m, db.Transaction(func(tx *gorm.DB) error {
			grant, err := lockgorm.Lock(tx, key)
			granted(m, grant, err, key, 41, false)
			_, err = lockgorm.TryLock(tx, orders.Key(8))
			wants(m, "TryLock", err, txlock.ErrBusy)
			grant, err = lockgorm.RLock(tx, orders.Key(9))
			granted(m, grant, err, orders.Key(9), 5, true)
			grant, err = lockgorm.TryRLock(tx, orders.Key(9))
			granted(m, grant, err, orders.Key(9), 5, true)
			_, err = lockgorm.LockAll(tx, orders.Keys(2, 1)...)
			must(m, err)
			grant, err = lockgorm.LockAny(tx, orders.Keys(3, 4)...)
			granted(m, grant, err, orders.Key(4), 8, false)
			return lockgorm.AssertLocked(tx.WithContext(locktest.WithoutAssertions(m.Context())), key)
		}))

		// By Transaction, which begins again.
		lockmock.ExpectRun(m.mock, []txlock.Key{key}, m.server).Deadlocks()
		run := lockmock.ExpectRun(m.mock, []txlock.Key{key}, m.server).Granted(42)
		lockmock.ExpectLockAll(m.mock, []txlock.Key{key}, m.server).Granted(42) // of the plugin
		update()
		run.Commits()
		must(m, lockgorm.Transaction(db, []txlock.Key{key}, func(tx *gorm.DB) error {
			return tx.Model(&Order{ID: 7}).Update("paid", true).Error
		}))
		run = lockmock.ExpectRun(m.mock, nil, m.server).Granted()
		run.RollsBack()
		failed := errors.New("failed")
		wants(m, "Transaction", lockgorm.Transaction(db, nil, func(*gorm.DB) error { return failed }), failed)

		// By Optimistic, which begins again after a conflict.
		for _, version := range []uint64{42, 43} {
			o := lockmock.ExpectOptimistic(m.mock, orders.Key(8), version, m.server)
			lockmock.ExpectLockAll(m.mock, []txlock.Key{key}, m.server).Granted(version) // of the plugin
			update()
			if version == 42 {
				o.Conflicts()
			} else {
				o.Granted(44).Commits()
			}
		}
		must(m, lockgorm.Optimistic(db, orders.Key(8), func(tx *gorm.DB) error {
			return tx.Model(&Order{ID: 7}).Update("paid", true).Error
		}))

		// By the plugin, in the transaction that GORM begins for a write.
		m.mock.ExpectBegin()
		lockmock.ExpectLockAll(m.mock, []txlock.Key{key}, m.server).Granted(43)
		update()
		m.mock.ExpectCommit()
		must(m, db.Model(&Order{ID: 7}).Update("paid", true).Error)
		m.mock.ExpectBegin()
		lockmock.ExpectLockAll(m.mock, []txlock.Key{key}, m.server).TimesOut()
		m.mock.ExpectRollback()
		wants(m, "Update", db.Model(&Order{ID: 7}).Update("paid", true).Error, txlock.ErrWaitTimeout)
	})
}

// TestGORMLeases guards a transaction of GORM by a lease.
func TestGORMLeases(t *testing.T) {
	onMocks(t, func(m *mocked) {
		db, key := m.gorm(), txlock.Named("job")
		manager, err := lockgorm.NewManager(db, lease.TTL(time.Hour))
		must(m, err)
		m.Cleanup(func() { must(m, manager.Close(m.Context())) })
		leases := lockmock.ExpectLeases(m, m.mock, m.server)
		guards := func(l *lease.Lease, err error) {
			must(m, err)
			m.mock.ExpectBegin()
			leases.ExpectGuard(l.Key()).Succeeds()
			m.mock.ExpectCommit()
			must(m, db.Transaction(func(tx *gorm.DB) error { return lockgorm.Guard(tx, l) }))
			leases.ExpectRelease(l.Key()).Succeeds()
			must(m, l.Release(m.Context()))
		}
		leases.ExpectAcquire(key).Granted(41)
		guards(manager.Acquire(m.Context(), key))
		leases.ExpectAcquireShared(key).Granted(42)
		guards(manager.AcquireShared(m.Context(), key))
		permits, err := manager.Semaphore(orders.Key(7), 3)
		must(m, err)
		leases.ExpectPermit(orders.Key(7), 3).Granted(43)
		guards(permits.Acquire(m.Context()))
	})
}
