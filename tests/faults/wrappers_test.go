package faults

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

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
					base, err := mysql.NewConnector(db.Config())
					fatal(t, err)
					pool := sql.OpenDB(wrap(base))
					t.Cleanup(func() { _ = pool.Close() })
					key := txlock.Named(t.Name())
					err = locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
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
						if _, err := scope.TryLock(t.Context(), key); !errors.Is(err, txlock.ErrBusy) {
							t.Errorf("another transaction: %v", err)
						}
						return nil
					})
					fatal(t, err)
				})
			}
		}
	}
}

// TestWrapperLacks proves that the wrappers do to a connection what they are named after.
func TestWrapperLacks(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, testdb.Engines()[0])
	for name, check := range map[string]func(t *testing.T, conn driver.Conn){
		"": func(*testing.T, driver.Conn) {},
		"no validator": func(t *testing.T, conn driver.Conn) {
			if _, ok := conn.(driver.Validator); ok {
				t.Error("it has a Validator")
			}
		},
		"no exec": func(t *testing.T, conn driver.Conn) {
			if _, ok := conn.(driver.ExecerContext); ok {
				t.Error("it has an ExecerContext")
			}
		},
		"no context": func(t *testing.T, conn driver.Conn) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if _, err := conn.(driver.ExecerContext).ExecContext(ctx, "DO SLEEP(0.1)", nil); err != nil {
				t.Errorf("it has ended with the context: %v", err)
			}
		},
		"comment before": showsText("/* application='chaos' */ SELECT info"),
		"comment behind": showsText("/*traceparent="),
		"sqlmw":          showsText("/* action='run' */ SELECT info"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, err := mysql.NewConnector(db.Config())
			fatal(t, err)
			conn, err := Wrapped(name, base).Connect(t.Context())
			fatal(t, err)
			defer func() { _ = conn.Close() }()
			check(t, conn)
		})
	}
}

// showsText checks that the server sees a statement with that part.
func showsText(part string) func(t *testing.T, conn driver.Conn) {
	return func(t *testing.T, conn driver.Conn) {
		rows, err := conn.(driver.QueryerContext).QueryContext(t.Context(), "SELECT info FROM information_schema.processlist WHERE id = CONNECTION_ID()", nil)
		fatal(t, err)
		defer func() { _ = rows.Close() }()
		row := make([]driver.Value, 1)
		fatal(t, rows.Next(row))
		if text, _ := row[0].([]byte); !strings.Contains(string(text), part) {
			t.Errorf("the server sees %q", text)
		}
	}
}
