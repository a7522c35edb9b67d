package lockgorm_test

import (
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// Models whose tags fold.
type (
	Coupon struct {
		Code string `gorm:"primaryKey" lockstep:"coupon,fold=utf8mb4_general_ci"`
		N    int64
	}
	Ticket struct { // blanks at the end don't count, all else does
		Code string `gorm:"primaryKey" lockstep:"ticket,hashed,fold=utf8mb4_bin"`
		N    int64
	}
	Stamp struct {
		Code string `gorm:"primaryKey" lockstep:"stamp,fold=utf8mb3_general_ci"`
		N    int64
	}
)

var (
	coupons = txlock.NewFamily[string]("coupon", txlock.Fold("utf8mb4_general_ci"))
	tickets = txlock.NewFamily[string]("ticket", txlock.Hashed(), txlock.Fold("utf8mb4_bin"))
)

func init() {
	columns["Coupon"] = "code VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0"
	columns["Ticket"] = strings.Replace(columns["Coupon"], "general_ci", "bin", 1)
}

// TestFoldedTags demands that every spelling of a row is locked by the one key that the
// family has for it, whoever else uses the family.
func TestFoldedTags(t *testing.T) {
	eachGuarded(t, []string{"Coupon", "Ticket"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		key, ticket := coupons.Key("bob"), tickets.Key("Jörg")
		e.lockedBy(t, db, "create", key, func(tx *gorm.DB) error { return tx.Create(&Coupon{Code: "Bob"}).Error })
		e.lockedBy(t, db, "update", key, func(tx *gorm.DB) error { return tx.Model(&Coupon{Code: "BOB "}).Update("n", 2).Error })
		e.lockedBy(t, db, "save", key, func(tx *gorm.DB) error { return tx.Save(&Coupon{Code: "boB", N: 3}).Error })
		e.lockedBy(t, db, "gorm.G", key, func(tx *gorm.DB) error {
			_, err := gorm.G[Coupon](tx, lockgorm.Loaded(&Coupon{Code: "bOb"})).Update(t.Context(), "n", 4)
			return err
		})
		e.lockedBy(t, db, "a map", coupons.Key("eve"), func(tx *gorm.DB) error {
			return tx.Model(&Coupon{}).Create(map[string]any{"code": "EVE"}).Error
		})
		e.lockedBy(t, db, "hashed", ticket, func(tx *gorm.DB) error {
			return tx.Create([]*Ticket{{Code: "Jörg  "}, {Code: "jörg"}}).Error
		})
		if e.count(t, "Coupon", "code = 'bob' AND n = 4") != 1 || e.count(t, "Coupon", "1 = 1") != 2 || e.count(t, "Ticket", "1 = 1") != 2 {
			t.Error("a spelling has a row of its own")
		}
		e.hold(t, key, ticket) // as another program does
		for _, model := range []any{&Coupon{Code: "BoB"}, &Ticket{Code: "Jörg"}} {
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				err := lockgorm.WaitAtMost(tx, 50*time.Millisecond).Model(model).Update("n", 5).Error
				wantError(t, "beside the holder", err, txlock.ErrWaitTimeout)
				return nil
			}))
		}
		for _, code := range []string{"Jörg", "a\x00", " "} {
			wantError(t, "what can't be folded", db.Create(&Coupon{Code: code}).Error, txlock.ErrInvalidKey)
		}
		e.lockedBy(t, db, "delete", coupons.Key("eve"), func(tx *gorm.DB) error { return tx.Delete(&Coupon{Code: "Eve"}).Error })
		e.wantRows(t, "rows are left", 1, "Coupon", "1 = 1")
	})
}
