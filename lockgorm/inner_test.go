package lockgorm_test

import (
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

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
