package locksqlc_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

var hashedKeys = txlock.NewFamily[string]("first", txlock.Exact(), txlock.Hashed())

// told is what the rows say, and their error.
func told(t *testing.T, rows *sql.Rows, err error) string {
	t.Helper()
	if err != nil {
		return err.Error()
	}
	defer func() { check(t, rows.Close()) }()
	columns, err := rows.Columns()
	check(t, err)
	types, err := rows.ColumnTypes()
	check(t, err)
	var all strings.Builder
	for i, c := range columns {
		fmt.Fprintf(&all, "%s %s, ", c, types[i].DatabaseTypeName())
	}
	for rows.Next() {
		into := make([]any, len(columns))
		for i := range into {
			into[i] = new(any)
		}
		check(t, rows.Scan(into...))
		for _, v := range into {
			fmt.Fprintf(&all, "%#v, ", *v.(*any))
		}
	}
	fmt.Fprintf(&all, "%t %v", rows.NextResultSet(), rows.Err())
	return all.String()
}

// TestLockWithDroppedProcedures proves that a pool which finds out by LockWith or CommitWith that
// a MySQL has no procedures does without.
func TestLockWithDroppedProcedures(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if db.Engine() != testdb.MySQL {
			return // others need none
		}
		own := testdb.Shared(t, db.Engine()).OpenNamed(t, hashedKeys.Key("sells").Slot())
		own.DropProcedures(t)
		table := own.CreateTable(t, "sells", "id INT PRIMARY KEY, n INT")
		own.Exec(t, "INSERT INTO "+table+" VALUES (1, 10)")
		left := 10
		for _, first := range []string{"LockWith", "CommitWith"} {
			pool := newPool(t, own.Config(interpolating), true)
			for range 2 {
				for _, key := range []txlock.Key{uniqueKey(t, "sells"), hashedKeys.Key("sells")} {
					check(t, locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
						s := join(t, tx)
						ctx, n := t.Context(), 0
						if first == "LockWith" {
							ctx = s.LockWith(ctx, key)
						}
						check(t, tx.QueryRowContext(ctx, "SELECT n FROM "+table+" WHERE id = ?", 1).Scan(&n))
						grant, held := s.Held(key)
						if n != left || held != (first == "LockWith") || held && grant.Token() < 1000 {
							t.Errorf("%s: %d, held %t, %v", first, n, held, grant)
						}
						return second(tx.ExecContext(s.CommitWith(t.Context(), 1), "UPDATE "+table+" SET n = ? WHERE id = ?", n-1, 1))
					}))
					left--
				}
			}
		}
	})
}

// TestLockWithoutACenter proves that a read whose lock has no row returns an error, and no rows.
func TestLockWithoutACenter(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		own := testdb.Shared(t, db.Engine()).OpenNamed(t)
		err := locksqlc.Run(t.Context(), newPool(t, own.Config(interpolating), true), nil, func(tx *sql.Tx) error {
			s := join(t, tx)
			ctx := s.LockWith(t.Context(), hashedKeys.Key("none"))
			for range 2 {
				n := 0
				isError(t, "a center that is missing", tx.QueryRowContext(ctx, "SELECT 1").Scan(&n), txlock.ErrSchema)
			}
			return errInner
		})
		isError(t, "Run", err, errInner)
	})
}

// TestPreparedForAnotherContext proves that a statement which was prepared for LockWith or CommitWith
// is not executed without it.
func TestPreparedForAnotherContext(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, table, key := newPool(t, db.Config(), true), numbers(t, db), uniqueKey(t, "prepared")
		for name, mark := range map[string]func(s *txlock.Scope) context.Context{
			"LockWith":   func(s *txlock.Scope) context.Context { return s.LockWith(t.Context(), key) },
			"CommitWith": func(s *txlock.Scope) context.Context { return s.CommitWith(t.Context(), 1) },
		} {
			tx, s := joined(t, pool)
			ctx := mark(s)
			prepared, err := tx.PrepareContext(ctx, "UPDATE "+table+" SET v = v + 1")
			check(t, err)
			if _, err = prepared.ExecContext(t.Context()); !strings.Contains(fmt.Sprint(err), "prepared under") {
				t.Errorf("%s: %v", name, err)
			}
			check(t, second(prepared.ExecContext(ctx)))
			if _, held := s.Held(key); held != (name == "LockWith") {
				t.Errorf("%s: held %t", name, held)
			}
			check(t, prepared.Close())
			if err := tx.Rollback(); name == "LockWith" {
				check(t, err)
			}
		}
	})
}
