package gormgen

import (
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/tests/gormgen/shop"
	"github.com/dca00107/lockstep/txlock"
)

// TestSet writes by Set of gorm.G, which GORM has had since 1.31: lockgorm asks for an older one.
func TestSet(t *testing.T) {
	set := func(column string, value any) clause.Assignment {
		return clause.Assignment{Column: clause.Column{Name: column}, Value: value}
	}
	each(t, func(t *testing.T, e *env) {
		ctx := t.Context()
		o, key := e.order(t)
		noError(t, e.db.Transaction(func(tx *gorm.DB) error {
			n, err := gorm.G[shop.Order](tx).Where("id = ?", o.ID).Set(set("n", 5)).Update(ctx)
			if n != 1 || !e.held(t, key) {
				t.Errorf("an update has changed %d rows, %v", n, err)
			}
			return err
		}))
		wantError(t, "a create that names the key otherwise", gorm.G[shop.Order](e.db).Set(set("iD", o.ID+1)).Create(ctx), txlock.ErrInvalidKey)

		a := &shop.Account{Balance: 1}
		noError(t, e.db.Create(a).Error)
		_, err := gorm.G[shop.Account](e.db, lockgorm.AnyVersion).Where("id = ?", a.ID).Set(set("version", 41)).Update(ctx)
		wantError(t, "an update that sets the version", err, lockgorm.ErrVersion)
	})
}
