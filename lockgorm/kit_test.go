package lockgorm_test

import (
	"context"
	"errors"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// mocked is GORM on a Kit over a mock, which demands at the end that all was sent.
func mocked(t *testing.T, options ...lockgorm.Option) (*gorm.DB, *locktest.Kit, sqlmock.Sqlmock) {
	t.Helper()
	pool, mock, err := sqlmock.New()
	noError(t, err)
	t.Cleanup(func() {
		noError(t, mock.ExpectationsWereMet())
		_ = pool.Close()
	})
	kit := locktest.Open(t, pool)
	db, err := gorm.Open(mysql.New(mysql.Config{Conn: kit.DB(), SkipInitializeWithVersion: true}), &gorm.Config{Logger: logger.Discard})
	noError(t, err)
	return used(t, db, options...), kit, mock
}

// TestMockExpectsNoLookups writes tagged models over a mock: what a column is, is asked for
// only where a string isn't declared binary, and then once.
func TestMockExpectsNoLookups(t *testing.T) {
	t.Parallel()
	db, kit, mock := mocked(t, lockgorm.In("shop"))
	family := func(name string, of ...txlock.FamilyOption) txlock.Family[string] {
		return txlock.NewFamily[string](name, append(of, txlock.In("shop"), txlock.Exact())...)
	}
	write := func(model any, key txlock.Key, before func()) {
		t.Helper()
		mock.ExpectBegin()
		before()
		mock.ExpectExec("INSERT INTO").WillReturnResult(sqlmock.NewResult(0, 1))
		mock.ExpectCommit()
		noError(t, db.Create(model).Error)
		if !kit.Locked(key) {
			t.Errorf("%v isn't locked: %v", key, kit.Log())
		}
	}
	nothing := func() {}
	lookup := func(table, collation string) func() {
		return func() {
			mock.ExpectQuery("SELECT .*`code`.*`" + table + "`.*COLLATION").WillReturnRows(sqlmock.NewRows([]string{"code", "collation"}).AddRow(nil, collation))
		}
	}
	write(&Parcel{ID: 7}, family("parcel").Key("7"), nothing)
	write(&Chest{Code: "a"}, family("chest", txlock.Hashed()).Key("a"), nothing)
	write(&Voucher{Code: "a"}, family("voucher").Key("a"), lookup("vouchers", "utf8mb4_bin"))
	write(&Voucher{Code: "a b"}, family("voucher").Key("a b"), nothing)
	write(&Fixed{Code: "12345678"}, family("fixed").Key("12345678"), nothing)
	db = db.Table("others").Session(&gorm.Session{})
	write(&Voucher{Code: "c"}, family("voucher").Key("c"), lookup("others", "utf8mb4_bin"))
	write(&Voucher{Code: "d"}, family("voucher").Key("d"), nothing)
	db = db.Session(&gorm.Session{NewDB: true})
	write(&Stamp{Code: "A"}, family("stamp").Key("a"), lookup("stamps", "utf8_general_ci")) // as old servers call it
}

// TestMockOfAnUnknownColumn has a mock that expects no such question, or whose server
// answers that the column is case insensitive. Keys that differ by what fills up a column are refused.
func TestMockOfAnUnknownColumn(t *testing.T) {
	t.Parallel()
	db, _, mock := mocked(t)
	refused := func(model any, cure string) { t.Helper(); wantFailure(t, "Create", db.Create(model).Error, cure) }
	for _, padded := range []any{&Voucher{Code: "bob "}, &Fixed{Code: "bob\x00\x00"}} {
		refused(padded, "cut them off")
	}
	mock.ExpectBegin()
	mock.ExpectRollback()
	refused(&Voucher{Code: "a"}, "is not looked up")
	for asked := range 2 { // the answer is kept
		if asked == 0 {
			mock.ExpectBegin()
			mock.ExpectQuery("COLLATION").WillReturnRows(sqlmock.NewRows([]string{"code", "collation"}).AddRow(nil, "utf8mb4_0900_ai_ci"))
			mock.ExpectRollback()
		}
		refused(&Voucher{Code: "a"}, "the collation utf8mb4_0900_ai_ci")
	}
	noError(t, db.Session(&gorm.Session{DryRun: true}).Create(&Voucher{Code: "a"}).Error)
}

// TestKit locks on a Kit, in every way that lockgorm has.
func TestKit(t *testing.T) {
	t.Parallel()
	db, kit, mock := mocked(t)
	db = db.WithContext(t.Context())
	key := parcels.Key(7)
	update := func() {
		mock.ExpectBegin()
		mock.ExpectExec("UPDATE `parcels` SET").WithArgs(1, 7).WillReturnResult(sqlmock.NewResult(0, 1))
	}
	pay := func(tx *gorm.DB) error { return tx.Model(&Parcel{ID: 7}).Update("n", 1).Error }

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
	kit.Before(key, "UPDATE `parcels`")
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
		mock.ExpectExec("DELETE FROM `parcels`").WillReturnResult(sqlmock.NewResult(0, 1))
		mock.ExpectCommit()
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(guard(tx, l), tx.Exec("DELETE FROM `parcels`").Error)
		}))
		noError(t, l.Release(t.Context()))
	}
	key := txlock.Named("job")
	guards(manager.Acquire(t.Context(), key))
	guards(manager.AcquireShared(t.Context(), key))
	kit.Before(key, "DELETE FROM `parcels`")
	guards(permits.Acquire(t.Context()))
}
