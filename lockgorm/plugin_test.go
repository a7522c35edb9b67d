package lockgorm_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestWritesAreLocked runs every write of a model, and checks by another session that its
// key is held when its hooks run.
func TestWritesAreLocked(t *testing.T) {
	writes := map[string]func(db *gorm.DB, id int64) *gorm.DB{
		"Create":          func(db *gorm.DB, id int64) *gorm.DB { return db.Create(&Order{ID: -id}) },
		"Create, a slice": func(db *gorm.DB, id int64) *gorm.DB { return db.Create([]Order{{ID: -id}}) },
		"CreateInBatches": func(db *gorm.DB, id int64) *gorm.DB { return db.CreateInBatches([]*Order{{ID: -id}}, 10) },
		"CreateBatchSize": func(db *gorm.DB, id int64) *gorm.DB {
			return db.Session(&gorm.Session{CreateBatchSize: 1}).Create([]*Order{{ID: -id}, {ID: -id - 1<<40}})
		},
		"Save, an insert": func(db *gorm.DB, id int64) *gorm.DB { return db.Save(&Order{ID: -id}) },
		"Save, an update": func(db *gorm.DB, id int64) *gorm.DB { return db.Save(&Order{ID: id, N: 1}) },
		"Save, many":      func(db *gorm.DB, id int64) *gorm.DB { return db.Save([]*Order{{ID: id, N: 1}}) },
		"FirstOrCreate":   func(db *gorm.DB, id int64) *gorm.DB { return db.FirstOrCreate(&Order{}, Order{ID: -id}) },
		"Upsert": func(db *gorm.DB, id int64) *gorm.DB {
			return db.Clauses(clause.OnConflict{UpdateAll: true}).Create(&Order{ID: id, N: 1})
		},
		"Update":          func(db *gorm.DB, id int64) *gorm.DB { return db.Model(&Order{ID: id}).Update("n", 1) },
		"Updates, itself": func(db *gorm.DB, id int64) *gorm.DB { return db.Updates(&Order{ID: id, N: 1}) },
		"Updates, many":   func(db *gorm.DB, id int64) *gorm.DB { return db.Model([]*Order{{ID: id}}).Updates(Order{N: 1}) },
		"Assign": func(db *gorm.DB, id int64) *gorm.DB {
			return db.Where(Order{ID: id}).Assign(Order{N: 1}).FirstOrCreate(&Order{})
		},
		"Delete":          func(db *gorm.DB, id int64) *gorm.DB { return db.Delete(&Order{ID: id}) },
		"Delete, a model": func(db *gorm.DB, id int64) *gorm.DB { return db.Model(&Order{ID: id}).Delete(&Order{}) },
	}
	eachSetting(t, []string{"Order"}, func(t *testing.T, e *env) {
		for name, configure := range configs {
			db := used(t, e.open(t, configure))
			for what, write := range writes {
				id, saw := newID(), 0
				noError(t, db.Create(&Order{ID: id}).Error)
				err := write(withHook(db, func(_ *gorm.DB, of int64) error {
					saw++
					e.wantHeld(t, name+", "+what+", the hook", orders.Key(cmp.Or(of, id)))
					return nil
				}), id).Error
				if err != nil || saw == 0 {
					t.Errorf("%s, %s: %v, %d hooks", name, what, err, saw)
				}
				e.wantSoonFree(t, name+", "+what+": the lock outlives the statement", orders.Key(id), orders.Key(-id))
				if e.count(t, "Order", "id = ? OR n = 1 AND id = ?", -id, id)+1-e.count(t, "Order", "id = ?", id) == 0 {
					t.Errorf("%s, %s: nothing was written", name, what)
				}
			}
		}
	})
}

// Wrong is a model whose LockKeys names no key.
type Wrong struct {
	ID   int64
	Want string `gorm:"-"`
}

var errWrong = errors.New("LockKeys fails")

// wrongKeys are the keys that a Wrong may want, each of which is refused.
var wrongKeys = map[string][]txlock.Key{"nil": nil, "empty": {}, "zero": {{}}, "copy of NoLock": slices.Clone(lockgorm.NoLock)}

func (w Wrong) LockKeys(*gorm.DB) ([]txlock.Key, error) {
	if keys, ok := wrongKeys[w.Want]; ok {
		return keys, nil
	} else if w.Want == "error" {
		return []txlock.Key{newKey()}, errWrong
	}
	return lockgorm.NoLock, nil
}

func TestLockKeysWrong(t *testing.T) {
	eachGuarded(t, []string{"Note"}, func(t *testing.T, e *env) {
		e.names.tables["Wrong"] = e.names.tables["Note"]
		db := e.openPlugin(t)
		for _, want := range append(slices.Collect(maps.Keys(wrongKeys)), "error") {
			wantErr := map[bool]error{true: errWrong, false: txlock.ErrInvalidKey}[want == "error"]
			wantError(t, want, db.Create(&Wrong{ID: 1, Want: want}).Error, wantErr)
			wantError(t, want+" in a batch", db.Create([]Wrong{{ID: 1}, {ID: 2, Want: want}}).Error, wantErr)
			wantError(t, want+", update", db.Model(&Wrong{ID: 3, Want: want}).Update("id", 4).Error, wantErr)
			wantError(t, want+", delete", db.Delete(&Wrong{ID: 3, Want: want}).Error, wantErr)
		}
		noError(t, db.Create(&Wrong{ID: 3}).Error)
		e.wantRows(t, "rows, want the one of NoLock", 1, "Note", "1 = 1")
	})
}

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
				key, what := e.ensured(t), name+", "+what
				on := func(tx *gorm.DB, keys ...txlock.Key) error {
					return send(tx.Clauses(lockgorm.On(keys...)).Session(&gorm.Session{}))
				}
				noError(t, db.Transaction(func(tx *gorm.DB) error {
					wantError(t, what, on(tx, key), nil)
					e.wantHeld(t, what+": the key of On is free", key)
					wantError(t, what+", no key", on(tx), txlock.ErrInvalidKey)
					wantError(t, what+", the zero key", on(tx, txlock.Key{}), txlock.ErrInvalidKey)
					wantError(t, what+", NoLock", on(tx, lockgorm.NoLock...), nil)
					return errors.Join(send(tx), tx.Error)
				}))
				wantError(t, what+", outside", on(db, key), txlock.ErrNoTransaction)
				noError(t, db.Connection(func(tx *gorm.DB) error {
					wantError(t, what+", on a connection", on(tx, key), txlock.ErrNoTransaction)
					return nil
				}))
			}
		}
	})
}

// TestOnReplacesModelKeys proves that On replaces LockKeys, for one statement, and that a *gorm.DB
// with On which is used again names its keys again.
func TestOnReplacesModelKeys(t *testing.T) {
	each(t, []string{"Order"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		id, key := newID(), e.ensured(t)
		own := orders.Key(id)
		noError(t, txlock.Ensure(t.Context(), e.Admin(), own))
		within(t, db, func(tx *gorm.DB) {
			noError(t, tx.Clauses(lockgorm.On(key)).Create(&Order{ID: id}).Error)
			e.wantHeld(t, "with On another key was locked than the one it names", key)
			e.wantFree(t, "with On another key was locked than the one it names", own)
			noError(t, tx.Model(&Order{ID: id}).Update("n", 1).Error)
			e.wantHeld(t, "the next statement hasn't locked the model's key", own)
		})
		hooks := 0
		reused := withHook(db, always(func(*gorm.DB) {
			hooks++
			e.wantHeld(t, fmt.Sprint("hook ", hooks), key)
		})).Clauses(lockgorm.On(key)).Where("id = ?", id)
		session := reused.Session(&gorm.Session{})
		noError(t, session.Model(&Order{}).Update("n", 1).Error)
		noError(t, session.Model(&Order{}).Update("n", 2).Error)
		chain := reused.Model(&Order{})
		noError(t, chain.Update("n", 3).Error)
		noError(t, chain.Update("n", 4).Error)
		equal(t, "hooks", hooks, 4)
		several := []txlock.Key{e.ensured(t), e.ensured(t)}
		within(t, db, func(tx *gorm.DB) {
			noError(t, tx.Clauses(lockgorm.On(several...)).Delete(&Order{}, id).Error)
			e.wantHeld(t, "one of several keys is free", several...)
		})
	}))
}

// TestBypass proves what the package page and lockvet's check bypass say: a write by Exec, Raw, or
// Table without a model is sent without a lock, and On locks the keys that it names.
func TestBypass(t *testing.T) {
	eachGuarded(t, []string{"Tally"}, func(t *testing.T, e *env) {
		db, tallies, table := e.openPlugin(t), txlock.NewFamily[int64]("tally"), e.names.tables["Tally"]
		update := "UPDATE " + table + " SET n = 2 WHERE id = ?"
		for what, write := range map[string]func(db *gorm.DB, id int64) *gorm.DB{
			"Exec":            func(db *gorm.DB, id int64) *gorm.DB { return db.Exec(update, id) },
			"Exec of a model": func(db *gorm.DB, id int64) *gorm.DB { return db.Model(&Tally{ID: id}).Exec(update, id) },
			"Raw": func(db *gorm.DB, id int64) *gorm.DB {
				return &gorm.DB{Error: drained(db.Raw("DELETE FROM "+table+" WHERE id = ?", id).Rows())}
			},
			"Update": func(db *gorm.DB, id int64) *gorm.DB { return db.Table(table).Where("id = ?", id).Update("n", 2) },
			"UpdateColumn": func(db *gorm.DB, id int64) *gorm.DB {
				return db.Table(table+" o").Where("o.id = ?", id).UpdateColumn("n", 2)
			},
			"Updates": func(db *gorm.DB, id int64) *gorm.DB {
				return db.Table(table).Where("id = ?", id).Updates(map[string]any{"n": 2})
			},
			"another model": func(db *gorm.DB, id int64) *gorm.DB { return db.Table(table).Model(&Note{ID: id}).Update("n", 2) },
			"Create":        func(db *gorm.DB, id int64) *gorm.DB { return db.Table(table).Create(map[string]any{"id": -id}) },
			"Delete":        func(db *gorm.DB, id int64) *gorm.DB { return db.Table(table).Where("id = ?", id).Delete(&Note{}) },
		} {
			id := newID()
			key := tallies.Key(id)
			noError(t, db.Create(&Tally{ID: id}).Error)
			within(t, db, func(tx *gorm.DB) {
				if err := write(tx, id).Error; err != nil || e.held(t, key) {
					t.Errorf("%s: %v, or it has locked %v: lockvet is wrong", what, err, key)
				}
			})
			noError(t, db.Exec("DELETE FROM "+table).Error)
			e.lockedBy(t, db, what+" with On", key, func(tx *gorm.DB) error { return write(tx.Clauses(lockgorm.On(key)), id).Error })
		}
		id := newID()
		for what, write := range map[string]func(tx *gorm.DB) error{
			"Create":          func(tx *gorm.DB) error { return tx.Table(table).Create(&Tally{ID: id}).Error },
			"Update":          func(tx *gorm.DB) error { return tx.Table(table).Model(&Tally{ID: id}).Update("n", 2).Error },
			"Delete":          func(tx *gorm.DB) error { return tx.Table(table).Where("id = ?", id).Delete(&Tally{}).Error },
			"CreateInBatches": func(tx *gorm.DB) error { return tx.Table(table).CreateInBatches([]*Tally{{ID: id}}, 1).Error },
		} {
			noError(t, db.Exec("DELETE FROM "+table).Error)
			e.lockedBy(t, db, what+" with the model", tallies.Key(id), write)
		}
	})
}

// TestChildrenAreLocked writes children with their parent.
func TestChildrenAreLocked(t *testing.T) {
	writes := map[string]func(tx *gorm.DB, o *Order) error{
		"Create":  func(tx *gorm.DB, o *Order) error { return tx.Create(o).Error },
		"Save":    func(tx *gorm.DB, o *Order) error { return tx.Save(o).Error },
		"Updates": func(tx *gorm.DB, o *Order) error { return tx.Updates(o).Error },
		"FullSaveAssociations": func(tx *gorm.DB, o *Order) error {
			return tx.Session(&gorm.Session{FullSaveAssociations: true}).Updates(o).Error
		},
		"Append": func(tx *gorm.DB, o *Order) error {
			return tx.Model(&Order{ID: o.ID}).Association("Items").Append(&o.Items[0])
		},
	}
	eachSetting(t, []string{"Order", "Item"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for what, write := range writes {
			order, item := newID(), newID()
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				if what != "Create" && what != "Save" {
					noError(t, tx.Create(&Order{ID: order}).Error)
				}
				saw := false
				err := write(withHook(tx, func(_ *gorm.DB, id int64) error {
					if id == item {
						saw = true
						e.wantHeld(t, what+": the child's hook runs without the locks", orders.Key(order), items.Key(item))
					}
					return nil
				}), &Order{ID: order, N: 1, Items: []Item{{ID: item}}})
				if err != nil || !saw {
					t.Errorf("%s: %v, the child's hook ran: %v", what, err, saw)
				}
				return err
			}))
			e.wantRows(t, what+": the child was not written", 1, "Item", "id = ? AND order_id = ?", item, order)
			e.wantSoonFree(t, what+": a lock outlives the transaction", orders.Key(order), items.Key(item))
		}
	}))
}

// TestChildrenKeepTheirKeys proves that On names the keys of one statement only: the INSERT of the
// children is another one, which has a transaction for its keys where GORM begins none.
func TestChildrenKeepTheirKeys(t *testing.T) {
	eachSetting(t, []string{"Order", "Item"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for _, on := range [][]txlock.Key{{newKey()}, lockgorm.NoLock} {
			item := newID()
			hooks := withHook(db, func(_ *gorm.DB, id int64) error {
				if id == item {
					e.wantHeld(t, fmt.Sprintf("the child, with On(%v) of the parent", on), items.Key(item))
				}
				return nil
			})
			noError(t, hooks.Clauses(lockgorm.On(on...)).Create(&Order{ID: newID(), Items: []Item{{ID: item}}}).Error)
			e.wantRows(t, "children", 1, "Item", "id = ?", item)
		}
	}))
}

// TestReplaceAndClear changes children that only a where clause names: they are locked.
func TestReplaceAndClear(t *testing.T) {
	changes := map[string]func(of *gorm.Association, order Order) error{
		"Replace":  func(of *gorm.Association, order Order) error { return of.Replace(&order.Items[0]) },
		"Clear":    func(of *gorm.Association, _ Order) error { return of.Clear() },
		"Delete":   func(of *gorm.Association, order Order) error { return of.Delete(&order.Items[1]) },
		"Unscoped": func(of *gorm.Association, _ Order) error { return of.Unscoped().Clear() },
		"Select": func(of *gorm.Association, order Order) error {
			return of.DB.Select("Items").Delete(&Order{ID: order.ID}).Error
		},
	}
	eachSetting(t, []string{"Order", "Item"}, func(t *testing.T, e *env) {
		db, plain := e.openPlugin(t), e.open(t)
		itemsOf := func(tx *gorm.DB, order Order) *gorm.Association {
			return tx.Model(&Order{ID: order.ID}).Association("Items")
		}
		for what, change := range changes {
			order := Order{ID: newID(), Items: []Item{{ID: newID()}, {ID: newID()}}}
			noError(t, plain.Create(&order).Error)
			noError(t, change(itemsOf(plain, order), order))
			left := e.count(t, "Item", "order_id = ?", order.ID)
			noError(t, plain.Delete(&order.Items).Error)
			noError(t, plain.Delete(&Order{ID: order.ID}).Error)
			noError(t, db.Create(&order).Error)
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				if err := change(itemsOf(tx, order), order); err != nil {
					return err
				}
				if !e.held(t, items.Key(order.Items[1].ID)) || !e.held(t, items.Key(order.Items[0].ID)) && what != "Delete" {
					t.Errorf("%s: a child that was changed is free", what)
				}
				return nil
			}))
			if n := e.count(t, "Item", "order_id = ?", order.ID); n != left || left == 2 {
				t.Errorf("%s: %d children are left, want %d", what, n, left)
			}
		}
	})
}
