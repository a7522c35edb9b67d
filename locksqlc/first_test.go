package locksqlc_test

import (
	"database/sql"
	"fmt"
	"strings"
	"sync"
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

// TestLockWithSells proves that nobody loses an update who reads with a lock and writes with a
// COMMIT, new keys and rows included, and that a sale has two round trips.
func TestLockWithSells(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "sells", "id INT PRIMARY KEY, n INT")
		trips, counting := testdb.CountTrips(t)
		pool := newPool(t, db.Config(counting, interpolating), true)
		const workers, sales = 8, 25
		sell := func(key txlock.Key, id int) error {
			return locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
				s, err := locksqlc.Join(t.Context(), tx)
				if err != nil {
					return err
				}
				n := 0
				if err := tx.QueryRowContext(s.LockWith(t.Context(), key), "SELECT n FROM "+table+" WHERE id = ?", id).Scan(&n); err != nil {
					return err
				}
				return second(tx.ExecContext(s.CommitWith(t.Context(), 1), "UPDATE "+table+" SET n = ? WHERE id = ?", n-1, id))
			})
		}
		for id := range 4 {
			key := uniqueKey(t, "sells")
			if id%2 == 1 {
				key = hashedKeys.Key(key.String())
			}
			db.Exec(t, fmt.Sprintf("INSERT INTO %s VALUES (%d, 1000)", table, id))
			var all sync.WaitGroup
			for range workers {
				all.Go(func() {
					for range sales {
						if err := sell(key, id); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			left := count(t, db.Admin(), fmt.Sprintf("SELECT n FROM %s WHERE id = %d", table, id))
			if left != 1000-workers*sales {
				t.Errorf("%v: %d are left of 1000 after %d sales", key, left, workers*sales)
			}
			before := trips.Count()
			check(t, sell(key, id))
			if n := trips.Count() - before; n != 2 && sharesTexts(db.Engine()) {
				t.Errorf("a sale has %d round trips", n)
			}
		}
	})
}

// TestLockWithDroppedProcedures proves that a pool which finds out by LockWith or CommitWith that
// a MySQL has no procedures does without.
func TestLockWithDroppedProcedures(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if db.Engine() != testdb.MySQL {
			return // others need none
		}
		own := testdb.Shared(t, db.Engine()).Open(t)
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
		own := testdb.Shared(t, db.Engine()).Open(t)
		own.Exec(t, "DELETE FROM lockstep_centers")
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
