package sharding

import (
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestTwoDatabases has the orders of a user in one of two databases, and there in one of four
// tables. An order is locked where it is, and nowhere else.
func TestTwoDatabases(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			var databases [2]env
			for i := range databases {
				databases[i] = newEnv(t, engine)
				spread(t, databases[i].g)
				noError(t, databases[i].g.Use(lockgorm.New()))
			}
			of := func(userID int64) env { return databases[userID%2] }
			for userID := range int64(4) {
				order := Order{ID: lastID.Add(1), UserID: userID}
				key, here, other := orders.Key(order.ID), of(userID), of(userID+1)
				noError(t, lockgorm.Transaction(here.g, []txlock.Key{key}, func(tx *gorm.DB) error {
					noError(t, tx.Create(&order).Error)
					if !here.held(t, key) || other.held(t, key) {
						t.Errorf("the order of user %d is held in its database: %t, in the other: %t", userID, here.held(t, key), other.held(t, key))
					}
					return tx.Model(&Order{}).Where("id = ? AND user_id = ?", order.ID, userID).Clauses(lockgorm.On(key)).Update("n", 7).Error
				}))
				var read Order
				noError(t, here.g.Where("user_id = ? AND id = ?", userID, order.ID).First(&read).Error)
				if read.N != 7 {
					t.Errorf("user %d reads %+v", userID, read)
				}
			}
		})
	}
}
