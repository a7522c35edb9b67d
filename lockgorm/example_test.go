package lockgorm_test

import (
	"context"
	"errors"
	"log"
	"net/http"
	"time"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/idempotency"
	"github.com/dca00107/lockstep/txlock/lease"
)

var Invoices = txlock.NewFamily[int64]("invoice")

type Invoice struct {
	ID   int64
	Paid bool
}

func (i *Invoice) LockKeys(*gorm.DB) ([]txlock.Key, error) {
	return Invoices.Keys(i.ID), nil
}

func Example() {
	db, err := lockgorm.Open("app:secret@tcp(127.0.0.1:3306)/shop", &gorm.Config{})
	if err != nil {
		log.Fatal(err)
	}
	err = db.Transaction(func(tx *gorm.DB) error {
		if _, err := lockgorm.Lock(tx, Invoices.Key(42)); err != nil {
			return err
		}
		return tx.Model(&Invoice{ID: 42}).Update("paid", true).Error
	})
	if err != nil {
		log.Print(err)
	}
}

func ExampleNew() {
	var db *gorm.DB

	// Once: every create, update and delete of an Invoice locks its LockKeys first. A create
	// whose key the database makes needs no lock.
	if err := db.Use(lockgorm.New()); err != nil {
		log.Fatal(err)
	}
	// A read that a write follows names the key itself.
	err := lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
		invoice := Invoice{ID: 42}
		if err := tx.Clauses(lockgorm.On(Invoices.Key(42))).First(&invoice).Error; err != nil {
			return err
		}
		invoice.Paid = true
		return tx.Save(&invoice).Error
	})
	if err != nil {
		log.Print(err)
	}
}

var Payments = txlock.NewFamily[int64]("payment")

type Payment struct {
	ID   int64 `lockstep:"payment"` // as LockKeys with txlock.NewFamily[int64]("payment")
	Paid bool
}

func ExampleLoaded() {
	var db *gorm.DB
	ctx := context.Background()

	// Check compares models with the columns of their tables, now and not at the first write.
	if err := db.Use(lockgorm.New(lockgorm.Check(&Payment{}))); err != nil {
		log.Fatal(err)
	}
	err := lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
		payment, err := gorm.G[Payment](tx, lockgorm.On(Payments.Key(42))).Where("id = ?", 42).First(ctx)
		if err != nil {
			return err
		}
		_, err = gorm.G[Payment](tx, lockgorm.Loaded(&payment)).Update(ctx, "paid", true)
		return err
	})
	if err != nil {
		log.Print(err)
	}
}

type Article struct {
	ID      int64
	Text    string
	Version lockgorm.Version // needs the plugin: db.Use(lockgorm.New())
}

func ExampleVersion() {
	var db *gorm.DB
	var article Article // with its version, from the form that was sent

	err := db.Save(&article).Error // UPDATE ... , version = version + a random number WHERE id = ? AND version = ?
	if errors.Is(err, txlock.ErrConflict) {
		log.Print("another user has changed the article meanwhile")
	}
}

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

func ExampleWaitAtMost() {
	pay := func(tx *gorm.DB, id int64) error {
		_, err := lockgorm.Lock(lockgorm.WaitAtMost(tx, 200*time.Millisecond), Invoices.Key(id))
		return err // ErrWaitTimeout: the transaction goes on without the lock
	}
	_ = pay
}

// The scope of the transaction has all verbs.
func ExampleJoin() {
	next := func(tx *gorm.DB, ids ...int64) (txlock.Key, error) {
		locks, err := lockgorm.Join(tx)
		if err != nil {
			return txlock.Key{}, err
		}
		grant, err := locks.LockAny(tx.Statement.Context, Invoices.Keys(ids...)...) // the first that is free
		return grant.Key(), err
	}
	_ = next
}

// The transaction can be committed only while the lease is held.
func ExampleSQLTx() {
	book := func(db *gorm.DB, l *lease.Lease, id int64) error {
		return db.Transaction(func(tx *gorm.DB) error {
			if err := setPaid(tx, id); err != nil {
				return err
			}
			of, err := lockgorm.SQLTx(tx)
			if err != nil {
				return err
			}
			return l.Guard(tx.Statement.Context, of) // last
		})
	}
	_ = book
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

// Nobody waits: where two meet, the later one is run again.
func ExampleOptimistic() {
	pay := func(db *gorm.DB, id int64) error {
		return lockgorm.Optimistic(db, Invoices.Key(id), func(tx *gorm.DB) error { return setPaid(tx, id) })
	}
	_ = pay
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
				idempotency.Fail(r.Context(), err)
				return
			}
			w.WriteHeader(http.StatusCreated)
		}
		mux.Handle("POST /payments", lockgorm.OnceHandler(db, http.HandlerFunc(pay), idempotency.KeyRequired()))
	}
	_ = serve
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

// A handler behind OnceHandler works in the transaction of its request.
func ExampleTxOf() {
	pay := func(w http.ResponseWriter, r *http.Request) {
		if err := setPaid(lockgorm.TxOf(r.Context()), 42); err == nil {
			w.WriteHeader(http.StatusCreated)
		}
	}
	_ = pay
}
