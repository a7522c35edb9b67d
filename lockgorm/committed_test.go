package lockgorm_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// endings are statements that end a transaction.
var endings = []struct {
	statement string
	rows      int    // that are committed
	says      string // the error, on a guarded pool
	anew      bool   // a plain pool doesn't know, but for the lock that Transaction compares after a deadlock
}{
	{"ALTER TABLE {T} COMMENT 'altered'", 1, "ALTER TABLE", false},
	{"COMMIT", 1, `the statement "COMMIT"`, false},
	{"CALL own_{T}()", 1, "CALL", true},
	{"ROLLBACK AND CHAIN", 0, `the statement "ROLLBACK AND CHAIN"`, true},
}

// outermost are the functions that begin and end a transaction.
var outermost = map[string]func(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error) error{
	"Transaction": func(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error) error {
		return lockgorm.Transaction(db, []txlock.Key{key}, fn)
	},
	"Transaction, no key": func(db *gorm.DB, _ txlock.Key, fn func(tx *gorm.DB) error) error {
		return lockgorm.Transaction(db, nil, fn)
	},
	"Optimistic": func(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error) error {
		return lockgorm.Optimistic(db, key, fn)
	},
	"Once": func(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error) error {
		return second(lockgorm.Once(db, key, fn))
	},
	"OnceValue": func(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error) error {
		_, _, err := lockgorm.OnceValue(db, key, func(tx *gorm.DB) (int, error) { return 1, fn(tx) })
		return err
	},
}

// TestTransactionNeverRepeatsCommitted has a statement end the transaction behind a write, and the
// function then return nil or have a deadlock: what was committed is not written again, and the
// error says what the statement did. What was rolled back isn't said to be committed.
func TestTransactionNeverRepeatsCommitted(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		table := e.names.tables["Note"]
		e.CreateProcedure(t, "own_"+table, "BEGIN COMMIT; START TRANSACTION; END")
		for i, end := range endings {
			for j, way := range slices.Sorted(maps.Keys(outermost)) {
				for _, deadlock := range []bool{false, true} {
					known := e.guarded || !end.anew || way == "Transaction" && deadlock && end.rows > 0
					if !known || !testdb.Meet(i, j, deadlock) {
						continue
					}
					db := e.openDSN(t, e.AdminDSN(), func(cfg *gorm.Config) { cfg.PrepareStmt = j%2 == 0 })
					runs, before := 0, e.count(t, "Note", "n = 5")
					err := outermost[way](db, e.ensured(t), func(tx *gorm.DB) error {
						runs++
						noError(t, tx.Create(&Note{N: 5}).Error)
						err := tx.Exec(strings.ReplaceAll(end.statement, "{T}", table)).Error
						if runs > 1 || !deadlock || errors.Is(err, txlock.ErrTxDoomed) {
							return err
						}
						return e.deadlock(t, tx)
					})
					n := e.count(t, "Note", "n = 5") - before
					if runs != 1 || n != end.rows || txlock.Retryable(err) || !errors.Is(err, txlock.ErrTxDoomed) ||
						e.guarded && (strings.Contains(err.Error(), "committed") != (n == 1) || !strings.Contains(err.Error(), end.says)) {
						t.Errorf("%s, %s, deadlock=%t: %d runs, %d rows, %v", end.statement, way, deadlock, runs, n, err)
					}
				}
			}
		}
	})
}
