package lockgorm_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// User has a string as its primary key.
type User struct {
	Name string `gorm:"primaryKey"`
	N    int64
}

var users = txlock.NewFamily[string]("gorm-user", txlock.Exact())

func (u *User) LockKeys(*gorm.DB) ([]txlock.Key, error) { return users.Keys(u.Name), nil }

// TestSpellings shows that two strings which a collation takes for one have two keys and
// one row. A column that compares bytes, as keys do, has a row for each.
func TestSpellings(t *testing.T) {
	eachGuarded(t, nil, func(t *testing.T, e *env) {
		for name, c := range map[string]struct {
			column  string
			written int
		}{
			"case insensitive":            {"VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", 2},
			"padded":                      {"VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", 1},
			"binary":                      {"VARBINARY(50)", 0},
			"a collation without padding": {"VARCHAR(50) CHARACTER SET utf8mb4 COLLATE " + exact(e), 0},
		} {
			e.names.tables["User"] = e.CreateTable(t, "users", "name "+c.column+" PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0")
			db := e.openPlugin(t)
			noError(t, db.Create(&User{Name: "bob"}).Error)
			written := 0
			for _, other := range []string{"Bob", "bob "} {
				noError(t, db.Transaction(func(tx *gorm.DB) error {
					result := tx.Model(&User{Name: other}).UpdateColumn("n", gorm.Expr("n + 1"))
					written += int(result.RowsAffected)
					if _, err := lockgorm.Lock(tx, users.Key(other)); err != nil || e.held(t, users.Key("bob")) {
						t.Errorf("%s: %q has the key of bob: %v", name, other, err)
					}
					return result.Error
				}))
			}
			if written != c.written {
				t.Errorf("%s: the row of bob was written %d times under other keys, want %d", name, written, c.written)
			}
		}
	})
}
