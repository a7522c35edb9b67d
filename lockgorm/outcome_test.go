package lockgorm_test

import (
	"database/sql"
	"errors"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestUnknownOutcome loses the connection with the text that commits, or with its reply, on
// guarded and plain pools: nothing is run again, and the error says why.
func TestUnknownOutcome(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		insert := "INSERT INTO " + e.names.tables["Note"] + " (n) VALUES (1)"
		for _, arrives := range []bool{false, true} {
			connector, err := driver.NewConnector(e.Config(testdb.LosingCommits(arrives)))
			noError(t, err)
			if e.guarded {
				connector = txlock.Internal(bridge.Pass{}).Guarded(connector)
			}
			pool := sql.OpenDB(connector)
			defer pool.Close()
			db, err := gorm.Open(mysql.New(mysql.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard})
			noError(t, err)
			for name, run := range outermost {
				runs := 0
				err := run(db, onceKey(), func(tx *gorm.DB) error { runs++; return tx.Exec(insert).Error })
				if !errors.Is(err, txlock.ErrUnknownOutcome) || errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) || runs != 1 {
					t.Errorf("%s, arrives %t: %d runs, %v", name, arrives, runs, err)
				}
			}
		}
	})
}
