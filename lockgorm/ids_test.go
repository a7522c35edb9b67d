package lockgorm_test

import (
	"errors"
	"fmt"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestHooksThatChangeKeys refuses an update or delete whose hook gives its model another
// primary key: GORM would look for that row, find none, and return nothing.
func TestHooksThatChangeKeys(t *testing.T) {
	eachSetting(t, []string{"Carton", "Order", "Item"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		write := func(fn func(tx *gorm.DB) error) error { return e.inTransaction(db, fn) }
		noError(t, write(func(tx *gorm.DB) error { return tx.Create([]*Carton{{ID: 1, Code: "one"}, {ID: 2, Code: "two"}}).Error }))
		for what, change := range map[string]func(tx *gorm.DB, c *Carton) error{
			"Update":           func(tx *gorm.DB, c *Carton) error { return tx.Model(c).Update("n", 9).Error },
			"Updates":          func(tx *gorm.DB, c *Carton) error { c.N = 9; return tx.Updates(c).Error },
			"a batch":          func(tx *gorm.DB, c *Carton) error { return tx.Model([]*Carton{c}).Update("n", 9).Error },
			"Save":             func(tx *gorm.DB, c *Carton) error { c.N = 9; return tx.Save(c).Error },
			"Delete":           func(tx *gorm.DB, c *Carton) error { return tx.Delete(c).Error },
			"Delete, Unscoped": func(tx *gorm.DB, c *Carton) error { return tx.Unscoped().Delete(c).Error },
		} {
			for _, id := range []int64{2, 77, 0} {
				c := &Carton{ID: 1, Code: "one"}
				err := write(func(tx *gorm.DB) error {
					return change(withHook(tx, func(*gorm.DB, int64) error { c.ID = id; return nil }), c)
				})
				wantError(t, fmt.Sprintf("%s, to %d", what, id), err, txlock.ErrInvalidKey)
				if e.count(t, "Carton", "n = 0 AND deleted_at IS NULL") != 2 || e.count(t, "Carton", "1 = 1") != 2 {
					t.Fatalf("%s, to %d: it was written", what, id)
				}
			}
		}
	})
}

// TestHooksThatAddModels proves that a record is locked, too, that a hook adds to a batch.
func TestHooksThatAddModels(t *testing.T) {
	eachGuarded(t, []string{"Carton", "Lid"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		noError(t, db.Create(&Carton{ID: 2, Code: "two"}).Error)
		for what, write := range map[string]func(tx *gorm.DB, batch *[]*Carton) error{
			"Create": func(tx *gorm.DB, batch *[]*Carton) error { return tx.Create(batch).Error },
			"Save":   func(tx *gorm.DB, batch *[]*Carton) error { return tx.Save(batch).Error },
		} {
			batch := []*Carton{{ID: 1, Code: "one"}}
			wantError(t, what, db.Transaction(func(tx *gorm.DB) error {
				add := func(_ *gorm.DB, id int64) error {
					if id == 1 && what == "Save" {
						batch = append(batch, &Carton{ID: 2, Code: "two", N: 9})
					} else if id == 1 {
						batch = append(batch, &Carton{ID: 3, Code: "three"})
					}
					return nil
				}
				if err := write(withHook(tx, add), &batch); err != nil {
					return err
				}
				if id := batch[1].ID; len(batch) != 2 || !e.held(t, cartons.Key(1)) || !e.held(t, cartons.Key(id)) {
					t.Errorf("%s: the key of %d is free", what, id)
				}
				return errInner
			}), errInner)
		}
	})
}

// TestZeroKeysAreNotCreated refuses to create or upsert a record whose primary key is the zero
// value, unless the database makes it: nobody has locked that record.
func TestZeroKeysAreNotCreated(t *testing.T) {
	eachSetting(t, []string{"Parole", "Tally", "Sticker"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		for what, create := range map[string]func(tx *gorm.DB) error{
			"a string":        func(tx *gorm.DB) error { return tx.Create(&Parole{N: 2}).Error },
			"a batch":         func(tx *gorm.DB) error { return tx.Create([]*Parole{{Code: "a", N: 2}, {N: 2}}).Error },
			"a number":        func(tx *gorm.DB) error { return tx.Create(&Tally{N: 2}).Error },
			"a map":           func(tx *gorm.DB) error { return tx.Model(&Tally{}).Create(map[string]any{"id": 0, "n": 2}).Error },
			"Save":            func(tx *gorm.DB) error { return tx.Save(&Parole{N: 2}).Error },
			"Save of a batch": func(tx *gorm.DB) error { return tx.Save([]*Parole{{Code: "a", N: 2}, {N: 2}}).Error },
			"an upsert of a map": func(tx *gorm.DB) error {
				return tx.Model(&Tally{}).Clauses(clause.OnConflict{UpdateAll: true}).Create(map[string]any{"id": 0, "n": 2}).Error
			},
			"IGNORE": func(tx *gorm.DB) error {
				return tx.Clauses(clause.Insert{Modifier: "IGNORE"}).Create(&Parole{N: 2}).Error
			},
		} {
			wantError(t, what, e.inTransaction(db, create), txlock.ErrInvalidKey)
			if e.count(t, "Parole", "1 = 1")+e.count(t, "Tally", "1 = 1") > 0 {
				t.Fatalf("%s: a row was written without a lock", what)
			}
		}
		noError(t, e.inTransaction(db, func(tx *gorm.DB) error {
			return errors.Join(tx.Save([]*Sticker{{N: 1}, {N: 1}}).Error, tx.Clauses(lockgorm.On(newKey())).Create(&Tally{N: 1}).Error)
		}))
	})
}
