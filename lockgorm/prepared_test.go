package lockgorm_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestItsReadsAreNotPrepared looks into GORM's store of prepared statements, which waits for a
// connection of the pool while others wait for the store: what the plugin reads by itself isn't
// there.
func TestItsReadsAreNotPrepared(t *testing.T) {
	each(t, []string{"Parcel"}, func(t *testing.T, e *env) {
		e.names.tables["Voucher"] = e.CreateTable(t, "vouchers", "code VARBINARY(50) PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0")
		db := used(t, e.open(t, func(cfg *gorm.Config) { cfg.PrepareStmt = true }))
		store := db.ConnPool.(*gorm.PreparedStmtDB).Stmts
		raise := func(db *gorm.DB) error {
			return db.Model(&Parcel{}).Where("n + 0 = ?", 1).Update("n", gorm.Expr("n + 0")).Error
		}
		noError(t, db.Create(&Parcel{ID: newID(), N: 1}).Error)
		noError(t, db.Create(&Voucher{Code: "a"}).Error)
		noError(t, raise(db))
		noError(t, db.Transaction(raise))
		noError(t, db.Transaction(func(tx *gorm.DB) error { // a session that prepares, of one that does
			return raise(tx.Session(&gorm.Session{PrepareStmt: true}))
		}))
		if !slices.ContainsFunc(store.Keys(), func(text string) bool { return strings.HasPrefix(text, "UPDATE") }) {
			t.Error("the update is not prepared: this test can't tell")
		}
		for _, text := range store.Keys() {
			if strings.HasPrefix(text, "SELECT") {
				t.Errorf("prepared: %s", text)
			}
		}
	})
}

// TestPanicOfAHook lets a hook panic in a transaction of the statement's own: that ends with the
// context, as a handler's does, and the lock with it.
func TestPanicOfAHook(t *testing.T) {
	eachSetting(t, []string{"Order"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		id := newID()
		noError(t, db.Create(&Order{ID: id}).Error)
		ctx, end := context.WithCancel(t.Context())
		hook := withHook(db.WithContext(ctx), func(*gorm.DB, int64) error { panic("boom") })
		panicked := func() (what any) {
			defer func() { what = recover() }()
			return hook.Model(&Order{ID: id}).Update("n", 5).Error
		}()
		if panicked != "boom" {
			t.Errorf("%v, want the panic of the hook", panicked)
		}
		end()
		if n := testdb.InUse(poolOf(t, db)); n != 0 {
			t.Errorf("%d connections are in use", n)
		}
		e.wantSoonFree(t, "afterwards", orders.Key(id))
		e.wantRows(t, "the order was written", 1, "Order", "id = ? AND n = 0", id)
	})
}
