package lockgorm_test

import (
	"errors"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// undone are the ways in which the write of a model is rolled back without the model
// noticing.
var undone = map[string]func(db *gorm.DB, write func(tx *gorm.DB) error) error{
	"Transaction": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return db.Transaction(func(tx *gorm.DB) error { return errors.Join(write(tx), errInner) })
	},
	"lockgorm.Transaction": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return lockgorm.Transaction(db, nil, func(tx *gorm.DB) error { return errors.Join(write(tx), errInner) })
	},
	"a panic": func(db *gorm.DB, write func(tx *gorm.DB) error) (err error) {
		defer func() { err = errors.Join(err, recover().(error)) }()
		return db.Transaction(func(tx *gorm.DB) error {
			err = write(tx)
			panic(errInner)
		})
	},
	"by hand": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		tx := db.Begin()
		return errors.Join(write(tx), tx.Rollback().Error, errInner)
	},
	"a nested transaction": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		var inner error
		err := db.Transaction(func(tx *gorm.DB) error {
			inner = tx.Transaction(func(tx *gorm.DB) error { return errors.Join(write(tx), errInner) })
			return nil
		})
		return errors.Join(err, inner)
	},
	"a savepoint": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return errors.Join(errInner, db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(tx.SavePoint("s").Error, write(tx), tx.RollbackTo("s").Error)
		}))
	},
	"a savepoint as text": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return errors.Join(errInner, db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(tx.Exec("SAVEPOINT s").Error, write(tx), tx.Exec("ROLLBACK TO SAVEPOINT s").Error)
		}))
	},
	"DisableNestedTransaction": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return db.Session(&gorm.Session{DisableNestedTransaction: true}).Transaction(func(tx *gorm.DB) error {
			return tx.Transaction(func(tx *gorm.DB) error { return errors.Join(write(tx), errInner) })
		})
	},
}

// TestVersionOfUndoneCreates proves the same for models that were created, deleted or
// changed in batches, softly or with their parent, and for uncommitted versions that were
// read.
func TestVersionOfUndoneCreates(t *testing.T) {
	eachGuarded(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		for _, end := range []string{"Transaction", "a savepoint"} { // TestVersionAfterRollback has all
			undo := func(write func(tx *gorm.DB) error) {
				t.Helper()
				wantError(t, end, undone[end](db, write), errInner)
			}
			// The same primary key is given to another's row.
			id := -newID() // the server makes no such number
			mine, batch := &Doc{ID: id}, []*Doc{{ID: -newID()}, {ID: -newID()}}
			undo(func(tx *gorm.DB) error { return errors.Join(tx.Create(mine).Error, tx.Create(batch).Error) })
			for _, d := range append(batch, mine) {
				noError(t, db.Create(&Doc{ID: d.ID, Name: "another's"}).Error)
				wantError(t, end+", a create", db.Model(d).Update("name", "mine").Error, txlock.ErrConflict)
			}
			if n := e.count(t, "Doc", "name = ? AND id IN (?, ?, ?)", "another's", id, batch[0].ID, batch[1].ID); n != 3 {
				t.Errorf("%s, creates: %d of 3 rows are as their owner has made them", end, n)
			}
			// A batch.
			docs, others := []Doc{{}, {}}, []Doc{}
			noError(t, db.Create(&docs).Error)
			noError(t, db.Find(&others, []int64{docs[0].ID, docs[1].ID}).Error)
			undo(func(tx *gorm.DB) error { return tx.Model(&docs).Update("n", 1).Error })
			noError(t, db.Model(&others).Update("n", 2).Error)
			wantError(t, end+", a batch", db.Model(&docs).Update("n", 3).Error, txlock.ErrConflict)
			wantError(t, end+", a delete", db.Delete(&docs).Error, txlock.ErrConflict)
			if n := e.count(t, "Doc", "n = 2 AND id IN (?, ?)", docs[0].ID, docs[1].ID); n != 2 {
				t.Errorf("%s, a batch: %d of 2 rows are as the other has left them", end, n)
			}
			// A soft delete.
			sheet := &Sheet{ID: newID()}
			noError(t, db.Create(sheet).Error)
			kept := *sheet
			undo(func(tx *gorm.DB) error { return tx.Delete(sheet).Error })
			noError(t, db.Model(&kept).Update("n", 1).Error)
			wantError(t, end+", a soft delete", db.Unscoped().Model(sheet).Update("n", 2).Error, txlock.ErrConflict)
			// Children.
			parent := &Doc{Pages: []Page{{}}}
			undo(func(tx *gorm.DB) error { return tx.Create(parent).Error })
			noError(t, db.Create(&Page{ID: parent.Pages[0].ID, N: 5}).Error)
			wantError(t, end+", a child", db.Model(&parent.Pages[0]).Update("n", 6).Error, txlock.ErrConflict)
			// A version read after a write by a where clause, before that was rolled
			// back.
			written, seen := newDoc(t, db), new(Doc)
			undo(func(tx *gorm.DB) error {
				return errors.Join(tx.Clauses(lockgorm.AnyVersion).Model(&Doc{}).Where("id = ?", written.ID).Update("n", 1).Error, tx.First(seen, written.ID).Error)
			})
			noError(t, db.Model(written).Update("n", 2).Error)
			wantError(t, end+", an uncommitted read", db.Model(seen).Update("n", 3).Error, txlock.ErrConflict)
			e.is(t, end, written, written.Version, 2)
		}
	})
}

// TestVersionAfterDeadlock has lockgorm.Transaction run again after a deadlock, with a
// model that its first run has changed. Nobody's commit is lost, and the conflict, in
// which every further run would end, is returned.
func TestVersionAfterDeadlock(t *testing.T) {
	eachSetting(t, append([]string{"Note"}, versionedModels...), func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		for _, inside := range []bool{false, true} {
			d := newDoc(t, db)
			mine, runs := load(t, db, d.ID), 0
			err := lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
				if runs++; inside {
					mine = load(t, tx, d.ID)
				}
				if err := tx.Model(mine).Update("n", 1).Error; err != nil || runs > 1 {
					return err
				}
				err := e.deadlock(t, tx)
				touch(t, db, d.ID)
				return err
			})
			if inside != (err == nil) || !inside && !errors.Is(err, txlock.ErrConflict) || runs != 2 {
				t.Errorf("loaded inside=%t: %d runs: %v", inside, runs, err)
			}
			if e.count(t, "Doc", "id = ? AND name = 'touched'", d.ID) != 1 {
				t.Errorf("inside=%t: the other's change is lost", inside)
			}
		}
	})
}

// TestConflictIsRunAgain proves that a transaction is run again only after a conflict
// that another run may not have.
func TestConflictIsRunAgain(t *testing.T) {
	loads := map[string]struct {
		runs int // how many runs end in a conflict
		load func(tx *gorm.DB, d *Doc) error
	}{
		"before":          {1, func(*gorm.DB, *Doc) error { return nil }},
		"First":           {2, func(tx *gorm.DB, d *Doc) error { id := d.ID; *d = Doc{}; return tx.First(d, id).Error }},
		"Find by pointer": {2, func(tx *gorm.DB, d *Doc) error { return tx.Find(d).Error }},
		"Find of a slice": {2, func(tx *gorm.DB, d *Doc) error {
			var all []*Doc
			err := tx.Where("id = ?", d.ID).Find(&all).Error
			*d = *all[0]
			return err
		}},
		"Raw": {2, func(tx *gorm.DB, d *Doc) error {
			return tx.Raw("SELECT * FROM ? WHERE id = ?", clause.Table{Name: tx.NamingStrategy.TableName("Doc")}, d.ID).Scan(d).Error
		}},
		"Joins": {2, func(tx *gorm.DB, d *Doc) error { id := d.ID; *d = Doc{}; return tx.Joins("Author").First(d, id).Error }},
		"Rows": {2, func(tx *gorm.DB, d *Doc) error {
			rows, err := tx.Model(&Doc{}).Where("id = ?", d.ID).Rows()
			if err != nil {
				return err
			}
			for rows.Next() {
				if err := tx.ScanRows(rows, d); err != nil {
					return err
				}
			}
			return errors.Join(rows.Err(), rows.Close())
		}},
		"generics": {2, func(tx *gorm.DB, d *Doc) (err error) {
			*d, err = gorm.G[Doc](tx).Where("id = ?", d.ID).First(tx.Statement.Context)
			return err
		}},
		"only looked at": {1, func(tx *gorm.DB, d *Doc) error { return tx.First(new(Doc), d.ID).Error }},
	}
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		for name, configure := range configs {
			db := used(t, e.open(t, configure))
			for how, want := range loads {
				what, d, runs := name+", "+how, newDoc(t, db), 0
				if how == "only looked at" {
					touch(t, db, d.ID)
				}
				err := lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
					runs++
					noError(t, want.load(tx.Session(&gorm.Session{NewDB: true}), d))
					if runs == 1 && how != "only looked at" {
						touch(t, db, d.ID)
					}
					return tx.Model(d).Update("n", 5).Error
				})
				if runs != want.runs || (want.runs == 1) != errors.Is(err, txlock.ErrConflict) || txlock.Retryable(err) {
					t.Errorf("%s: %d runs, want %d: %v", what, runs, want.runs, err)
				}
			}
			d := newDoc(t, db)
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				mine := load(t, tx, d.ID)
				err := tx.Model(mine).Updates(Doc{N: 9, Version: 7}).Error
				wantError(t, "a form of another version", err, txlock.ErrConflict)
				if txlock.Retryable(err) {
					t.Error("the conflict of a form is retryable")
				}
				return nil
			}))
		}
	})
}

func sqlMode(mode string) func(*driver.Config) {
	return func(cfg *driver.Config) { cfg.Params = map[string]string{"sql_mode": "'" + mode + "'"} }
}
