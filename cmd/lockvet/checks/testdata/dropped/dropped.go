// Package dropped looks at nothing, or at enough.
package dropped

import (
	"context"
	"database/sql"
	"errors"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func wrong(ctx context.Context, db *sql.DB, locks *txlock.Scope, m *lease.Manager, l *lease.Lease, key txlock.Key) {
	locks.Lock(ctx, key)                                                        // want `the error of Lock is dropped: the program continues without the lock`
	_, _ = locks.LockAll(ctx, key)                                              // want `the error of LockAll is dropped`
	_, _ = locks.RLockAll(ctx, key)                                             // want `the error of RLockAll is dropped`
	grant, _ := locks.TryLock(ctx, key)                                         // want `the error of TryLock is dropped`
	go locksqlc.Run(ctx, db, nil, func(*sql.Tx) error { return nil })           // want `the error of Run is dropped: it reports that nothing was done`
	defer locksqlc.Do(ctx, db, key, func(context.Context) error { return nil }) // want `the error of Do is dropped`
	l.Release(ctx)                                                              // want `the error of Release is dropped: it reports that the lease was lost`
	_ = grant
	if _, err := m.Acquire(ctx, key); err != nil { // want `the lease is dropped`
		return
	}
	_, err := m.TryAcquire(ctx, key) // want `the lease is dropped`
	if err != nil {
		return
	}
}

func returned(ctx context.Context, m *lease.Manager, key txlock.Key) error {
	_, err := m.Acquire(ctx, key) // want `the lease is dropped`
	return err
}

func returnedBare(ctx context.Context, m *lease.Manager, key txlock.Key) (n int, err error) {
	_, err = m.Acquire(ctx, key) // want `the lease is dropped`
	n = 1
	return
}

func downgraded(ctx context.Context, l *lease.Lease) (int, error) {
	_, err := l.Downgrade(ctx) // want `the lease is dropped`
	return 1, err
}

func onceWrong(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, key txlock.Key) error {
	if _, err := locks.Once(ctx, key); err != nil { // want `the result of Once is dropped`
		return err
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO payments VALUES (1)")
	return err
}

func right(ctx context.Context, locks *txlock.Scope, m *lease.Manager, l *lease.Lease, key txlock.Key) (err error) {
	defer l.Release(ctx)
	defer m.Close(ctx)
	if _, err := locks.Lock(ctx, key); err != nil {
		return err
	}
	if _, err := m.TryAcquire(ctx, key); err == nil { // somebody must have it
		return nil
	}
	_ = l.Release(ctx)
	_, _ = m.List(ctx)
	_, err = locks.Once(ctx, key)
	return err
}

// Who wants to know whether somebody has it expects an error.
func isHeld(ctx context.Context, m *lease.Manager, key txlock.Key) (bool, error) {
	_, err := m.TryAcquire(ctx, key)
	if errors.Is(err, txlock.ErrBusy) {
		return true, nil
	}
	return false, err
}

func isFree(ctx context.Context, m *lease.Manager, key txlock.Key) bool {
	_, err := m.TryAcquire(ctx, key)
	return err == nil
}

// The manager is closed at the end, and its leases with it.
func closed(ctx context.Context, db *sql.DB, key txlock.Key) error {
	m, err := lease.NewManager(db)
	if err != nil {
		return err
	}
	defer m.Close(ctx)
	if _, err := m.Acquire(ctx, key); err != nil {
		return err
	}
	return nil
}

type keeper struct{ *lease.Manager }

func (k *keeper) stop(ctx context.Context) error { return k.Close(ctx) }

// A method closes it.
func closedByMethod(ctx context.Context, k *keeper, key txlock.Key) error {
	if _, err := k.Acquire(ctx, key); err != nil {
		return err
	}
	return k.stop(ctx)
}
