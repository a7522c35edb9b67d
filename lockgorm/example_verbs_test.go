package lockgorm_test

import (
	"context"
	"errors"
	"net/http"
	"time"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// These examples need a database, so they are compiled and not run.

func setPaid(tx *gorm.DB, id int64) error {
	return tx.Model(&Invoice{ID: id}).Update("paid", true).Error
}

// Transaction locks, runs the function, and commits. After a deadlock it does so again.
func ExampleTransaction() {
	pay := func(db *gorm.DB, id int64) error {
		return lockgorm.Transaction(db, Invoices.Keys(id), func(tx *gorm.DB) error { return setPaid(tx, id) })
	}
	_ = pay
}

func ExampleLock() {
	pay := func(tx *gorm.DB, id int64) error { // inside of db.Transaction
		if _, err := lockgorm.Lock(tx, Invoices.Key(id)); err != nil {
			return err
		}
		return setPaid(tx, id)
	}
	_ = pay
}

// In one order, whatever the order of the arguments is.
func ExampleLockAll() {
	merge := func(tx *gorm.DB, a, b int64) error {
		_, err := lockgorm.LockAll(tx, Invoices.Keys(a, b)...)
		return err
	}
	_ = merge
}

func ExampleLockAny() {
	next := func(tx *gorm.DB, ids ...int64) (txlock.Key, error) {
		grant, err := lockgorm.LockAny(tx, Invoices.Keys(ids...)...) // the first that is free
		return grant.Key(), err
	}
	_ = next
}

func ExampleTryLock() {
	pay := func(tx *gorm.DB, id int64) error {
		_, err := lockgorm.TryLock(tx, Invoices.Key(id))
		if errors.Is(err, txlock.ErrBusy) {
			return nil // somebody works on it; the transaction goes on
		}
		if err != nil {
			return err
		}
		return setPaid(tx, id)
	}
	_ = pay
}

// Readers hold the key together, and keep writers out.
func ExampleRLock() {
	read := func(tx *gorm.DB, id int64) (invoice Invoice, err error) {
		if _, err := lockgorm.RLock(tx, Invoices.Key(id)); err != nil {
			return invoice, err
		}
		err = tx.First(&invoice, id).Error
		return invoice, err
	}
	_ = read
}

func ExampleRLockAll() {
	read := func(tx *gorm.DB, ids ...int64) (all []Invoice, err error) {
		if _, err := lockgorm.RLockAll(tx, Invoices.Keys(ids...)...); err != nil {
			return nil, err
		}
		err = tx.Find(&all, ids).Error
		return all, err
	}
	_ = read
}

func ExampleTryRLock() {
	current := func(tx *gorm.DB, id int64) (bool, error) {
		_, err := lockgorm.TryRLock(tx, Invoices.Key(id))
		if errors.Is(err, txlock.ErrBusy) {
			return false, nil // somebody writes it just now
		}
		return err == nil, err
	}
	_ = current
}

func ExampleWaitAtMost() {
	pay := func(tx *gorm.DB, id int64) error {
		_, err := lockgorm.Lock(lockgorm.WaitAtMost(tx, 200*time.Millisecond), Invoices.Key(id))
		return err // ErrWaitTimeout: the transaction goes on without the lock
	}
	_ = pay
}

// The scope of the transaction has what the functions of this package don't.
func ExampleJoin() {
	held := func(tx *gorm.DB, id int64) (bool, error) {
		locks, err := lockgorm.Join(tx)
		if err != nil {
			return false, err
		}
		_, held := locks.Held(Invoices.Key(id))
		return held, nil
	}
	_ = held
}

func ExampleAssertLocked() {
	pay := func(tx *gorm.DB, id int64) error {
		if err := lockgorm.AssertLocked(tx, Invoices.Key(id)); err != nil {
			return err // a mistake of the program: the caller has not locked it
		}
		return setPaid(tx, id)
	}
	_ = pay
}

func ExampleAssertRLocked() {
	read := func(tx *gorm.DB, id int64) (invoice Invoice, err error) {
		if err := lockgorm.AssertRLocked(tx, Invoices.Key(id)); err != nil {
			return invoice, err // neither Lock nor RLock was called
		}
		err = tx.First(&invoice, id).Error
		return invoice, err
	}
	_ = read
}

// Verify tells before COMMIT whether the transaction is still open, for code on a plain pool.
func ExampleVerify() {
	pay := func(tx *gorm.DB, id int64) error {
		if err := setPaid(tx, id); err != nil {
			return err
		}
		return lockgorm.Verify(tx)
	}
	_ = pay
}

// Nobody waits: where two meet, the later one is run again.
func ExampleOptimistic() {
	pay := func(db *gorm.DB, id int64) error {
		return lockgorm.Optimistic(db, Invoices.Key(id), func(tx *gorm.DB) error { return setPaid(tx, id) })
	}
	_ = pay
}

func ExampleReadVersion() {
	show := func(db *gorm.DB, id int64) (invoice Invoice, version uint64, err error) {
		if version, err = lockgorm.ReadVersion(db, Invoices.Key(id)); err != nil { // first the version
			return invoice, 0, err
		}
		err = db.First(&invoice, id).Error
		return invoice, version, err
	}
	_ = show
}

// A form that was shown in another request is saved; it carries the version.
func ExampleCompareAndBump() {
	save := func(tx *gorm.DB, id int64, shown uint64) error {
		if err := lockgorm.CompareAndBump(tx, Invoices.Key(id), shown); err != nil {
			return err // ErrConflict: show the form again
		}
		return setPaid(tx, id)
	}
	_ = save
}

func ExampleOnce() {
	receive := func(db *gorm.DB, message, id int64) error {
		_, err := lockgorm.Once(db, txlock.NewFamily[int64]("message").Key(message), func(tx *gorm.DB) error {
			return setPaid(tx, id)
		})
		return err
	}
	_ = receive
}

// Who repeats the request gets the value of the first one.
func ExampleOnceValue() {
	receive := func(db *gorm.DB, message, id int64) (receipt string, err error) {
		receipt, _, err = lockgorm.OnceValue(db, txlock.NewFamily[int64]("message").Key(message), func(tx *gorm.DB) (string, error) {
			return "receipt 1", setPaid(tx, id)
		})
		return receipt, err
	}
	_ = receive
}

// A request that is repeated with the same Idempotency-Key gets the answer of the first one.
func ExampleOnceHandler() {
	serve := func(db *gorm.DB, mux *http.ServeMux) {
		pay := func(w http.ResponseWriter, r *http.Request) {
			if err := setPaid(lockgorm.TxOf(r.Context()), 42); err != nil {
				lockgorm.FailRequest(r.Context(), err)
				return
			}
			w.WriteHeader(http.StatusCreated)
		}
		mux.Handle("POST /payments", lockgorm.OnceHandler(db, http.HandlerFunc(pay), lockgorm.KeyRequired()))
	}
	_ = serve
}

// A handler behind OnceHandler works in the transaction of its request.
func ExampleTxOf() {
	pay := func(w http.ResponseWriter, r *http.Request) {
		if err := setPaid(lockgorm.TxOf(r.Context()), 42); err == nil {
			w.WriteHeader(http.StatusCreated)
		}
	}
	_ = pay
}

// All that the handler has written is rolled back, and its answer is not stored.
func ExampleFailRequest() {
	pay := func(w http.ResponseWriter, r *http.Request) {
		if err := setPaid(lockgorm.TxOf(r.Context()), 42); err != nil {
			lockgorm.FailRequest(r.Context(), err) // after a deadlock the handler is called again
			http.Error(w, "not paid", http.StatusServiceUnavailable)
		}
	}
	_ = pay
}

func ExampleNewManager() {
	run := func(ctx context.Context, db *gorm.DB, work func(context.Context, *lease.Lease) error) error {
		leases, err := lockgorm.NewManager(db) // once per program
		if err != nil {
			return err
		}
		return errors.Join(leases.Do(ctx, txlock.Named("import"), work), leases.Close(context.WithoutCancel(ctx)))
	}
	_ = run
}

// The lease and what is written belong together: after COMMIT both are there, or none.
func ExampleAcquireTx() {
	claim := func(tx *gorm.DB, leases *lease.Manager, id int64) (*lease.Lease, error) {
		l, err := lockgorm.AcquireTx(tx, leases, Invoices.Key(id))
		if err != nil {
			return nil, err
		}
		return l, setPaid(tx, id) // to be used, and released, after COMMIT
	}
	_ = claim
}

// The transaction can be committed only while the lease is held.
func ExampleGuard() {
	book := func(db *gorm.DB, l *lease.Lease, id int64) error {
		return db.Transaction(func(tx *gorm.DB) error {
			if err := setPaid(tx, id); err != nil {
				return err
			}
			return lockgorm.Guard(tx, l) // last
		})
	}
	_ = book
}
