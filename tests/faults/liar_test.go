package faults

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// TestLiar proves that lies are told, and only those that are asked for: that a
// transaction which a statement has ended is open, and that a savepoint of the library
// is there. What the driver itself ends is over.
func TestLiar(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for name, lies := range map[string]Lies{"none": {}, "open": {Open: true}, "savepoints": {Savepoints: true}} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.Open(t, engine)
				table := db.CreateTable(t, "lied", "id INT PRIMARY KEY")
				connector, err := mysql.NewConnector(db.Config(func(cfg *mysql.Config) {
					cfg.DialFunc = Liar(new(net.Dialer).DialContext, lies)
				}))
				fatal(t, err)
				pool := sql.OpenDB(connector)
				t.Cleanup(func() { _ = pool.Close() })
				conn, err := pool.Conn(t.Context())
				fatal(t, err)
				defer func() { _ = conn.Close() }()
				tx, err := conn.BeginTx(t.Context(), nil)
				fatal(t, err)
				for _, text := range []string{"INSERT INTO " + table + " VALUES (1)", "/*! COMMIT */"} {
					if _, err := tx.ExecContext(t.Context(), text); err != nil {
						t.Fatal(err)
					}
				}
				if got := isOpen(t, conn); got != lies.Open {
					t.Errorf("after a COMMIT the reply says %t", got)
				}
				for _, savepoint := range []string{"lockstep_1", "`lockstep 2`", "of_a_user"} {
					_, err = tx.ExecContext(t.Context(), "RELEASE SAVEPOINT "+savepoint)
					var server *mysql.MySQLError
					if gone := errors.As(err, &server) && server.Number == 1305; gone == (lies.Savepoints && strings.Contains(savepoint, "lockstep")) {
						t.Errorf("a savepoint that was never made, %s: %v", savepoint, err)
					}
				}
				fatal(t, tx.Rollback())
				// Everything else is told as it is: results, long ones too, and errors.
				if isOpen(t, conn) {
					t.Error("after the driver's own ROLLBACK the reply says open")
				}
				var text string
				err = conn.QueryRowContext(t.Context(), "SELECT REPEAT('x', 100000) FROM "+table+" WHERE id = ?", 1).Scan(&text)
				if err != nil || len(text) != 100000 {
					t.Errorf("%d bytes, %v", len(text), err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if _, err := conn.ExecContext(ctx, "DO 1"); !errors.Is(err, context.Canceled) {
					t.Errorf("a context that is over: %v", err)
				}
			})
		}
	}
}

// isOpen tells what the last reply has said.
func isOpen(t *testing.T, conn *sql.Conn) (open bool) {
	t.Helper()
	err := conn.Raw(func(c any) error {
		open = reflect.ValueOf(c).Elem().FieldByName("status").Uint()&statusInTrans != 0
		return nil
	})
	fatal(t, err)
	return open
}
