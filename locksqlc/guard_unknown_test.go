package locksqlc_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
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
			tx, scope := joined(t, pool)
			_ = lock(t, scope, uniqueKey(t, "errors"))
			text := strings.NewReplacer("{T}", table, "{ID}", fmt.Sprint(testdb.ConnID(t, tx))).Replace(statement)
			err := sendBy(t.Context(), tx, "rows", text)
			if number(err) != want || errors.Is(err, txlock.ErrTxDoomed) {
				t.Errorf("%s: %v, want %d", statement, err, want)
			}
			isError(t, statement+": the next statement", second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (2)")), nil)
			check(t, tx.Rollback())
			wantCount(t, pool, 1, "SELECT COUNT(*) FROM "+table)
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
			"text":     func(tx *sql.Tx) error { return second(tx.ExecContext(t.Context(), "DO '"+text+"'")) },
			"prepared": func(tx *sql.Tx) error { return second(tx.ExecContext(t.Context(), "DO ?", text)) },
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
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
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
}

// TestUnknownReplies lets the server answer in a character set that nobody expects, in the
// middle of a transaction. What can't be read grants nothing, and dooms the transaction.
func TestUnknownReplies(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		busy, free := uniqueKey(t, "busy"), uniqueKey(t, "free")
		holder := newPool(t, db.Config(), true)
		check(t, txlock.Ensure(t.Context(), holder, busy, free))
		lock(t, join(t, begin(t, holder)), busy)
		for _, guarded := range []bool{true, false} {
			pool := single(newPool(t, db.Config(), guarded))
			for _, name := range []string{"TryLock", "TryRLock", "LockAny"} {
				tx, scope := joined(t, pool)
				exec(t, tx, "SET character_set_results = utf16")
				err := verbs[name](t.Context(), scope, busy)
				if err == nil {
					t.Errorf("%s of a key that is held, guarded: %t: it is granted", name, guarded)
				}
				wantHeld(t, fmt.Sprintf("%s of a key that is held, guarded: %t", name, guarded), scope, busy, false)
				if errors.Is(err, fault.ErrReply) && (!errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) || !errors.Is(scope.Verify(t.Context()), txlock.ErrTxDoomed)) {
					t.Errorf("%s, guarded: %t: %v, want ErrTxDoomed, not to be tried again", name, guarded, err)
				}
				if err := tx.Commit(); guarded && errors.Is(scope.Verify(t.Context()), fault.ErrReply) && !errors.Is(err, txlock.ErrTxDoomed) {
					t.Errorf("%s: Commit: %v, want ErrTxDoomed", name, err)
				}
				resetCharset(t, pool)
			}
			grantsWhatItSays(t, db, pool, free)
		}
	})
}

// grantsWhatItSays asks for a free key by every verb, under that character set. Each either
// fails, or has it locked.
func grantsWhatItSays(t *testing.T, db *testdb.DB, pool *sql.DB, key txlock.Key) {
	t.Helper()
	for _, name := range []string{"Lock", "RLock", "TryLock", "LockAll", "CompareAndBump"} {
		tx, scope := joined(t, pool)
		exec(t, tx, "SET character_set_results = utf16")
		err := verbs[name](t.Context(), scope, key)
		if err == nil && isFree(t, db, key) {
			t.Errorf("%s, guarded: %t: another has the key, too", name, scope.Guarded())
		}
		wantHeld(t, fmt.Sprintf("%s, guarded: %t: after %v", name, scope.Guarded(), err), scope, key, err == nil)
		if _, again := scope.TryLock(t.Context(), key); errors.Is(err, fault.ErrReply) && !errors.Is(again, txlock.ErrTxDoomed) {
			t.Errorf("%s, guarded: %t: after %v a lock answers %v", name, scope.Guarded(), err, again)
		}
		_ = tx.Rollback()
		resetCharset(t, pool)
	}
}

// resetCharset makes the pool's connection answer in the usual character set again.
func resetCharset(t *testing.T, pool *sql.DB) {
	t.Helper()
	conn := takeConn(t, pool)
	exec(t, conn, "SET character_set_results = utf8mb4")
	check(t, conn.Close())
}
