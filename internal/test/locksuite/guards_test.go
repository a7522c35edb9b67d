package locksuite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/dca00107/lockstep/internal/test/locksuite/rowsdb"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// rowsDB is a database with lockstep's tables and suite_rows.
func rowsDB(t *testing.T, engine testdb.Engine) *testdb.DB {
	t.Helper()
	db := testdb.Shared(t, engine).OpenLeases(t)
	db.Exec(t, "CREATE TABLE suite_rows (id BIGINT NOT NULL PRIMARY KEY, kind BIGINT NOT NULL, n BIGINT NOT NULL, KEY by_kind (kind))")
	db.Grant(t, "suite_rows")
	tx, err := db.Admin().BeginTx(t.Context(), nil)
	check(t, err)
	defer tx.Rollback() //nolint:errcheck // after a commit, or on the way out with an error that says more
	fill := rowsdb.New(tx)
	for id := int64(1); id <= 300; id++ {
		check(t, fill.Fill(t.Context(), rowsdb.FillParams{ID: id, Kind: id % 10, N: 0}))
	}
	check(t, tx.Commit())
	return db
}

// TestStaleSnapshot has a transaction read, then lock, while another one has
// raised the number between the two. Without the snapshot check it is given the
// lock, reads the old number again and overwrites the new one; with it it is
// refused.
func TestStaleSnapshot(t *testing.T) {
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := rowsDB(t, engine)
		// On a plain pool NothingRead, said where it isn't true, is no guard.
		check(t, raiseLate(t, db.Connect(t, db.Overwriting(t)), txlock.NothingRead()))
		if n := number(t, db, 1); n != 1 {
			t.Errorf("%d after two increments without the guard: this test can't tell", n)
		}
		for n, pool := range []*sql.DB{db.Connect(t), guarded(t, db)} {
			if err := raiseLate(t, pool); !errors.Is(err, txlock.ErrStaleSnapshot) {
				t.Errorf("guarded %t: %v, want ErrStaleSnapshot", n == 1, err)
			}
			if got := number(t, db, 1); got != int64(n+2) {
				t.Errorf("guarded %t: %d after one increment of %d and one refusal", n == 1, got, n+1)
			}
		}
	})
}

// raiseLate raises a number in a transaction that has read before, while another
// one raises it under the lock.
func raiseLate(t *testing.T, pool *sql.DB, options ...txlock.JoinOption) error {
	t.Helper()
	ctx, key := t.Context(), txlock.Named("late")
	raise := func(tx *sql.Tx) error {
		n, err := rowsdb.New(tx).Get(ctx, 1)
		if err != nil {
			return err
		}
		return rowsdb.New(tx).Set(ctx, rowsdb.SetParams{N: n + 1, ID: 1})
	}
	tx, err := pool.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	check(t, err)
	defer tx.Rollback() //nolint:errcheck // after a commit, or on the way out with an error that says more
	check(t, second(rowsdb.New(tx).Get(ctx, 1)))
	check(t, locksqlc.Run(ctx, pool, []txlock.Key{key}, raise))
	scope, err := locksqlc.Join(ctx, tx, options...)
	check(t, err)
	if _, err := scope.Lock(ctx, key); err != nil {
		return err
	}
	check(t, raise(tx))
	return tx.Commit()
}

func number(t *testing.T, db *testdb.DB, id int64) int64 {
	t.Helper()
	n, err := rowsdb.New(db.Admin()).Get(t.Context(), id)
	check(t, err)
	return n
}

// TestDoomedSqlc makes each kind of generated query the victim of a deadlock,
// swallows the error and writes on. On a plain pool that write survives without the
// one before the deadlock; on a guarded one it is refused, and Commit with it.
func TestDoomedSqlc(t *testing.T) {
	type queries = rowsdb.Queries
	hides := map[string]func(ctx context.Context, q *queries) error{
		"exec":           func(ctx context.Context, q *queries) error { return second(q.Touch(ctx, 20)) },
		"one":            func(ctx context.Context, q *queries) error { return second(q.GetForUpdate(ctx, 20)) },
		"one, LIMIT":     func(ctx context.Context, q *queries) error { return second(q.FirstForUpdate(ctx, 20)) },
		"one, aggregate": func(ctx context.Context, q *queries) error { return second(q.SumForUpdate(ctx, 15)) },
		"many, range": func(ctx context.Context, q *queries) error {
			return second(q.RangeForUpdate(ctx, rowsdb.RangeForUpdateParams{FromID: 15, ToID: 25}))
		},
		"many, secondary index": func(ctx context.Context, q *queries) error { return second(q.KindForUpdate(ctx, 0)) },
	}
	for _, engine := range testdb.Engines() {
		for name, hide := range hides {
			for _, prepared := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/prepared=%t", engine, name, prepared), func(t *testing.T) {
					t.Parallel()
					db := rowsDB(t, engine)
					for _, onGuarded := range []bool{false, true} {
						writeErr, commitErr := swallowDeadlock(t, db, poolOf(t, db, onGuarded, interpolating), prepared, hide)
						if before := number(t, db, 1); before != 0 {
							t.Errorf("the write before the deadlock survived as %d", before)
						}
						switch n := number(t, db, 300); {
						case !onGuarded && n != 99:
							t.Errorf("the write after the deadlock did not survive on a plain pool (%v, %v): this test can't tell", writeErr, commitErr)
						case onGuarded && n != 0:
							t.Errorf("the write after the deadlock survived as %d", n)
						case onGuarded && (!errors.Is(writeErr, txlock.ErrTxDoomed) || !errors.Is(commitErr, txlock.ErrTxDoomed)):
							t.Errorf("got %v and from Commit %v, want ErrTxDoomed", writeErr, commitErr)
						}
						db.Exec(t, "UPDATE suite_rows SET n = 0")
					}
				})
			}
		}
	}
}

// swallowDeadlock makes hide the victim, writes on as if nothing had happened, and
// commits. MariaDB 10.6 and 11.4 begin a transaction for that write, which only COMMIT
// keeps; MariaDB 10.11 and 11.8 and MySQL execute it in autocommit.
func swallowDeadlock(t *testing.T, db *testdb.DB, pool *sql.DB, prepared bool, hide func(context.Context, *rowsdb.Queries) error) (writeErr, commitErr error) {
	t.Helper()
	ctx := t.Context()
	conn, id := connection(t, pool)
	defer conn.Close()
	victim, err := conn.BeginTx(ctx, nil)
	check(t, err)
	queries := rowsdb.New(victim)
	if prepared {
		all, err := rowsdb.Prepare(ctx, pool)
		check(t, err)
		defer all.Close()
		queries = all.WithTx(victim)
	}
	other, err := db.Admin().BeginTx(ctx, nil)
	check(t, err)
	defer other.Rollback() //nolint:errcheck // it has done its part; first of all, so that the victim waits no more
	check(t, second(queries.Touch(ctx, 1)))
	// The one that has changed more rows is not the victim.
	exec(t, other, "UPDATE suite_rows SET n = n + 1 WHERE id BETWEEN 20 AND 290")
	hidden := make(chan error, 1)
	go func() { hidden <- hide(ctx, queries) }()
	db.WaitForLockWait(t, id)
	if _, err := other.ExecContext(ctx, "UPDATE suite_rows SET n = n + 1 WHERE id = 1"); err != nil {
		t.Fatalf("the other transaction is the victim: %v", err)
	}
	if err := <-hidden; !txlock.Retryable(err) {
		t.Fatalf("got %v, want a deadlock", err)
	}
	check(t, other.Rollback())
	writeErr = queries.Set(ctx, rowsdb.SetParams{N: 99, ID: 300})
	return writeErr, victim.Commit()
}
