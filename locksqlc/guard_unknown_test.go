package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestErrorsKeepOpen proves that after errors of statements which leave the transaction open
// it goes on, be they known or not, and that nothing is committed by itself. {T} is the
// table, which has row 1, {ID} the session.
func TestErrorsKeepOpen(t *testing.T) {
	statements := map[string]uint16{
		"INSERT INTO {T} VALUES (1)":                                        1062,
		"INSERT INTO {T} VALUES (NULL)":                                     1048,
		"INSERT INTO {T} VALUES (99999999999)":                              1264,
		"INSERT INTO missing VALUES (1)":                                    1142,
		"INSERT IN":                                                         1064,
		"SELECT (SELECT 1 UNION SELECT 2)":                                  1242,
		"SELECT 18446744073709551615 + 1 FROM {T}":                          1690,
		"KILL QUERY {ID}":                                                   1317,
		"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1644":                    1644,
		"SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317":                    1317,
		"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 4711":                    4711,
		"SELECT * FROM {T}, {T}":                                            1066,
		"DELETE FROM {T} WHERE id IN (SELECT id FROM {T} WHERE 1 = 'x' OR)": 1064,
	}
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "errors", "id INT PRIMARY KEY")
		pool := newPool(t, db.Config(), true)
		exec(t, pool, "INSERT INTO "+table+" VALUES (1)")
		for statement, want := range statements {
			tx := begin(t, pool)
			scope, err := locksqlc.Join(t.Context(), tx)
			check(t, err)
			_, err = scope.Lock(t.Context(), uniqueKey(t, "errors"))
			check(t, err)
			text := strings.NewReplacer("{T}", table, "{ID}", fmt.Sprint(testdb.ConnID(t, tx))).Replace(statement)
			rows, err := tx.QueryContext(t.Context(), text)
			if err == nil {
				for rows.Next() {
				}
				err = errors.Join(rows.Err(), rows.Close())
			}
			if number(err) != want || errors.Is(err, txlock.ErrTxDoomed) {
				t.Errorf("%s: %v, want %d", statement, err, want)
			}
			if _, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (2)"); err != nil {
				t.Errorf("%s: the next statement: %v", statement, err)
			}
			check(t, tx.Rollback())
			var n int
			check(t, pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n))
			if n != 1 {
				t.Errorf("%s: %d rows, want that of the beginning", statement, n)
			}
		}
	})
}

// ending answers a statement with /* end */ as Vitess does when it has ended the transaction:
// by 1317, and what follows would commit by itself.
type ending struct{ connection }

func (e ending) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if !strings.Contains(query, "/* end */") {
		return e.connection.ExecContext(ctx, query, args)
	}
	if _, err := e.connection.ExecContext(ctx, "ROLLBACK", nil); err != nil {
		return nil, err
	}
	return nil, &mysql.MySQLError{Number: 1317, SQLState: [5]byte([]byte("70100")), Message: "transaction 17 ended at 2026-01-01 00:00:00 UTC (exceeded timeout: 20s)"}
}

type endingShown struct{ ending }

func (e endingShown) Raw() driver.Conn { return e.connection }

// TestErrorThatEnds proves that a statement which the server answers by an error that isn't
// known, and has ended the transaction with, dooms it: nothing is committed by itself, and
// Run begins again.
func TestErrorThatEnds(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		base, err := mysql.NewConnector(db.Config())
		check(t, err)
		table := db.CreateTable(t, "ends", "id INT PRIMARY KEY")
		for _, wrap := range []func(connection) driver.Conn{
			func(c connection) driver.Conn { return ending{c} },
			func(c connection) driver.Conn { return endingShown{ending{c}} },
		} {
			pool := sql.OpenDB(locksqlc.Connector(wrapper{base, wrap}))
			defer pool.Close()
			runs := 0
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{uniqueKey(t, "ends")}, func(tx *sql.Tx) error {
				if runs++; runs > 1 {
					return nil
				}
				_, err := tx.ExecContext(t.Context(), "DELETE FROM "+table+" /* end */")
				if number(err) != 1317 || !errors.Is(err, txlock.ErrTxDoomed) {
					t.Errorf("the statement: %v", err)
				}
				_, err = tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)")
				if !errors.Is(err, txlock.ErrTxDoomed) {
					t.Errorf("the next one: %v", err)
				}
				return err
			})
			var n int
			check(t, pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n))
			if err != nil || runs != 2 || n != 0 {
				t.Errorf("%d runs, %d rows, %v", runs, n, err)
			}
		}
	})
}

// TestLostWithALargeStatement loses the connection with a statement of more than a megabyte,
// as a server does for which it is too large: it is not sent again, and the error says why.
func TestLostWithALargeStatement(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		lose := testdb.Losing(func(packet string) (lost, arrives bool) { return len(packet) > 1<<20, false })
		pool := newPool(t, db.AdminConfig(lose), true)
		text := strings.Repeat("x", 1<<20)
		for name, send := range map[string]func(tx *sql.Tx) error{
			"text":     func(tx *sql.Tx) error { _, err := tx.ExecContext(t.Context(), "DO '"+text+"'"); return err },
			"prepared": func(tx *sql.Tx) error { _, err := tx.ExecContext(t.Context(), "DO ?", text); return err },
		} {
			runs := 0
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{uniqueKey(t, "large")}, func(tx *sql.Tx) error {
				runs++
				return send(tx)
			})
			if runs != 1 || err == nil || txlock.Retryable(err) || !strings.Contains(err.Error(), "max_allowed_packet") {
				t.Errorf("%s: %d runs, %v", name, runs, err)
			}
		}
	})
}

// TestRejectReadOnly proves that a guarded pool refuses the parameter that hides ErrReadOnly.
func TestRejectReadOnly(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(func(cfg *mysql.Config) { cfg.RejectReadOnly = true }), true)
		err := locksqlc.Run(t.Context(), pool, nil, func(*sql.Tx) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "rejectReadOnly=true") || txlock.Retryable(err) {
			t.Errorf("%v", err)
		}
	})
}

// TestOnceValueAndThePackets stores values of all sizes around maxAllowedPacket.
func TestOnceValueAndThePackets(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		sides(t, func(t *testing.T, guarded bool) {
			pool := newPool(t, db.Config(func(cfg *mysql.Config) { cfg.MaxAllowedPacket = 200_000 }), guarded)
			for _, size := range []int{90_000, 105_000, 199_970, 205_000, 270_000} {
				key, value := uniqueKey(t, "size"), strings.Repeat("x", size)
				for _, wantFirst := range []bool{true, false} {
					got, first, err := locksqlc.OnceValue(t.Context(), pool, key, func(*sql.Tx) (string, error) { return value, nil })
					if got != value || first != wantFirst || err != nil {
						t.Errorf("%d bytes: %d came back, first %t: %v", size, len(got), first, err)
					}
				}
			}
		})
	})
}
