package dropped

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"example.com/shop/helper"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/examples/quickstart/shopdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

const pay = "UPDATE orders SET paid = 1"

func overwritten(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.Lock(ctx, key) // want `the error of Lock is dropped: the program continues without the lock`
	_, err = tx.ExecContext(ctx, pay)
	return err
}

func never(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.Lock(ctx, key)
	if err != nil {
		return err
	}
	_, err = locks.RLock(ctx, key) // want `the error of RLock is dropped`
	return nil
}

func blank(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.Lock(ctx, key) // want `the error of Lock is dropped`
	_ = err
	_, err = tx.ExecContext(ctx, pay)
	return err
}

func onePath(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key, strict bool) error {
	_, err := locks.Lock(ctx, key) // want `the error of Lock is dropped`
	if strict {
		if err != nil {
			return err
		}
	}
	_, err = tx.ExecContext(ctx, pay)
	return err
}

func lastOfLoop(ctx context.Context, locks *txlock.Scope, keys []txlock.Key) error {
	var err error
	for _, key := range keys {
		_, err = locks.Lock(ctx, key) // want `the error of Lock is dropped`
	}
	return err
}

func runs(ctx context.Context, db *sql.DB, key txlock.Key, l *lease.Lease) error {
	err := locksqlc.Run(ctx, db, []txlock.Key{key}, func(*sql.Tx) error { return nil }) // want `the error of Run is dropped`
	err = l.Release(ctx)
	return err
}

func inFunction(ctx context.Context, db *sql.DB, key txlock.Key) error {
	return locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error {
		locks, err := locksqlc.Join(ctx, tx)
		if err != nil {
			return err
		}
		_, err = locks.Lock(ctx, key) // want `the error of Lock is dropped`
		_, err = tx.ExecContext(ctx, pay)
		return err
	})
}

func inGorm(db *gorm.DB, key txlock.Key) error {
	return db.Transaction(func(tx *gorm.DB) error {
		_, err := lockgorm.Lock(tx, key) // want `the error of Lock is dropped`
		err = tx.Exec(pay).Error
		return err
	})
}

func inHelper(ctx context.Context, tx *sql.Tx) error {
	err := helper.LockOrder(ctx, tx, 1) // want `the error of LockOrder is dropped`
	_, err = tx.ExecContext(ctx, pay)
	return err
}

func inOwn(ctx context.Context, tx *sql.Tx, orm *gorm.DB, locks *txlock.Scope, key txlock.Key) {
	helper.LockOrder(ctx, tx, 1)           // want `the error of LockOrder is dropped: the program continues without the lock`
	_ = helper.LockGorm(orm, 1)            // want `the error of LockGorm is dropped`
	go lockEach(ctx, tx, helper.Orders, 1) // want `the error of lockEach is dropped`
	locker{}.lock(ctx, locks, key)         // want `the error of lock is dropped`
	_, _ = tryLock(ctx, locks, key)        // want `the error of tryLock is dropped`
}

func lockEach[T txlock.ID](ctx context.Context, tx *sql.Tx, of txlock.Family[T], id T) error {
	locks, err := locksqlc.Join(ctx, tx)
	if err != nil {
		return err
	}
	return locker{}.lock(ctx, locks, of.Key(id))
}

type locker struct{}

func (locker) lock(ctx context.Context, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.Lock(ctx, key)
	return err
}

func tryLock(ctx context.Context, locks *txlock.Scope, key txlock.Key) (locked bool, err error) {
	if _, err = locks.TryLock(ctx, key); errors.Is(err, txlock.ErrBusy) {
		return false, nil
	}
	return err == nil, err
}

func swallowed(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.TryLock(ctx, key) // want `the failure of TryLock changes nothing: line 134 continues without the lock`
	if errors.Is(err, txlock.ErrBusy) {
		slog.Warn("busy", "error", err)
	} else if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, pay)
	return err
}

func wrapped(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	if _, err := locks.Lock(ctx, key); err != nil { // want `the failure of Lock changes nothing`
		err = fmt.Errorf("lock: %w", err)
	}
	_, err := tx.ExecContext(ctx, pay)
	return err
}

func wrappedAndRead(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.Lock(ctx, key)
	if err != nil {
		err = fmt.Errorf("lock: %w", err)
	}
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, pay)
	return err
}

func wrappedForDefer(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) {
	var err error
	defer func() {
		if err != nil {
			tx.Rollback()
		}
	}()
	if _, err = locks.Lock(ctx, key); err != nil {
		err = fmt.Errorf("lock: %w", err)
	}
	tx.ExecContext(ctx, pay)
}

func wrappedForCaller(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) (err error) {
	if _, err = locks.Lock(ctx, key); err != nil {
		err = fmt.Errorf("lock: %w", err)
	}
	tx.ExecContext(ctx, pay)
	return
}

func replacedByOwn(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	if _, err := locks.Lock(ctx, key); err != nil {
		err = handled(err)
	}
	_, err := tx.ExecContext(ctx, pay)
	return err
}

// noted gives the error to a function, which may return another one.
func noted(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	if _, err := locks.Lock(ctx, key); handled(err) == nil {
		log.Println("locked")
	}
	_, err := tx.ExecContext(ctx, pay)
	return err
}

func handled(err error) error { return err }

func allowed(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	if _, err := locks.TryLock(ctx, key); err != nil && !errors.Is(err, txlock.ErrBusy) { // want `the failure of TryLock changes nothing`
		return err
	}
	_, err := tx.ExecContext(ctx, pay)
	return err
}

func logged(ctx context.Context, queries *shopdb.Queries, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	q := queries.WithTx(tx)
	if _, err := locks.Lock(ctx, key); err != nil { // want `the failure of Lock changes nothing`
		log.Println(err)
	}
	_, err := q.Tally(ctx)
	return err
}

func cleared(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.TryLock(ctx, key) // want `the failure of TryLock changes nothing`
	switch {
	case errors.Is(err, txlock.ErrBusy):
		err = nil
	case err != nil:
		return err
	}
	return helperPays(ctx, tx)
}

func helperPays(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, pay)
	return err
}

func gormBusy(db *gorm.DB, key txlock.Key) error {
	return db.Transaction(func(tx *gorm.DB) error {
		locks, err := lockgorm.Join(tx)
		if err != nil {
			return err
		}
		if _, err := locks.TryLock(tx.Statement.Context, key); errors.Is(err, txlock.ErrBusy) { // want `the failure of TryLock changes nothing`
			log.Print("busy")
		} else if err != nil {
			return err
		}
		return tx.Exec(pay).Error
	})
}

func helperBusy(ctx context.Context, tx *sql.Tx) error {
	if err := helper.LockOrder(ctx, tx, 1); errors.Is(err, txlock.ErrWaitTimeout) { // want `the failure of LockOrder changes nothing`
		log.Print("late")
	} else if err != nil {
		return err
	}
	return helperPays(ctx, tx)
}

func leaseBusy(ctx context.Context, m *lease.Manager, key txlock.Key) error {
	l, err := m.TryAcquire(ctx, key) // want `the failure of TryAcquire changes nothing`
	if err != nil && !errors.Is(err, txlock.ErrBusy) {
		return err
	}
	defer l.Release(ctx)
	return nil
}

func firstUnused(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	first, err := locks.Once(ctx, key) // want `the result of Once is dropped`
	if err != nil {
		return err
	}
	_ = first
	return helperPays(ctx, tx)
}

func firstLogged(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	first, err := locks.Once(ctx, key) // want `the result of Once is dropped`
	if err != nil {
		return err
	}
	log.Println("first:", first)
	return helperPays(ctx, tx)
}

func firstSwallowed(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	first, err := locks.Once(ctx, key) // want `the failure of Once changes nothing`
	if err != nil {
		return err
	}
	if !first {
		log.Println("again")
	}
	return helperPays(ctx, tx)
}

func firstBlank(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.Once(ctx, key) // want `the result of Once is dropped`
	if err != nil {
		return err
	}
	return helperPays(ctx, tx)
}

func lateLook(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.Lock(ctx, key) // want `the error of Lock is dropped`
	if _, err := tx.ExecContext(ctx, pay); err != nil {
		return err
	}
	return err
}

func byHolder(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	var holder *txlock.HeldError
	if _, err := locks.TryLock(ctx, key); errors.As(err, &holder) { // want `the failure of TryLock changes nothing`
		log.Println("busy:", holder)
	} else if err != nil {
		return err
	}
	return helperPays(ctx, tx)
}

func onceBlank(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	first, _ := locks.Once(ctx, key) // want `the error of Once is dropped`
	if first {
		return helperPays(ctx, tx)
	}
	return nil
}

func bump(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	if err := locks.CompareAndBump(ctx, key, 1); errors.Is(err, txlock.ErrConflict) { // want `the failure of CompareAndBump changes nothing`
		log.Print("changed")
	} else if err != nil {
		return err
	}
	return tx.Commit()
}

// From here on all is right.

func unlessLocked(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	locked, _ := tryLock(ctx, locks, key)
	if !locked {
		return nil
	}
	_ = counts(ctx, tx)
	return helperPays(ctx, tx)
}

func ownCheck(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	var err error
	check := func() {
		if err != nil {
			panic(err)
		}
	}
	_, err = locks.Lock(ctx, key)
	check()
	return helperPays(ctx, tx)
}

func rolledBack(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	if _, err := locks.TryLock(ctx, key); err != nil {
		_ = tx.Rollback()
		log.Println(err)
	}
	return tx.Commit()
}

func instead(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key, other txlock.Key) error {
	_, err := locks.TryLock(ctx, key)
	if errors.Is(err, txlock.ErrBusy) {
		log.Println("busy:", err)
		_, err = locks.Lock(ctx, other)
	}
	if err != nil {
		return err
	}
	return helperPays(ctx, tx)
}

func early(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key, now bool) error {
	_, err := locks.TryLock(ctx, key)
	if err == nil && now {
		return helperPays(ctx, tx)
	}
	_, execErr := tx.ExecContext(ctx, "INSERT INTO later VALUES (1)")
	return execErr
}

func best(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	if err := counts(ctx, tx); err != nil { // it locks and writes, and what follows needs no lock of it
		log.Println(err)
	}
	return helperPays(ctx, tx)
}

func counts(ctx context.Context, tx *sql.Tx) error {
	if err := helper.LockOrder(ctx, tx, 1); err != nil {
		return err
	}
	return helperPays(ctx, tx)
}

func firstRight(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) (bool, error) {
	first, err := locks.Once(ctx, key)
	if err != nil || !first {
		return false, err
	}
	return true, helperPays(ctx, tx)
}

func firstHanded(ctx context.Context, locks *txlock.Scope, key txlock.Key) (bool, error) {
	first, err := locks.Once(ctx, key)
	return first, err
}

func firstElse(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	first, err := locks.Once(ctx, key)
	if err != nil {
		return err
	}
	if first {
		if err := helperPays(ctx, tx); err != nil {
			return err
		}
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO calls VALUES (1)")
	return err
}

func later(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.Lock(ctx, key)
	slog.Info("locked", "error", err)
	if err == nil {
		_, err = tx.ExecContext(ctx, pay)
	}
	return err
}

func joinedErrors(ctx context.Context, locks *txlock.Scope, keys []txlock.Key) (err error) {
	for _, key := range keys {
		_, lockErr := locks.Lock(ctx, key)
		err = errors.Join(err, lockErr)
	}
	return
}

func namedResult(ctx context.Context, locks *txlock.Scope, key txlock.Key) (err error) {
	_, err = locks.Lock(ctx, key)
	return
}

func deferredLook(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) (err error) {
	defer func() {
		if err != nil {
			_ = tx.Rollback()
		}
	}()
	_, err = locks.Lock(ctx, key)
	return err
}

func outerVariable(ctx context.Context, db *sql.DB, m *lease.Manager, key txlock.Key) error {
	var err error
	func() {
		err = m.Do(ctx, key, func(context.Context, *lease.Lease) error { return nil })
	}()
	return err
}

func otherWork(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.TryLock(ctx, key)
	if errors.Is(err, txlock.ErrBusy) {
		_, err = tx.ExecContext(ctx, "INSERT INTO later VALUES (1)")
		return err
	}
	if err != nil {
		return err
	}
	return helperPays(ctx, tx)
}

func eachFree(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, keys []txlock.Key) error {
	for _, key := range keys {
		if _, err := locks.TryLock(ctx, key); errors.Is(err, txlock.ErrBusy) {
			log.Println("busy:", key)
			continue
		} else if err != nil {
			return err
		}
		if err := helperPays(ctx, tx); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO runs VALUES (1)")
	return err
}

func remembered(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	busy := false
	if _, err := locks.TryLock(ctx, key); errors.Is(err, txlock.ErrBusy) {
		busy = true
	} else if err != nil {
		return err
	}
	if busy {
		return nil
	}
	return helperPays(ctx, tx)
}

func held(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.TryLock(ctx, key)
	free := err == nil
	if err != nil && !errors.Is(err, txlock.ErrBusy) {
		return err
	}
	if free {
		return helperPays(ctx, tx)
	}
	return tx.Commit()
}

func twoLooks(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.TryLock(ctx, key)
	if err != nil && !errors.Is(err, txlock.ErrBusy) {
		return fmt.Errorf("lock: %w", err)
	}
	if errors.Is(err, txlock.ErrBusy) {
		return nil
	}
	return helperPays(ctx, tx)
}

func again(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key, other txlock.Key) error {
	_, err := locks.TryLock(ctx, key)
	for errors.Is(err, txlock.ErrBusy) {
		time.Sleep(time.Millisecond)
		_, err = locks.TryLock(ctx, other)
	}
	if err != nil {
		return err
	}
	return helperPays(ctx, tx)
}

func ownPredicate(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key, busy func(error) bool) error {
	_, err := locks.TryLock(ctx, key)
	if err != nil && !busy(err) {
		return err
	}
	if busy(err) {
		return nil
	}
	return helperPays(ctx, tx)
}

func bySwitch(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	_, err := locks.TryLock(ctx, key)
	switch err {
	case nil:
	default:
		return err
	}
	return helperPays(ctx, tx)
}

func cancelled(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	ctx, cancel := context.WithCancelCause(ctx)
	if _, err := locks.TryLock(ctx, key); err != nil {
		cancel(err)
	}
	return helperPays(ctx, tx)
}

func perhaps(ctx context.Context, m *lease.Manager, key txlock.Key) (*lease.Lease, error) {
	l, err := m.TryAcquire(ctx, key)
	if err != nil && !errors.Is(err, txlock.ErrBusy) {
		return nil, err
	}
	return l, nil
}

func perhapsReleased(ctx context.Context, m *lease.Manager, key txlock.Key) error {
	l, err := m.TryAcquire(ctx, key)
	if err != nil && !errors.Is(err, txlock.ErrBusy) {
		return err
	}
	if l != nil {
		return l.Release(ctx)
	}
	return nil
}

func otherTransaction(ctx context.Context, tx, other *sql.Tx, key txlock.Key) error {
	if err := helper.LockOrder(ctx, tx, 1); err != nil {
		log.Println(err)
	}
	return helperPays(ctx, other)
}
