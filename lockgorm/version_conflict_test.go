package lockgorm_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestConflictThatTheServerFinds proves that a row which somebody else has changed since the
// snapshot is a conflict in every write, also where the server refuses it by itself, and that
// another run may end otherwise.
func TestConflictThatTheServerFinds(t *testing.T) {
	each(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openDSN(t, e.DSN(func(cfg *mysql.Config) {
			if e.HasSnapshotIsolation(t) {
				cfg.Params = map[string]string{"innodb_snapshot_isolation": "ON"}
			}
		}))
		noError(t, db.Use(lockgorm.New()))
		for name, write := range writes {
			d := newDoc(t, db)
			tx := db.Begin(&sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			loaded := load(t, tx, d.ID)
			touch(t, db, d.ID)
			err := write(tx, loaded).Error
			wantError(t, name, err, txlock.ErrConflict)
			if !txlock.Retryable(err) {
				t.Errorf("%s: %v is not retryable", name, err)
			}
			noError(t, tx.Rollback().Error)
		}
	})
}

// TestOwnConflictIsNotRunAgain proves that a conflict with something that the transaction
// itself has done, and perhaps undone, is not run again, since every run would end in it;
// a conflict with another's commit is.
func TestOwnConflictIsNotRunAgain(t *testing.T) {
	write := func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Update("n", gorm.Expr("n + 1")).Error }
	undo := func(tx *gorm.DB, fn func(tx *gorm.DB) error) error {
		return skipInner(tx.Transaction(func(tx *gorm.DB) error { return errors.Join(fn(tx), errInner) }))
	}
	anyOf := func(tx *gorm.DB, id int64) error {
		return tx.Clauses(lockgorm.AnyVersion).Model(&Doc{}).Where("id = ?", id).Update("n", 7).Error
	}
	ways := map[string]struct {
		runs int
		do   func(t *testing.T, tx *gorm.DB, d *Doc, others func()) error
	}{
		"undone by a savepoint": {1, func(_ *testing.T, tx *gorm.DB, d *Doc, _ func()) error {
			return errors.Join(undo(tx, func(tx *gorm.DB) error { return write(tx, d) }), write(tx, d))
		}},
		"by another copy": {1, func(_ *testing.T, tx *gorm.DB, d *Doc, _ func()) error {
			stale := *d
			return errors.Join(write(tx, d), write(tx, &stale))
		}},
		"by another copy, twice": {1, func(_ *testing.T, tx *gorm.DB, d *Doc, _ func()) error {
			stale := *d
			return errors.Join(write(tx, d), write(tx, d), write(tx, &stale))
		}},
		"in a batch": {1, func(t *testing.T, tx *gorm.DB, d *Doc, _ func()) error {
			stale := *d
			return errors.Join(write(tx, d), tx.Model([]*Doc{&stale, load(t, tx, d.ID)}).Update("n", 1).Error)
		}},
		"loaded of what was undone": {1, func(t *testing.T, tx *gorm.DB, d *Doc, _ func()) error {
			var seen *Doc
			err := undo(tx, func(tx *gorm.DB) error {
				err := write(tx, d)
				seen = load(t, tx, d.ID)
				return err
			})
			return errors.Join(err, write(tx, seen))
		}},
		"by any version": {1, func(_ *testing.T, tx *gorm.DB, d *Doc, _ func()) error {
			return errors.Join(anyOf(tx, d.ID), write(tx, d))
		}},
		"loaded of any version that was undone": {1, func(t *testing.T, tx *gorm.DB, d *Doc, _ func()) error {
			var seen *Doc
			err := undo(tx, func(tx *gorm.DB) error {
				err := anyOf(tx, d.ID)
				seen = load(t, tx, d.ID)
				return err
			})
			return errors.Join(err, write(tx, seen))
		}},
		"deleted": {1, func(_ *testing.T, tx *gorm.DB, d *Doc, _ func()) error {
			stale := *d
			return errors.Join(write(tx, d), tx.Delete(&stale).Error)
		}},
		"of another's, beside an own write": {2, func(t *testing.T, tx *gorm.DB, d *Doc, others func()) error {
			other := newDoc(t, tx)
			others()
			return errors.Join(write(tx, other), undo(tx, func(tx *gorm.DB) error { return write(tx, other) }), write(tx, d))
		}},
		"of another's, in a savepoint": {2, func(_ *testing.T, tx *gorm.DB, d *Doc, others func()) error {
			others()
			return tx.Transaction(func(tx *gorm.DB) error { return write(tx, d) })
		}},
		"of another's, after a savepoint": {2, func(t *testing.T, tx *gorm.DB, d *Doc, others func()) error {
			var seen *Doc
			err := undo(tx, func(tx *gorm.DB) error {
				seen = load(t, tx, d.ID)
				return nil
			})
			others()
			return errors.Join(err, write(tx, seen))
		}},
	}
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		for name, configure := range configs {
			db := used(t, e.open(t, configure))
			for way, want := range ways {
				d, runs := newDoc(t, db), 0
				err := lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
					runs++
					return want.do(t, tx, load(t, tx, d.ID), func() {
						if runs == 1 {
							touch(t, db, d.ID)
						}
					})
				})
				if runs != want.runs || (want.runs == 1) != errors.Is(err, txlock.ErrConflict) || txlock.Retryable(err) {
					t.Errorf("%s, %s: %d runs, want %d: %v", name, way, runs, want.runs, err)
				}
			}
		}
	})
}

// TestVersionOfTheSameRowTwice proves that a batch is counted by rows, not by models.
func TestVersionOfTheSameRowTwice(t *testing.T) {
	eachGuarded(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		for name, batch := range map[string]func(d *Doc) any{
			"values":   func(d *Doc) any { return &[]Doc{*d, *d} },
			"pointers": func(d *Doc) any { return []*Doc{d, d, d} },
		} {
			d, other := newDoc(t, db), newDoc(t, db)
			docs := batch(d)
			noError(t, db.Model(docs).Update("n", 5).Error)
			if values, ok := docs.(*[]Doc); ok {
				if (*values)[0].Version != (*values)[1].Version {
					t.Errorf("%s: versions %d and %d", name, (*values)[0].Version, (*values)[1].Version)
				}
				*d = (*values)[1]
			}
			e.is(t, name, d, d.Version, 5)
			result := db.Model(docs).Where("n <> 5").Update("n", 6)
			if result.Error != nil || result.RowsAffected != 0 {
				t.Errorf("%s: a row that is excluded: %v", name, result.Error)
			}
			stale := *d
			noError(t, db.Model(docs).Where("n = 5").Update("name", "x").Error)
			d = load(t, db, d.ID)
			for what, write := range map[string]func(docs any) error{
				"update": func(docs any) error { return db.Model(docs).Update("n", 9).Error },
				"delete": func(docs any) error { return db.Delete(docs).Error },
			} {
				wantError(t, name+", one copy is old, "+what, write([]*Doc{d, &stale, other}), txlock.ErrConflict)
				wantError(t, name+", both are old, "+what, write([]*Doc{&stale, &stale, other}), txlock.ErrConflict)
				err := write([]*Doc{d, d, {ID: -newID(), Version: 7}})
				wantError(t, name+", another is gone, "+what, err, gorm.ErrRecordNotFound)
				if errors.Is(err, txlock.ErrConflict) || !strings.Contains(err.Error(), "1 of 2") {
					t.Errorf("%s, another is gone, %s: %v", name, what, err)
				}
				e.is(t, name+", "+what, d, d.Version, 5)
			}
			noError(t, db.Delete(batch(d)).Error)
			if e.count(t, "Doc", "id = ?", d.ID) != 0 || e.count(t, "Doc", "id = ?", other.ID) != 1 {
				t.Errorf("%s: not deleted", name)
			}
		}
		s := Sheet{ID: newID()}
		noError(t, db.Create(&s).Error)
		noError(t, db.Delete(&[]Sheet{s, s}).Error)
		if e.count(t, "Sheet", "id = ? AND deleted_at IS NOT NULL", s.ID) != 1 {
			t.Error("a soft delete of the same row twice has left it")
		}
	})
}

// Crate has children of two kinds, both of which are locked. Drawer has children, too.
type Crate struct {
	ID      int64
	Drawers []Drawer
	Bolts   []Bolt
	Papers  []Paper
	OwnerID *int64
	Owner   *Note
}

type Drawer struct {
	ID      int64
	CrateID *int64
	Version lockgorm.Version
	Bolts   []Bolt
}

type Bolt struct {
	ID       int64
	CrateID  *int64
	DrawerID *int64
	Version  lockgorm.Version
}

type Paper struct {
	ID      int64
	CrateID *int64
}

func (p *Paper) BeforeCreate(tx *gorm.DB) error { return hooked(tx, p.ID) }

func init() {
	for model, layout := range map[string]string{"Crate": "owner_id BIGINT", "Drawer": "crate_id BIGINT, version BIGINT UNSIGNED NOT NULL DEFAULT 1", "Bolt": "crate_id BIGINT, drawer_id BIGINT, version BIGINT UNSIGNED NOT NULL DEFAULT 1", "Paper": "crate_id BIGINT"} {
		columns[model] = "id BIGINT AUTO_INCREMENT PRIMARY KEY, " + layout
	}
}

// TestReplaceNamesItsAssociation proves that the error of a Replace that is refused names the
// association, and that other associations are allowed.
func TestReplaceNamesItsAssociation(t *testing.T) {
	eachSetting(t, []string{"Crate", "Drawer", "Bolt", "Paper", "Note"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		crate := Crate{Drawers: []Drawer{{}}, Bolts: []Bolt{{}}, Papers: []Paper{{}}, Owner: &Note{}}
		noError(t, e.inTransaction(db, func(tx *gorm.DB) error { return tx.Create(&crate).Error }))
		of := func(db *gorm.DB, name string) *gorm.Association {
			return db.Model(&Crate{ID: crate.ID}).Association(name)
		}
		full := func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{FullSaveAssociations: true}) }
		for what, change := range map[string]func(db *gorm.DB) error{
			"Replace Drawers": func(db *gorm.DB) error { return of(db, "Drawers").Replace(&Drawer{}) },
			"Replace Bolts":   func(db *gorm.DB) error { return of(db, "Bolts").Replace(&Bolt{}) },
			"in full":         func(db *gorm.DB) error { return of(full(db), "Drawers").Replace(&Drawer{}) },
		} {
			sent := watch(db)
			said := fmt.Sprint(change(sent.db))
			own, others := "Drawer", "Bolt"
			if strings.HasSuffix(what, "Bolts") {
				own, others = others, own
			}
			want := fmt.Sprintf("Association(%q)", own+"s")
			if what == "in full" {
				want = `an association of Crate`
			}
			if !strings.Contains(said, lockgorm.ErrVersion.Error()) || !strings.Contains(said, want) || strings.Contains(said, others) {
				t.Errorf("%s: %s", what, said)
			}
			if sent.n != 0 || e.count(t, "Drawer", "crate_id = ?", crate.ID) != 1 || e.count(t, "Drawer", "1 = 1") != 1 || e.count(t, "Bolt", "1 = 1") != 1 {
				t.Errorf("%s: %d statements were sent, or it was written", what, sent.n)
			}
		}
		for what, change := range map[string]func(db *gorm.DB) error{
			"Replace Papers": func(db *gorm.DB) error { return of(db, "Papers").Replace(&Paper{}) },
			"Clear Papers":   func(db *gorm.DB) error { return of(db, "Papers").Clear() },
			"Replace Owner":  func(db *gorm.DB) error { return of(db, "Owner").Replace(&Note{}) },
			"Delete Owner":   func(db *gorm.DB) error { return of(db, "Owner").Delete(&Note{ID: *crate.OwnerID}) },
			"Clear Owner":    func(db *gorm.DB) error { return of(db, "Owner").Clear() },
			"Replace Papers, whose hook updates another": func(db *gorm.DB) error {
				return of(withHook(db, func(tx *gorm.DB, _ int64) error {
					return tx.Session(&gorm.Session{NewDB: true}).Updates(&Drawer{ID: crate.Drawers[0].ID, CrateID: &crate.ID, Version: crate.Drawers[0].Version}).Error
				}), "Papers").Replace(&Paper{})
			},
			"Append Bolts": func(db *gorm.DB) error { return of(db, "Bolts").Append(&Bolt{}) },
		} {
			if err := e.inTransaction(db, change); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if e.count(t, "Drawer", "crate_id = ?", crate.ID) != 1 || e.count(t, "Paper", "crate_id = ?", crate.ID) > 1 {
			t.Error("something else was written")
		}
	})
}
