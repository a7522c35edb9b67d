package faults

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

var fatal = testdb.Must

func TestMain(m *testing.M) { testdb.Main(m) }

// TestWrappers proves that a pool in each wrapper works, over the driver and around a
// guarded pool, and that its locks exclude.
func TestWrappers(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, name := range WrapperNames() {
			for order, wrap := range map[string]func(driver.Connector) driver.Connector{
				"under":  func(c driver.Connector) driver.Connector { return locksqlc.Connector(Wrapped(name, c)) },
				"around": func(c driver.Connector) driver.Connector { return Wrapped(name, locksqlc.Connector(c)) },
			} {
				t.Run(string(engine)+"/"+name+"/"+order, func(t *testing.T) {
					t.Parallel()
					db := testdb.Open(t, engine)
					base := testdb.Got(mysql.NewConnector(db.Config()))(t)
					pool := sql.OpenDB(wrap(base))
					t.Cleanup(func() { _ = pool.Close() })
					key := txlock.Named(t.Name())
					err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
						if _, err := tx.ExecContext(t.Context(), "SET @a = ?", 1); err != nil {
							return err
						}
						other, err := db.Connect(t).BeginTx(t.Context(), nil)
						if err != nil {
							return err
						}
						defer func() { _ = other.Rollback() }()
						scope, err := locksqlc.Join(t.Context(), other)
						if err != nil {
							return err
						}
						_, err = scope.TryLock(t.Context(), key)
						testdb.ErrorIf(t, !errors.Is(err, txlock.ErrBusy), "another transaction: %v", err)
						return nil
					})
					fatal(t, err)
				})
			}
		}
	}
}

// TestPlanted proves that every text which a bug changes stands in a statement.
func TestPlanted(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../../gen/*.sql.go")
	testdb.FatalIf(t, err != nil || len(paths) == 0, "%d files of statements, %v", len(paths), err)
	holds := []rawsql.Hold{{Name: "a", Owner: "b", Hold: "c"}}
	statements := rawsql.RenewMany(holds) + rawsql.HeldMany(holds, 1) + rawsql.Named.LockMany(2) +
		rawsql.AcquireMany([]rawsql.Wanted{{Name: "a", Hold: "c"}}, 1<<50)
	for _, path := range paths {
		text := testdb.Got(os.ReadFile(path))(t)
		statements += string(text)
	}
	for bug, texts := range planted {
		for i := 0; i < len(texts); i += 2 {
			testdb.ErrorIf(t, !strings.Contains(statements, texts[i]), "%s: no statement has %q", bug, texts[i])
		}
	}
}
