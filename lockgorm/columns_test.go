package lockgorm_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// Models whose columns a test makes.
type (
	Voucher struct {
		Code string `gorm:"primaryKey" lockstep:"voucher"`
		N    int64
	}
	Fixed struct {
		Code string `gorm:"primaryKey;type:binary(8)" lockstep:"fixed"`
		N    int64
	}
	Seal struct {
		Code string `gorm:"primaryKey" lockstep:"seal,fold=latin1_swedish_ci"`
		N    int64
	}
	Token struct {
		ID uuid.UUID `lockstep:"token"`
		N  int64
	}
)

// exact is a collation that compares bytes, without padding.
func exact(e *env) string {
	return map[testdb.Engine]string{testdb.MariaDB: "utf8mb4_nopad_bin", testdb.MySQL: "utf8mb4_0900_bin"}[e.Engine()]
}

// TestColumns writes and checks tagged models over columns of all kinds, and demands the
// cure where a row would have several keys. More kinds are in package txlock's TestCheckColumns.
func TestColumns(t *testing.T) {
	eachGuarded(t, nil, func(t *testing.T, e *env) {
		for _, c := range []struct {
			column string
			model  any
			cure   string
		}{
			{"VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", &Voucher{Code: "a"}, "fold=utf8mb4_general_ci in a tag"},
			{"BIGINT", &Voucher{Code: "1"}, "make the identifier an integer"},
			{"VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", &Voucher{Code: "a"}, ""},
			{"VARCHAR(50) CHARACTER SET utf8mb4 COLLATE " + exact(e), &Voucher{Code: "a"}, ""},
			{"VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", &Coupon{Code: "a"}, ""},
			{"VARCHAR(50) CHARACTER SET utf8mb3 COLLATE utf8mb3_general_ci", &Stamp{Code: "a"}, ""},
			{"VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", &Coupon{Code: "a"}, "the collation utf8mb4_unicode_ci, but its keys fold as utf8mb4_general_ci"},
			{"VARCHAR(50)", &Parcel{ID: 1}, "make it BIGINT"},
			{"DOUBLE", &Parcel{ID: 1}, "is a DOUBLE"},
			{"DECIMAL(20)", &Parcel{ID: 1}, ""},
			{"BIGINT", &Token{ID: uuid.New()}, "make the column CHAR(36)"},
			{"CHAR(36)", &Token{ID: uuid.New()}, ""},
			{"YEAR", &Parcel{ID: 2026}, "is a YEAR"},
			{"UUID", &Voucher{Code: "a"}, "write a method LockKeys"},
			{"UUID", &Seal{Code: "a"}, "write a method LockKeys"},
			{"INET6", &Seal{Code: "::1"}, "write a method LockKeys"},
			{"UUID", &Token{ID: uuid.New()}, ""},
		} {
			if e.Engine() == testdb.MySQL && (c.column == "UUID" || strings.HasPrefix(c.column, "INET")) {
				continue // types of MariaDB
			}
			what := fmt.Sprintf("%T over %s", c.model, c.column)
			column := map[bool]string{true: "id", false: "code"}[strings.Contains(what, "Parcel") || strings.Contains(what, "Token")]
			table := e.CreateTable(t, "columns", column+" "+c.column+" PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0")
			e.names.tables = map[string]string{"Voucher": table, "Seal": table, "Coupon": table, "Ticket": table, "Stamp": table, "Parcel": table, "Token": table}
			cured := func(where string, err error) {
				t.Helper()
				if c.cure == "" {
					wantError(t, what+", "+where, err, nil)
					return
				}
				wantCure(t, fmt.Errorf("%s, %s: %w", what, where, err), txlock.ErrInvalidKey, c.cure)
			}
			cured("Check", e.open(t).Use(lockgorm.New(lockgorm.Check(c.model))))
			if db := e.openPlugin(t); column == "code" { // what is no text is not looked up
				cured("Create", db.Create(c.model).Error)
				cured("Create again", db.Save(c.model).Error)
				if c.cure != "" && strings.HasPrefix(c.column, "VARCHAR") {
					noError(t, db.Clauses(lockgorm.On(newKey())).Create(c.model).Error) // another key is a cure
				}
			}
		}
	})
}

// TestLookupsFixNoSnapshot proves that to look a column up locks nothing, and that a row that is
// committed afterwards is seen. TestMockExpectsNoLookups counts the statements.
func TestLookupsFixNoSnapshot(t *testing.T) {
	each(t, nil, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
			table := e.CreateTable(t, "vouchers", "code VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0")
			err := db.Transaction(func(tx *gorm.DB) error {
				var n int64
				wantError(t, "a create", tx.Table(table).Create(&Voucher{Code: "e"}).Error, txlock.ErrInvalidKey)
				e.Exec(t, "INSERT INTO "+table+" (code) VALUES ('z')")
				err := tx.Table(table).Count(&n).Error
				if n != 1 && err == nil {
					t.Errorf("%v: what was committed after the column was looked up is not seen", level)
				}
				return err
			}, &sql.TxOptions{Isolation: level})
			// Under innodb_snapshot_isolation any statement takes a snapshot at SERIALIZABLE.
			if level != sql.LevelSerializable || !txlock.Retryable(err) {
				noError(t, err)
			}
		}
	}))
}

// TestCheck has db.Use look at models.
func TestCheck(t *testing.T) {
	eachGuarded(t, []string{"Note", "Order", "Parcel", "Ledger"}, func(t *testing.T, e *env) {
		e.names.tables["Pair"] = e.names.tables["Note"]
		e.names.tables["Plan"] = e.CreateTable(t, "shortened", "id BIGINT AUTO_INCREMENT PRIMARY KEY, version INT")
		e.names.tables["Voucher"] = e.names.tables["Note"]
		e.names.tables["Token"] = "there_is_no_such_table"
		for name, c := range map[string]struct {
			model any
			want  error
			cure  string
		}{
			"no keys":      {&Note{}, txlock.ErrInvalidKey, `give its primary key the tag lockstep:"..."`},
			"no column":    {&Voucher{}, txlock.ErrInvalidKey, `gorm:"column:..."`},
			"two columns":  {&Pair{}, txlock.ErrInvalidKey, "write a method LockKeys"},
			"a short one":  {&Plan{}, lockgorm.ErrVersion, "BIGINT UNSIGNED NOT NULL DEFAULT 1"},
			"no table":     {&Token{}, nil, "create the tables before db.Use"},
			"no model":     {42, nil, "needs models such as &Order{}"},
			"nil":          {nil, nil, "needs models such as &Order{}"},
			"two Versions": {&TwoVersions{}, lockgorm.ErrVersion, "must have one Version"},
		} {
			db := e.open(t)
			err := db.Use(lockgorm.New(lockgorm.Check(&Parcel{}, c.model)))
			if err == nil || c.want != nil && !strings.Contains(err.Error(), c.want.Error()) || !strings.Contains(err.Error(), c.cure) {
				t.Errorf("%s: %v, want %v and %q", name, err, c.want, c.cure)
			}
			noError(t, db.Use(lockgorm.New())) // nothing of the first was left
		}
		noError(t, e.open(t).Use(lockgorm.New(lockgorm.Check(&Parcel{}, Order{}, &[]Ledger{}))))
		noError(t, e.open(t, func(cfg *gorm.Config) { cfg.PrepareStmt = true }).Use(lockgorm.New(lockgorm.Check(&Parcel{}))))
		dry := e.open(t, func(cfg *gorm.Config) { cfg.DryRun = true })
		noError(t, dry.Use(lockgorm.New(lockgorm.Check(&Token{}))))
		wantError(t, "a DryRun", e.open(t, func(cfg *gorm.Config) { cfg.DryRun = true }).Use(lockgorm.New(lockgorm.Check(&Pair{}))), txlock.ErrInvalidKey)
	})
}

// TwoVersions has one too many.
type TwoVersions struct {
	ID   int64
	A, B lockgorm.Version
}
