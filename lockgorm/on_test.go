package lockgorm_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// onStatements are statements that get keys only from On.
var onStatements = map[string]func(db *gorm.DB) error{
	"First":    func(db *gorm.DB) error { return db.First(&Order{}).Error },
	"Count":    func(db *gorm.DB) error { return db.Model(&Order{}).Count(new(int64)).Error },
	"Preload":  func(db *gorm.DB) error { return db.Preload("Items").Find(&[]Order{}).Error },
	"Row":      func(db *gorm.DB) error { return db.Model(&Order{}).Select("COUNT(*)").Row().Scan(new(int)) },
	"Raw.Scan": func(db *gorm.DB) error { return db.Raw("SELECT 1").Scan(new(int)).Error },
	"Raw.Row":  func(db *gorm.DB) error { return db.Raw("SELECT 2").Row().Scan(new(int)) },
	"Exec":     func(db *gorm.DB) error { return db.Exec("DO ?", 1).Error },
	"FindInBatches": func(db *gorm.DB) error {
		return db.FindInBatches(&[]Order{}, 1, func(*gorm.DB, int) error { return nil }).Error
	},
	"Rows":        func(db *gorm.DB) error { return scanned(db.Model(&Order{}), &Order{}) },
	"Association": func(db *gorm.DB) error { return db.Model(&Order{ID: 1}).Association("Items").Find(&[]Item{}) },
}

func TestOnStatements(t *testing.T) {
	each(t, []string{"Order", "Item"}, func(t *testing.T, e *env) {
		for name, configure := range configs {
			db := used(t, e.open(t, configure))
			noError(t, db.Save(&Order{ID: newID(), Items: []Item{{ID: newID()}}}).Error)
			for what, send := range onStatements {
				key := e.ensured(t)
				noError(t, db.Transaction(func(tx *gorm.DB) error {
					wantError(t, name+", "+what, send(tx.Clauses(lockgorm.On(key)).Session(&gorm.Session{})), nil)
					e.wantHeld(t, name+", "+what+": the key of On is free", key)
					return tx.Error
				}))
				on := db.Clauses(lockgorm.On(key)).Session(&gorm.Session{})
				wantError(t, name+", outside, "+what, send(on), txlock.ErrNoTransaction)
				noError(t, db.Connection(func(tx *gorm.DB) error {
					on := tx.Clauses(lockgorm.On(key)).Session(&gorm.Session{})
					wantError(t, name+", on a connection, "+what, send(on), txlock.ErrNoTransaction)
					return nil
				}))
				noError(t, db.Transaction(func(tx *gorm.DB) error {
					on := tx.Clauses(lockgorm.On()).Session(&gorm.Session{})
					wantError(t, name+", no key, "+what, send(on), txlock.ErrInvalidKey)
					on = tx.Clauses(lockgorm.On(txlock.Key{})).Session(&gorm.Session{})
					wantError(t, name+", the zero key, "+what, send(on), txlock.ErrInvalidKey)
					on = tx.Clauses(lockgorm.On(lockgorm.NoLock...)).Session(&gorm.Session{})
					wantError(t, name+", "+what+" with NoLock", send(on), nil)
					return send(tx)
				}))
			}
		}
	})
}

// TestOnReplacesModelKeys proves that On replaces LockKeys, for one statement.
func TestOnReplacesModelKeys(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		id, key := newID(), e.ensured(t)
		own := orders.Key(id)
		noError(t, txlock.Ensure(t.Context(), e.Admin(), own))
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.Clauses(lockgorm.On(key)).Create(&Order{ID: id}).Error)
			e.wantHeld(t, "with On another key was locked than the one it names", key)
			e.wantFree(t, "with On another key was locked than the one it names", own)
			noError(t, tx.Model(&Order{ID: id}).Update("n", 1).Error)
			e.wantHeld(t, "the next statement hasn't locked the model's key", own)
			return nil
		}))
		several := []txlock.Key{e.ensured(t), e.ensured(t)}
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.Clauses(lockgorm.On(several...)).Delete(&Order{}, id).Error)
			e.wantHeld(t, "one of several keys is free", several...)
			return nil
		}))
	})
}

// TestOnReused proves that a *gorm.DB with On that is used again names its keys again.
func TestOnReused(t *testing.T) {
	each(t, []string{"Order", "Note"}, func(t *testing.T, e *env) {
		db, key, hooks := e.openPlugin(t), e.ensured(t), 0
		noError(t, db.Create(&Order{ID: 1}).Error)
		hooked := withHook(db, func(*gorm.DB, int64) error {
			hooks++
			if !e.held(t, key) {
				t.Errorf("hook %d runs without the lock", hooks)
			}
			return nil
		}).Clauses(lockgorm.On(key)).Where("id = 1")
		session := hooked.Session(&gorm.Session{})
		for range 2 {
			noError(t, session.Model(&Order{}).Update("n", 1).Error)
		}
		chain := hooked.Model(&Order{})
		for range 2 {
			noError(t, chain.Update("n", 2).Error)
		}
		if hooks != 4 {
			t.Errorf("%d hooks, want 4", hooks)
		}
	})
}
