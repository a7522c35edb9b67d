package lockgorm_test

import (
	"context"
	"errors"
	"log"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
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
