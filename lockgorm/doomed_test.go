package lockgorm_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// deadlock makes one statement of tx, which needs no transaction, the victim of a deadlock with
// somebody who has written more, and returns its error. It needs the table of Note.
func (e *env) deadlock(t *testing.T, tx *gorm.DB) error {
	t.Helper()
	table := e.names.tables["Note"]
	rival, err := e.Admin().BeginTx(t.Context(), nil)
	noError(t, err)
	defer func() { _ = rival.Rollback() }()
	var first, last int64
	for i := range 20 {
		result, err := e.Admin().ExecContext(t.Context(), "INSERT INTO "+table+" (n) VALUES (0)")
		noError(t, err)
		last, err = result.LastInsertId()
		noError(t, err)
		if i == 0 {
			first = last
		}
		_, err = rival.ExecContext(t.Context(), "INSERT INTO "+table+" (n) VALUES (0)")
		noError(t, err)
	}
	_, err = rival.ExecContext(t.Context(), "UPDATE "+table+" SET n = 1 WHERE id = ?", last)
	noError(t, err)
	session, waited := testdb.ConnID(t, tx.Statement.ConnPool), make(chan error, 1)
	go func() {
		waited <- tx.Exec("UPDATE "+table+" SET n = n + 2 WHERE id IN (?, ?) ORDER BY id", first, last).Error
	}()
	e.WaitForLockWait(t, session)
	_, err = rival.ExecContext(t.Context(), "UPDATE "+table+" SET n = 1 WHERE id = ?", first)
	noError(t, err)
	err = <-waited
	if err == nil {
		t.Error("there was no deadlock")
	}
	return err
}

// statements are every way to send something by GORM.
var statements = map[string]func(tx *gorm.DB) error{
	"Create":          func(tx *gorm.DB) error { return tx.Create(&Order{ID: newID()}).Error },
	"Create, many":    func(tx *gorm.DB) error { return tx.Create([]*Order{{ID: newID()}, {ID: newID()}}).Error },
	"CreateInBatches": func(tx *gorm.DB) error { return tx.CreateInBatches([]*Order{{ID: newID()}, {ID: newID()}}, 1).Error },
	"Save":            func(tx *gorm.DB) error { return tx.Save(&Order{ID: newID()}).Error },
	"Update":          func(tx *gorm.DB) error { return tx.Model(&Order{ID: newID()}).Update("n", 1).Error },
	"Updates":         func(tx *gorm.DB) error { return tx.Model(&Order{ID: newID()}).Updates(Order{N: 1}).Error },
	"UpdateColumn":    func(tx *gorm.DB) error { return tx.Model(&Order{ID: newID()}).UpdateColumn("n", 1).Error },
	"Delete":          func(tx *gorm.DB) error { return tx.Delete(&Order{ID: newID()}).Error },
	"First":           func(tx *gorm.DB) error { return ignoreMissing(tx.First(&Order{}).Error) },
	"Take":            func(tx *gorm.DB) error { return ignoreMissing(tx.Take(&Order{}).Error) },
	"Find":            func(tx *gorm.DB) error { return tx.Find(&[]Order{}).Error },
	"Preload":         func(tx *gorm.DB) error { return tx.Preload("Items").Find(&[]Order{}).Error },
	"FindInBatches": func(tx *gorm.DB) error {
		return tx.FindInBatches(&[]Order{}, 1, func(*gorm.DB, int) error { return nil }).Error
	},
	"FirstOrCreate": func(tx *gorm.DB) error { return tx.FirstOrCreate(&Order{}, Order{ID: newID()}).Error },
	"Pluck":         func(tx *gorm.DB) error { return tx.Model(&Order{}).Pluck("n", &[]int64{}).Error },
	"Count":         func(tx *gorm.DB) error { return tx.Model(&Order{}).Count(new(int64)).Error },
	"Exec":          func(tx *gorm.DB) error { return tx.Exec("DO 1").Error },
	"Raw.Scan":      func(tx *gorm.DB) error { return tx.Raw("SELECT 1").Scan(new(int)).Error },
	"Raw.Find":      func(tx *gorm.DB) error { return tx.Raw("SELECT 1 AS id").Find(&Note{}).Error },
	"Row":           func(tx *gorm.DB) error { return tx.Raw("SELECT 2").Row().Scan(new(int)) },
	"Row, model":    func(tx *gorm.DB) error { return tx.Model(&Order{}).Select("COUNT(*)").Row().Scan(new(int)) },
	"Rows":          func(tx *gorm.DB) error { return drained(tx.Model(&Order{}).Rows()) },
	"Association.Append": func(tx *gorm.DB) error {
		return tx.Model(&Order{ID: newID()}).Association("Items").Append(&Item{ID: newID()})
	},
	"Association.Find": func(tx *gorm.DB) error { return tx.Model(&Order{ID: newID()}).Association("Items").Find(&[]Item{}) },
	"Association.Count": func(tx *gorm.DB) error {
		association := tx.Model(&Order{ID: newID()}).Association("Items")
		association.Count()
		return association.Error
	},
	"Transaction": func(tx *gorm.DB) error {
		return tx.Transaction(func(tx *gorm.DB) error { return tx.Create(&Order{ID: newID()}).Error })
	},
	"lockgorm.Transaction": func(tx *gorm.DB) error {
		return lockgorm.Transaction(tx, []txlock.Key{newKey()}, func(*gorm.DB) error { return nil })
	},
	"SavePoint":     func(tx *gorm.DB) error { return tx.SavePoint("here").Error },
	"lockgorm.Lock": func(tx *gorm.DB) error { _, err := lockgorm.Lock(tx, newKey()); return err },
	"ConnPool.ExecContext": func(tx *gorm.DB) error {
		_, err := tx.Statement.ConnPool.ExecContext(context.Background(), "DO 2")
		return err
	},
	"ConnPool.QueryRowContext": func(tx *gorm.DB) error {
		return tx.Statement.ConnPool.QueryRowContext(context.Background(), "SELECT 3").Scan(new(int))
	},
	"ConnPool.PrepareContext": func(tx *gorm.DB) error {
		stmt, err := tx.Statement.ConnPool.PrepareContext(context.Background(), "SELECT 4")
		if err != nil {
			return err
		}
		return errors.Join(stmt.QueryRowContext(context.Background()).Scan(new(int)), stmt.Close())
	},
}

func ignoreMissing(err error) error {
	if errors.Is(err, gorm.ErrRecordNotFound) {
		return nil
	}
	return err
}

// drained reads rows to their end.
func drained(rows *sql.Rows, err error) error {
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		continue
	}
	return rows.Err()
}

// TestDoomedRefuses ignores a deadlock and goes on.
func TestDoomedRefuses(t *testing.T) {
	eachGuarded(t, []string{"Order", "Item", "Note"}, func(t *testing.T, e *env) {
		plugin := func(cfg *gorm.Config) { cfg.Plugins = map[string]gorm.Plugin{"lockstep": lockgorm.New()} }
		for name, configure := range map[string]func(*gorm.Config){
			"default":             func(*gorm.Config) {},
			"plugin":              plugin,
			"PrepareStmt":         func(cfg *gorm.Config) { cfg.PrepareStmt = true },
			"PrepareStmt, plugin": func(cfg *gorm.Config) { cfg.PrepareStmt = true; plugin(cfg) },
			"no nesting":          func(cfg *gorm.Config) { cfg.DisableNestedTransaction, cfg.SkipDefaultTransaction = true, true },
		} {
			db := e.open(t, configure)
			// Twice: a statement prepared in the first transaction must be neither
			// refused nor let through in the next because of the first.
			for range 2 {
				doomed := db.Begin()
				noError(t, doomed.Create(&Note{N: 9}).Error)
				if err := e.deadlock(t, doomed); !txlock.Retryable(err) {
					t.Errorf("%s: the deadlock is %v", name, err)
				}
				for what, send := range statements {
					wantError(t, name+", "+what, send(doomed.Session(&gorm.Session{})), txlock.ErrTxDoomed)
				}
				if err := doomed.Commit().Error; !errors.Is(err, txlock.ErrTxDoomed) || !errors.Is(err, txlock.ErrDeadlock) {
					t.Errorf("%s: Commit: %v", name, err)
				}
			}
			noError(t, skipInner(db.Transaction(func(tx *gorm.DB) error {
				for what, send := range statements {
					if err := send(tx.Session(&gorm.Session{})); err != nil {
						t.Errorf("%s, %s in a transaction that is well: %v", name, what, err)
					}
				}
				return errInner
			})))
		}
		if n, m := e.count(t, "Note", "n = 9"), e.count(t, "Order", "1 = 1"); n != 0 || m != 0 {
			t.Errorf("%d notes and %d orders are left of doomed transactions", n, m)
		}
	})
}

// skipInner leaves out the error by which a test rolls back.
func skipInner(err error) error {
	if errors.Is(err, errInner) {
		return nil
	}
	return err
}

// TestDoomedTransaction does the same in db.Transaction, which must return the error.
func TestDoomedTransaction(t *testing.T) {
	eachGuarded(t, []string{"Order", "Note"}, func(t *testing.T, e *env) {
		db := e.open(t)
		err := db.Transaction(func(tx *gorm.DB) error {
			_ = e.deadlock(t, tx)
			_ = tx.Create(&Order{ID: 1})
			return nil
		})
		wantError(t, "Transaction", err, txlock.ErrTxDoomed)
		err = db.Transaction(func(tx *gorm.DB) error {
			_ = tx.Transaction(func(tx *gorm.DB) error { return e.deadlock(t, tx) })
			return nil
		})
		wantError(t, "Transaction with a nested one", err, txlock.ErrTxDoomed)
		if !txlock.Retryable(err) {
			t.Errorf("not to be run again: %v", err)
		}
		if e.count(t, "Order", "1 = 1") != 0 {
			t.Error("a row was written behind the deadlock")
		}
	})
}

// TestDoomedOnPlainPool shows what the guard is for: this can fail.
func TestDoomedOnPlainPool(t *testing.T) {
	t.Parallel()
	onEngines(t, []string{"Order", "Note"}, false, func(t *testing.T, e *env) {
		tx := e.open(t).Begin()
		noError(t, tx.Create(&Note{N: 9}).Error)
		_ = e.deadlock(t, tx)
		noError(t, tx.Create(&Order{ID: 1}).Error)
		noError(t, tx.Commit().Error)
		if e.count(t, "Note", "n = 9") != 0 || e.count(t, "Order", "id = 1") != 1 {
			t.Error("without the guard only the statement behind the deadlock should be committed")
		}
	})
}
