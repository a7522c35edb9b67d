package lockgorm_test

import (
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
			"Update":        func(db *gorm.DB, id int64) *gorm.DB { return db.Table(table).Where("id = ?", id).Update("n", 2) },
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
	})
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

// TestOptionsOfOneWrite proves that CommitWith and AnyVersion are those of a write, and not of what its
// hooks send by handles that GORM makes of it; and that its handle keeps them.
func TestOptionsOfOneWrite(t *testing.T) {
	clones := map[string]func(tx *gorm.DB) *gorm.DB{
		"WithContext": func(tx *gorm.DB) *gorm.DB { return tx.WithContext(tx.Statement.Context) },
		"Session":     func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{}) },
	}
	eachGuarded(t, append([]string{"Order", "Item", "Note"}, versionedModels...), withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for name, clone := range clones {
			order, note := Order{ID: newID(), Name: "a"}, Note{ID: newID()}
			noError(t, db.Create(&order).Error)
			noError(t, db.Create(&note).Error)
			noError(t, lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
				tx = withHook(tx, func(tx *gorm.DB, _ int64) error {
					return clone(tx).Exec("UPDATE "+e.names.TableName("Note")+" SET n = n + 1 WHERE id = ?", note.ID).Error
				})
				return tx.Clauses(lockgorm.CommitWith(1)).Omit(clause.Associations).Model(&order).Update("n", 5).Error
			}))
			e.wantRows(t, name+": the hook", 1, "Note", "n = 1 AND id = ?", note.ID)
			e.wantRows(t, name+": the write", 1, "Order", "n = 5 AND id = ?", order.ID)

			stale, d := newDoc(t, db), newDoc(t, db)
			noError(t, db.Model(load(t, db, stale.ID)).Update("n", 100).Error)
			any := withHook(db, func(tx *gorm.DB, id int64) error {
				if id != d.ID {
					return nil
				}
				return clone(tx).Model(stale).Update("n", 1).Error
			}).Model(&Doc{ID: d.ID}).Clauses(lockgorm.AnyVersion)
			wantError(t, name+": a write of a hook", any.Update("n", 7).Error, txlock.ErrConflict)
			d.ID = 0
			any.Error = nil
			noError(t, any.Update("n", 7).Error) // by the same handle
		}
	}))
}

// TestNewChildrenAgain proves that a create that has failed behind the creates of its children, which
// are undone with it, can be repeated.
func TestNewChildrenAgain(t *testing.T) {
	eachSetting(t, append([]string{"Shelf"}, versionedModels...), withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		fails := errInner
		create := func(d *Doc) error {
			return withHook(db, func(*gorm.DB, int64) error { return fails }).Create(d).Error
		}
		d := &Doc{Pages: []Page{{N: 1}, {N: 2}}, Author: &Author{Name: "a"}}
		wantError(t, "Create", create(d), errInner)
		equal(t, "versions", [...]lockgorm.Version{d.Version, d.Pages[0].Lock, d.Pages[1].Lock, d.Author.Version}, [4]lockgorm.Version{})
		d.ID, d.Pages[0].ID, d.Pages[1].ID, d.Author.ID, fails = 0, 0, 0, 0, nil
		noError(t, create(d))
		e.wantRows(t, "pages", 2, "Page", "doc_id = ?", d.ID)
	}))
}

// TestGenericsVersion compares the Version of a loaded model with gorm.G.
func TestGenericsVersion(t *testing.T) {
	eachGuarded(t, []string{"Ledger"}, func(t *testing.T, e *env) {
		db, ctx := e.openPlugin(t), t.Context()
		l := &Ledger{}
		noError(t, gorm.G[Ledger](db).Create(ctx, l))
		old, first := *l, l.Version
		if first == 0 {
			t.Error("Create has given no version")
		}
		_, err := gorm.G[Ledger](db).Where("id = ?", l.ID).Update(ctx, "n", 1)
		wantError(t, "an update that has nothing to compare", err, lockgorm.ErrVersion)
		noError(t, second(gorm.G[Ledger](db, lockgorm.Loaded(l)).Update(ctx, "n", 2)))
		if l.Version == first || l.N != 2 {
			t.Errorf("after Update the model is %+v", l)
		}
		noError(t, second(gorm.G[Ledger](db, lockgorm.Loaded(l)).Updates(ctx, Ledger{N: 3})))
		wantError(t, "Update of an old version", second(gorm.G[Ledger](db, lockgorm.Loaded(&old)).Update(ctx, "n", 4)), txlock.ErrConflict)
		wantError(t, "Updates of an old version", second(gorm.G[Ledger](db, lockgorm.Loaded(&old)).Updates(ctx, Ledger{N: 4})), txlock.ErrConflict)
		wantError(t, "Delete of an old version", second(gorm.G[Ledger](db, lockgorm.Loaded(&old)).Delete(ctx)), txlock.ErrConflict)
		quiet := db.Session(&gorm.Session{SkipHooks: true}) // for a model with hooks GORM needs a pointer, which Loaded gives it
		rows, err := gorm.G[Ledger](quiet, lockgorm.AnyVersion, lockgorm.On(ledgers.Key(l.ID))).Where("id = ? AND version = ?", l.ID, first).Update(ctx, "n", 5)
		if rows != 0 || err != nil {
			t.Errorf("AnyVersion with a condition of its own: %d rows, %v", rows, err)
		}
		e.wantRows(t, "the row of the model", 1, "Ledger", "n = 3 AND version = ?", l.Version)
		noError(t, second(gorm.G[Ledger](db, lockgorm.Loaded(l)).Delete(ctx)))
	})
}

// TestLoadedRefused demands errors for what Loaded can't be.
func TestLoadedRefused(t *testing.T) {
	eachGuarded(t, []string{"Parcel", "Note", "Order", "Item"}, func(t *testing.T, e *env) {
		db, ctx := e.openPlugin(t), t.Context()
		a, b := &Parcel{ID: newID()}, &Parcel{ID: newID()}
		noError(t, db.Create([]*Parcel{a, b}).Error)
		for name, model := range map[string]any{"a value": *a, "nil": nil, "a nil pointer": (*Parcel)(nil), "another type": &Note{ID: 1}, "no key": &Parcel{}, "a slice": &[]Parcel{*a}} {
			wantError(t, name, second(gorm.G[Parcel](db, lockgorm.Loaded(model)).Update(ctx, "n", 7)), txlock.ErrInvalidKey)
		}
		on := db.Clauses(lockgorm.Loaded(a)).Session(&gorm.Session{})
		wantError(t, "Model of another", on.Model(b).Update("n", 7).Error, txlock.ErrInvalidKey)
		wantError(t, "Updates of another", on.Updates(b).Error, txlock.ErrInvalidKey)
		wantError(t, "Delete of another", on.Delete(b).Error, txlock.ErrInvalidKey)
		wantError(t, "Create", on.Create(&Parcel{ID: newID()}).Error, txlock.ErrInvalidKey)
		wantError(t, "Save of a new one", on.Save(&Parcel{}).Error, txlock.ErrInvalidKey)
		wantError(t, "Exec", on.Exec("UPDATE "+e.names.tables["Parcel"]+" SET n = 7").Error, txlock.ErrInvalidKey)
		wantError(t, "Exec of gorm.G", gorm.G[Parcel](db, lockgorm.Loaded(a)).Exec(ctx, "UPDATE "+e.names.tables["Parcel"]+" SET n = 7"), txlock.ErrInvalidKey)
		wantError(t, "another table", on.Table("elsewhere").Updates(map[string]any{"n": 7}).Error, txlock.ErrInvalidKey)
		e.wantRows(t, "something was written", 2, "Parcel", "n = 0")
		e.wantRows(t, "something was written", 2, "Parcel", "1 = 1")
		plain := e.open(t)
		wantFailure(t, "Loaded without the plugin", plain.Clauses(lockgorm.Loaded(a)).Model(&Parcel{}).Update("n", 7).Error)
		e.wantRows(t, "Loaded without the plugin", 0, "Parcel", "n = 7")
		// With associations, which have models of their own.
		o := &Order{ID: newID()}
		noError(t, db.Create(o).Error)
		noError(t, db.Clauses(lockgorm.Loaded(o)).Updates(&Order{N: 5, Items: []Item{{Name: "x"}}}).Error)
		e.wantRows(t, "the order was not written", 1, "Order", "id = ? AND n = 5", o.ID)
	})
}
