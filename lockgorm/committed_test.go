package lockgorm_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestTransactionNeverRepeatsCommitted writes, commits before the end, and then has a
// deadlock: what was written must not be written again.
func TestTransactionNeverRepeatsCommitted(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		table := e.names.tables["Note"]
		e.CreateProcedure(t, "own_"+table, "BEGIN COMMIT; START TRANSACTION; END")
		anew := map[string]bool{"CREATE TABLE {T} (id INT)": true, "/*! COMMIT AND CHAIN */": true, "CALL own_{T}()": true}
		for _, statement := range []string{
			"ALTER TABLE {T} COMMENT 'altered'", "CREATE TABLE {T} (id INT)", "COMMIT", "/*! COMMIT AND CHAIN */", "CALL own_{T}()",
		} {
			for _, configure := range []func(*gorm.Config){
				func(*gorm.Config) {},
				func(cfg *gorm.Config) { cfg.PrepareStmt = true },
			} {
				for _, keys := range [][]txlock.Key{nil, {e.ensured(t)}} {
					if keys == nil && !e.guarded && anew[statement] {
						continue // nobody knows
					}
					db, runs, before := e.openDSN(t, e.AdminDSN(), configure), 0, e.count(t, "Note", "n = 5")
					err := lockgorm.Transaction(db, keys, func(tx *gorm.DB) error {
						runs++
						noError(t, tx.Create(&Note{N: 5}).Error)
						err := tx.Exec(strings.ReplaceAll(statement, "{T}", table)).Error
						if runs > 1 || errors.Is(err, txlock.ErrTxDoomed) {
							return err
						}
						return e.deadlock(t, tx)
					})
					if n := e.count(t, "Note", "n = 5") - before; runs != 1 || n != 1 || txlock.Retryable(err) || !errors.Is(err, txlock.ErrTxDoomed) {
						t.Errorf("%s with %d keys: %d runs, %d rows, %v", statement, len(keys), runs, n, err)
					}
				}
			}
		}
	})
}

// TestCallUnderAContext scans the rows of a procedure that has none, under a context that
// can end, like that of a request: the locked transaction goes on.
func TestCallUnderAContext(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		table := e.names.tables["Note"]
		e.CreateProcedure(t, "own_"+table, "DO 1")
		for _, prepare := range []bool{false, true} {
			db := e.openDSN(t, e.AdminDSN(), func(cfg *gorm.Config) { cfg.PrepareStmt = prepare })
			ctx, cancel := context.WithCancel(t.Context())
			before := e.count(t, "Note", "n = 6")
			noError(t, lockgorm.Transaction(db.WithContext(ctx), []txlock.Key{e.ensured(t)}, func(tx *gorm.DB) error {
				var none []int
				noError(t, tx.Raw("CALL own_"+table+"()").Scan(&none).Error)
				return tx.Create(&Note{N: 6}).Error
			}))
			cancel()
			if n := e.count(t, "Note", "n = 6") - before; n != 1 {
				t.Errorf("prepared %t: %d rows were created, want one", prepare, n)
			}
		}
	})
}

// TestEndedByText has the program end a locked transaction by a statement. The error says what that
// did: what was rolled back isn't said to be committed.
func TestEndedByText(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		if !e.guarded {
			return // which of the two is not known there
		}
		for statement, left := range map[string]int{"COMMIT": 1, "COMMIT AND CHAIN": 1, "ROLLBACK": 0, "ROLLBACK AND CHAIN": 0} {
			db, before := e.openDSN(t, e.AdminDSN(), func(*gorm.Config) {}), e.count(t, "Note", "n = 9")
			err := lockgorm.Transaction(db, []txlock.Key{e.ensured(t)}, func(tx *gorm.DB) error {
				noError(t, tx.Create(&Note{N: 9}).Error)
				return tx.Exec(statement).Error
			})
			if n := e.count(t, "Note", "n = 9") - before; n != left || !errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) {
				t.Errorf("%s: %d rows, %v", statement, n, err)
			}
			if err != nil && (strings.Contains(err.Error(), "committed") != (left == 1) || !strings.Contains(err.Error(), `the statement "`+statement+`"`)) {
				t.Errorf("%s: %v", statement, err)
			}
		}
	})
}
