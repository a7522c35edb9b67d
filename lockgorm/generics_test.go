package lockgorm_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestGenerics uses Lock, RLockAll, On and tagged models with gorm.G.
func TestGenerics(t *testing.T) {
	each(t, []string{"Note", "Parcel"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		ctx, key, another := t.Context(), e.ensured(t), e.ensured(t)
		noError(t, gorm.G[Note](db).Create(ctx, &Note{ID: 1}))
		noError(t, lockgorm.Transaction(db, []txlock.Key{key}, func(tx *gorm.DB) error {
			noError(t, second(lockgorm.Lock(tx, another)))
			note, err := gorm.G[Note](tx).Where("id = 1").First(ctx)
			noError(t, err)
			_, err = gorm.G[Note](tx).Where("id = 1").Update(ctx, "n", note.N+1)
			return err
		}))
		noError(t, db.Transaction(func(tx *gorm.DB) error { // no model method, and read for a write
			note, err := gorm.G[Note](tx, lockgorm.On(key, txlock.Shared(another))).Where("id = 1").First(ctx)
			noError(t, err)
			if note.N != 1 || e.free(t, key) || e.free(t, another) {
				t.Errorf("On: %+v", note)
			}
			_, err = gorm.G[Note](tx, lockgorm.On(key)).Where("id = 1").Update(ctx, "n", note.N+1)
			return err
		}))
		id := newID()
		within(t, db, func(tx *gorm.DB) {
			noError(t, second(scopeOf(t, tx).LockAll(ctx, txlock.Shared(key), txlock.Shared(another))))
			noError(t, gorm.G[Parcel](tx).Create(ctx, &Parcel{ID: id}))
			if e.wantHeld(t, "Create of a tagged model", parcels.Key(id)); e.free(t, key) || e.free(t, another) {
				t.Error("LockAll has taken no shared lock")
			}
		})
		wantError(t, "an update by chance", second(gorm.G[Parcel](db).Where("n = RAND()").Update(ctx, "n", 2)), txlock.ErrInvalidKey)
		wantError(t, "a delete by chance", second(gorm.G[Parcel](db).Where("n < RAND()").Delete(ctx)), txlock.ErrInvalidKey)
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			rows, err := gorm.G[Parcel](tx, lockgorm.Loaded(&Parcel{ID: id})).Update(ctx, "n", 3)
			if rows != 1 || !e.held(t, parcels.Key(id)) {
				t.Errorf("Update of a loaded model: %d rows, %v", rows, err)
			}
			return err
		}))
		rows, err := gorm.G[Parcel](db, lockgorm.Loaded(&Parcel{ID: id})).Delete(ctx)
		if rows != 1 || e.count(t, "Parcel", "1 = 1") != 0 {
			t.Errorf("Delete of a loaded model: %d rows, %v", rows, err)
		}
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
