package lockgorm_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/txlock"
)

// The models of a gateway that sells an API by quota, in the shape of a public program: only the
// tags are added.
type (
	// Buyer spends its quota.
	Buyer struct {
		ID       int64 `lockstep:"buyer"`
		Email    string
		Quota    int64
		Used     int64
		Requests int64
		Status   int64
	}
	// Grant is a right to spend a part of it.
	Grant struct {
		ID      int64 `lockstep:"grant"`
		BuyerID int64
		Status  int64
		Left    int64 `gorm:"column:remaining"`
	}
	// Channel serves requests.
	Channel struct {
		ID     int64 `lockstep:"channel"`
		Status int64
		Used   int64
	}
	// Refill is redeemed once.
	Refill struct {
		ID     int64 `lockstep:"refill"`
		Code   string
		Status int64
		Quota  int64
	}
)

func init() {
	columns["Buyer"] = "id BIGINT AUTO_INCREMENT PRIMARY KEY, email VARCHAR(50) NOT NULL, quota BIGINT NOT NULL, used BIGINT NOT NULL, requests BIGINT NOT NULL, status BIGINT NOT NULL"
	columns["Grant"] = "id BIGINT AUTO_INCREMENT PRIMARY KEY, buyer_id BIGINT NOT NULL, status BIGINT NOT NULL, remaining BIGINT NOT NULL, KEY (buyer_id)"
	columns["Channel"] = "id BIGINT AUTO_INCREMENT PRIMARY KEY, status BIGINT NOT NULL, used BIGINT NOT NULL"
	columns["Refill"] = "id BIGINT AUTO_INCREMENT PRIMARY KEY, code VARCHAR(50) NOT NULL UNIQUE, status BIGINT NOT NULL, quota BIGINT NOT NULL"
}

// The statements of the program, on the rows 1 to 3 of each table.
var program = map[string]struct {
	do    func(db *gorm.DB) error
	locks []string // the keys that are held at its end
}{
	"spend": {func(db *gorm.DB) error {
		return db.Model(&Buyer{}).Where("id = ?", 1).Updates(map[string]any{"quota": gorm.Expr("quota - ?", 5), "used": gorm.Expr("used + ?", 5), "requests": gorm.Expr("requests + ?", 1)}).Error
	}, []string{"buyer:1"}},
	"top up by mail": {func(db *gorm.DB) error {
		return db.Model(&Buyer{}).Where("email = ?", "b2").Update("quota", gorm.Expr("quota + ?", 9)).Error
	}, []string{"buyer:2"}},
	"save": {func(db *gorm.DB) error {
		var b Buyer
		if err := db.First(&b, "id = ?", 3).Error; err != nil {
			return err
		}
		b.Status = 2
		return db.Save(&b).Error
	}, []string{"buyer:3"}},
	"change what was loaded": {func(db *gorm.DB) error {
		grant := Grant{ID: 1}
		if err := db.Where(&grant).First(&grant).Error; err != nil {
			return err
		}
		grant.Status, grant.Left = 7, 0
		return db.Model(&grant).Select("status", "remaining").Updates(&grant).Error
	}, []string{"grant:1"}},
	"disable the grants of a buyer": {func(db *gorm.DB) error {
		return db.Model(&Grant{}).Where("buyer_id = ?", 1).Select("status").Update("status", 3).Error
	}, []string{"grant:1", "grant:2"}},
	"delete by both ids": {func(db *gorm.DB) error { return db.Where("id = ? and buyer_id = ?", 3, 2).Delete(&Grant{}).Error }, []string{"grant:3"}},
	"delete a list":      {func(db *gorm.DB) error { return db.Where("id in (?)", []int64{1, 2}).Delete(&Grant{}).Error }, []string{"grant:1", "grant:2"}},
	"delete what is disabled": {func(db *gorm.DB) error {
		return db.Where("status = ? or status = ?", 2, 3).Delete(&Channel{}).Error
	}, []string{"channel:2", "channel:3"}},
	"add many": {func(db *gorm.DB) error { return db.Create(&[]Channel{{Status: 1}, {ID: 9, Status: 1}}).Error }, []string{"channel:9"}},
	"count for a channel": {func(db *gorm.DB) error {
		return db.Model(&Channel{}).Where("id = ?", 1).UpdateColumn("used", gorm.Expr("used + ?", 5)).Error
	}, []string{"channel:1"}},
	"redeem": {func(db *gorm.DB) error {
		return db.Transaction(func(tx *gorm.DB) error {
			var v Refill
			if err := tx.Set("gorm:query_option", "FOR UPDATE").Where("code = ?", "v1").First(&v).Error; err != nil {
				return err
			}
			if err := tx.Model(&Buyer{}).Where("id = ?", 1).Update("quota", gorm.Expr("quota + ?", v.Quota)).Error; err != nil {
				return err
			}
			v.Status = 2
			return tx.Save(&v).Error
		})
	}, []string{"buyer:1", "refill:1"}},
	"delete the used": {func(db *gorm.DB) error { return db.Where("status <> ?", 1).Delete(&Refill{}).Error }, []string{"refill:3"}},
	"first or create": {func(db *gorm.DB) error {
		return db.Where(&Refill{Code: "v2"}).Assign(&Refill{Quota: 77}).FirstOrCreate(&Refill{}).Error
	}, []string{"refill:2"}},
}

// TestAProgramAsItIs runs the statements of a program that was written for plain GORM, and proves
// that they do the same with the plugin, and hold the keys of the rows that they change.
func TestAProgramAsItIs(t *testing.T) {
	eachSetting(t, []string{"Buyer", "Grant", "Channel", "Refill"}, func(t *testing.T, e *env) {
		plain, db := e.open(t), e.openPlugin(t)
		tables := map[string]string{
			"Buyer": "(1, 'b1', 100, 0, 0, 1), (2, 'b2', 100, 0, 0, 1), (3, 'b3', 100, 0, 0, 1)", "Grant": "(1, 1, 1, 50), (2, 1, 1, 50), (3, 2, 1, 50)",
			"Channel": "(1, 1, 0), (2, 2, 0), (3, 3, 0)", "Refill": "(1, 'v1', 1, 10), (2, 'v2', 1, 20), (3, 'v3', 2, 30)",
		}
		fill := func() {
			for model, rows := range tables {
				empty := "DELETE FROM "
				if model == "Channel" { // whose rows get the numbers that are next
					empty = "TRUNCATE TABLE "
				}
				e.Exec(t, empty+e.names.tables[model])
				e.Exec(t, "INSERT INTO "+e.names.tables[model]+" VALUES "+rows)
			}
		}
		contents := func() map[string]string {
			found := make(map[string]string)
			for model := range tables {
				var rows []map[string]any
				noError(t, plain.Table(e.names.tables[model]).Order("id").Find(&rows).Error)
				found[model] = fmt.Sprint(rows)
			}
			return found
		}
		for what, p := range program {
			fill()
			noError(t, p.do(plain))
			want := contents()
			fill()
			if err := p.do(db); err != nil || !maps.Equal(contents(), want) {
				t.Errorf("%s: %v, %v, want %v", what, err, contents(), want)
			}
			fill()
			err := db.Transaction(func(tx *gorm.DB) error {
				noError(t, p.do(tx))
				for _, name := range p.locks {
					if key := txlock.Named(name); !e.held(t, key) {
						t.Errorf("%s: %s is free", what, name)
					}
				}
				return errInner
			})
			if !errors.Is(err, errInner) {
				t.Errorf("%s in a transaction: %v", what, err)
			}
		}
	})
}
