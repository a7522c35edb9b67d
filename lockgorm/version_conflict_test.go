package lockgorm_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestConflictThatTheServerFinds: a row that was changed since the snapshot is a conflict in every write, also where the server refuses it.
func TestConflictThatTheServerFinds(t *testing.T) {
	each(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openDSN(t, e.DSN(func(cfg *driver.Config) {
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
			testdb.ErrorIf(t, !txlock.Retryable(err), "%s: %v is not retryable", name, err)
			noError(t, tx.Rollback().Error)
		}
	})
}

// attempt is a run of a transaction that writes a Doc.
type attempt struct {
	t      *testing.T
	tx     *gorm.DB
	made   *Doc   // as it was created, before the transaction
	others func() // changes the row in the first run
}

// mine is the Doc as the transaction loads it.
func (a attempt) mine() *Doc { return load(a.t, a.tx, a.made.ID) }

// undo calls fn in a nested transaction that is rolled back.
func (a attempt) undo(fn func(tx *gorm.DB) error) error {
	return skipInner(a.tx.Transaction(func(tx *gorm.DB) error { return errors.Join(fn(tx), errInner) }))
}

// seen is the Doc as fn, which is undone, has left it.
func (a attempt) seen(fn func(tx *gorm.DB) error) (d *Doc, err error) {
	err = a.undo(func(tx *gorm.DB) error {
		err := fn(tx)
		d = load(a.t, tx, a.made.ID)
		return err
	})
	return d, err
}

// conflicts are transactions that end in a conflict, and how many runs it takes until one of them doesn't: with one run the conflict is returned.
var conflicts = map[string]struct {
	runs int
	do   func(a attempt) error
}{
	"undone by a savepoint": {1, func(a attempt) error {
		d := a.mine()
		return errors.Join(a.undo(func(tx *gorm.DB) error { return raise(tx, d) }), raise(a.tx, d))
	}},
	"by another copy": {1, func(a attempt) error { return errors.Join(raise(a.tx, a.mine()), raise(a.tx, a.made)) }},
	"by another copy, twice": {1, func(a attempt) error {
		d, stale := a.mine(), a.mine()
		return errors.Join(raise(a.tx, d), raise(a.tx, d), raise(a.tx, stale))
	}},
	"in a batch": {1, func(a attempt) error {
		stale := a.mine()
		return errors.Join(raise(a.tx, a.mine()), a.tx.Model([]*Doc{stale, a.mine()}).Update("n", 1).Error)
	}},
	"loaded of what was undone": {1, func(a attempt) error {
		seen, err := a.seen(func(tx *gorm.DB) error { return raise(tx, a.mine()) })
		return errors.Join(err, raise(a.tx, seen))
	}},
	"by any version": {1, func(a attempt) error {
		d := a.mine()
		return errors.Join(anyOf(a.tx, d.ID), raise(a.tx, d))
	}},
	"loaded of any version that was undone": {1, func(a attempt) error {
		seen, err := a.seen(func(tx *gorm.DB) error { return anyOf(tx, a.made.ID) })
		return errors.Join(err, raise(a.tx, seen))
	}},
	"deleted": {1, func(a attempt) error {
		stale := a.mine()
		return errors.Join(raise(a.tx, a.mine()), a.tx.Delete(stale).Error)
	}},
	"of another's, beside an own write": {2, func(a attempt) error {
		other, d := newDoc(a.t, a.tx), a.mine()
		a.others()
		return errors.Join(raise(a.tx, other), a.undo(func(tx *gorm.DB) error { return raise(tx, other) }), raise(a.tx, d))
	}},
	"of another's, in a savepoint": {2, func(a attempt) error {
		d := a.mine()
		a.others()
		return a.tx.Transaction(func(tx *gorm.DB) error { return raise(tx, d) })
	}},
	"of another's, after a savepoint": {2, func(a attempt) error {
		seen, err := a.seen(func(*gorm.DB) error { return nil })
		a.others()
		return errors.Join(err, raise(a.tx, seen))
	}},
	"loaded before":  {1, after(func(*gorm.DB, *Doc) error { return nil })},
	"only looked at": {1, func(a attempt) error { a.others(); a.mine(); return raise(a.tx, a.made) }},
	"First":          {2, after(func(tx *gorm.DB, d *Doc) error { id := d.ID; *d = Doc{}; return tx.First(d, id).Error })},
	"Find":           {2, after(func(tx *gorm.DB, d *Doc) error { return tx.Find(d).Error })},
	"Find of a slice": {2, after(func(tx *gorm.DB, d *Doc) error {
		var all []*Doc
		err := tx.Where("id = ?", d.ID).Find(&all).Error
		*d = *all[0]
		return err
	})},
	"Raw": {2, after(func(tx *gorm.DB, d *Doc) error {
		return tx.Raw("SELECT * FROM ? WHERE id = ?", clause.Table{Name: tx.NamingStrategy.TableName("Doc")}, d.ID).Scan(d).Error
	})},
	"Joins": {2, after(func(tx *gorm.DB, d *Doc) error { id := d.ID; *d = Doc{}; return tx.Joins("Author").First(d, id).Error })},
	"Rows":  {2, after(func(tx *gorm.DB, d *Doc) error { return scanned(tx.Model(&Doc{}).Where("id = ?", d.ID), d) })},
	"generics": {2, after(func(tx *gorm.DB, d *Doc) (err error) {
		*d, err = gorm.G[Doc](tx).Where("id = ?", d.ID).First(tx.Statement.Context)
		return err
	})},
}

func raise(tx *gorm.DB, d *Doc) error { return tx.Model(d).Update("n", gorm.Expr("n + 1")).Error }

func anyOf(tx *gorm.DB, id int64) error {
	return tx.Clauses(lockgorm.AnyVersion).Model(&Doc{}).Where("id = ?", id).Update("n", 7).Error
}

// scanned reads the rows of a chain into a model one by one.
func scanned(chain *gorm.DB, into any) error {
	rows, err := chain.Rows()
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := chain.ScanRows(rows, into); err != nil {
			return err
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// after loads the Doc in one way, and writes it after others.
func after(read func(tx *gorm.DB, d *Doc) error) func(a attempt) error {
	return func(a attempt) error {
		noError(a.t, read(a.tx.Session(&gorm.Session{NewDB: true}), a.made))
		a.others()
		return raise(a.tx, a.made)
	}
}

// TestConflictIsRunAgain: a transaction is run again only after a conflict with another's commit, of a version that it has loaded itself.
func TestConflictIsRunAgain(t *testing.T) {
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		for name, configure := range configs {
			db := used(t, e.open(t, configure))
			for way, want := range conflicts {
				d, runs := newDoc(t, db), 0
				err := lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
					runs++
					return want.do(attempt{t, tx, d, func() {
						if runs == 1 {
							touch(t, db, d.ID)
						}
					}})
				})
				testdb.ErrorIf(t, runs != want.runs || (want.runs == 1) != errors.Is(err, txlock.ErrConflict) || txlock.Retryable(err),
					"%s, %s: %d runs, want %d: %v", name, way, runs, want.runs, err)
			}
		}
	})
}

// TestVersionOfTheSameRowTwice proves that a batch is counted by rows, not by models.
func TestVersionOfTheSameRowTwice(t *testing.T) {
	eachGuarded(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for name, batch := range map[string]func(d *Doc) any{
			"values":   func(d *Doc) any { return &[]Doc{*d, *d} },
			"pointers": func(d *Doc) any { return []*Doc{d, d, d} },
		} {
			d, other := newDoc(t, db), newDoc(t, db)
			docs := batch(d)
			noError(t, db.Model(docs).Update("n", 5).Error)
			if values, ok := docs.(*[]Doc); ok {
				leasetest.Equal(t, name, (*values)[0].Version, (*values)[1].Version)
				*d = (*values)[1]
			}
			e.is(t, name, d, d.Version, 5)
			affects(t, name+": a row that is excluded", db.Model(docs).Where("n <> 5").Update("n", 6), 0)
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
				testdb.ErrorIf(t, errors.Is(err, txlock.ErrConflict) || !strings.Contains(err.Error(), "1 of 2"),
					"%s, another is gone, %s: %v", name, what, err)
				e.is(t, name+", "+what, d, d.Version, 5)
			}
			noError(t, db.Delete(batch(d)).Error)
			e.wantRows(t, name+": not deleted", 0, "Doc", "id = ?", d.ID)
			e.wantRows(t, name+": not deleted", 1, "Doc", "id = ?", other.ID)
		}
		s := Sheet{ID: newID()}
		noError(t, db.Create(&s).Error)
		noError(t, db.Delete(&[]Sheet{s, s}).Error)
		e.wantRows(t, "a soft delete of the same row twice has left it", 1, "Sheet", "id = ? AND deleted_at IS NOT NULL", s.ID)
	}))
}

type undoing func(db *gorm.DB, write func(tx *gorm.DB) error) error

// undone are the ways in which the write of a model is rolled back without the model noticing.
var undone = map[string]undoing{
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

// TestVersionOfUndoneCreates: the same for models that were created, also with their parent, or deleted softly, and for uncommitted reads.
func TestVersionOfUndoneCreates(t *testing.T) {
	eachGuarded(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for _, end := range []string{"Transaction", "a savepoint"} { // TestVersionAfterRollback has all
			undo := func(write func(tx *gorm.DB) error) {
				t.Helper()
				wantError(t, end, undone[end](db, write), errInner)
			}
			// The same primary key is given to another's row. The server makes no such number.
			mine, parent := &Doc{ID: -newID()}, &Doc{Pages: []Page{{}}}
			undo(func(tx *gorm.DB) error { return errors.Join(tx.Create(mine).Error, tx.Create(parent).Error) })
			noError(t, errors.Join(db.Create(&Doc{ID: mine.ID}).Error, db.Create(&Page{ID: parent.Pages[0].ID, N: 5}).Error))
			wantError(t, end+", a create", db.Model(mine).Update("name", "mine").Error, txlock.ErrConflict)
			wantError(t, end+", a child", db.Model(&parent.Pages[0]).Update("n", 6).Error, txlock.ErrConflict)

			sheet := &Sheet{ID: newID()}
			noError(t, db.Create(sheet).Error)
			kept := *sheet
			undo(func(tx *gorm.DB) error { return tx.Delete(sheet).Error })
			noError(t, db.Model(&kept).Update("n", 1).Error)
			wantError(t, end+", a soft delete", db.Unscoped().Model(sheet).Update("n", 2).Error, txlock.ErrConflict)

			written, seen := newDoc(t, db), new(Doc)
			undo(func(tx *gorm.DB) error { return errors.Join(anyOf(tx, written.ID), tx.First(seen, written.ID).Error) })
			noError(t, db.Model(written).Update("n", 2).Error)
			wantError(t, end+", an uncommitted read", db.Model(seen).Update("n", 3).Error, txlock.ErrConflict)
			e.is(t, end, written, written.Version, 2)
		}
	}))
}

func sqlMode(mode string) func(*driver.Config) {
	return func(cfg *driver.Config) { cfg.Params = map[string]string{"sql_mode": "'" + mode + "'"} }
}
