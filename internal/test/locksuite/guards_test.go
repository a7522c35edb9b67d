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

// client is a user's code inside a transaction, in one of two styles.
type client struct {
	name string
	join func(ctx context.Context, tx *sql.Tx, options ...txlock.JoinOption) (*txlock.Scope, error)
	get  func(ctx context.Context, tx *sql.Tx, id int64) (int64, error)
	set  func(ctx context.Context, tx *sql.Tx, id, n int64) error
}

var clients = []client{
	{
		name: "database/sql",
		join: locksqlc.Join,
		get: func(ctx context.Context, tx *sql.Tx, id int64) (n int64, err error) {
			err = tx.QueryRowContext(ctx, "SELECT n FROM suite_rows WHERE id = ?", id).Scan(&n)
			return n, err
		},
		set: func(ctx context.Context, tx *sql.Tx, id, n int64) error {
			_, err := tx.ExecContext(ctx, "UPDATE suite_rows SET n = ? WHERE id = ?", n, id)
			return err
		},
	},
	{
		name: "sqlc",
		join: locksqlc.Join,
		get:  func(ctx context.Context, tx *sql.Tx, id int64) (int64, error) { return rowsdb.New(tx).Get(ctx, id) },
		set: func(ctx context.Context, tx *sql.Tx, id, n int64) error {
			return rowsdb.New(tx).Set(ctx, rowsdb.SetParams{N: n, ID: id})
		},
	},
}

// rowsDB is a database with lockstep's tables and suite_rows.
func rowsDB(t *testing.T, engine testdb.Engine) *testdb.DB {
	t.Helper()
	db := testdb.Shared(t, engine).OpenLeases(t)
	db.Exec(t, "CREATE TABLE suite_rows (id BIGINT NOT NULL PRIMARY KEY, kind BIGINT NOT NULL, n BIGINT NOT NULL, KEY by_kind (kind))")
	db.Grant(t, "suite_rows")
	tx, err := db.Admin().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit, or on the way out with an error that says more
	fill := rowsdb.New(tx)
	for id := int64(1); id <= 300; id++ {
		if err := fill.Fill(t.Context(), rowsdb.FillParams{ID: id, Kind: id % 10, N: 0}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return db
}

// TestStaleSnapshot has a transaction read, then lock, while another one has
// raised the number between the two. Without the snapshot check it is given the
// lock, reads the old number again and overwrites the new one; with it it is
// refused.
func TestStaleSnapshot(t *testing.T) {
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := rowsDB(t, engine)
			bare, plain, guardedPool := db.Connect(t, db.Overwriting(t)), db.Connect(t), guarded(t, db)
			for i, c := range clients {
				id := int64(i + 1)
				t.Run(c.name+"/guard off", func(t *testing.T) {
					// On a plain pool NothingRead, said where it isn't true, is no guard.
					if err := raiseLate(t, c, bare, id, txlock.NothingRead()); err != nil {
						t.Fatal(err)
					}
					if n := number(t, db, id); n != 1 {
						t.Errorf("%d after two increments without the guard: this test can't tell", n)
					}
				})
				for _, pool := range []struct {
					name string
					db   *sql.DB
				}{{"plain", plain}, {"guarded", guardedPool}} {
					t.Run(c.name+"/guard on, "+pool.name, func(t *testing.T) {
						before := number(t, db, id)
						if err := raiseLate(t, c, pool.db, id); !errors.Is(err, txlock.ErrStaleSnapshot) {
							t.Errorf("got %v, want ErrStaleSnapshot", err)
						}
						if n := number(t, db, id); n != before+1 {
							t.Errorf("%d after one increment of %d and one refusal", n, before)
						}
					})
				}
			}
		})
	}
}

// raiseLate raises a number in a transaction that has read before, while another
// one raises it under the lock.
func raiseLate(t *testing.T, c client, pool *sql.DB, id int64, options ...txlock.JoinOption) error {
	t.Helper()
	ctx := t.Context()
	key := txlock.Named(fmt.Sprintf("late/%s/%d", c.name, id))
	raise := func(tx *sql.Tx) error {
		n, err := c.get(ctx, tx, id)
		if err != nil {
			return err
		}
		return c.set(ctx, tx, id, n+1)
	}
	tx, err := pool.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit, or on the way out with an error that says more
	if _, err := c.get(ctx, tx, id); err != nil {
		return err
	}
	if err := locksqlc.Run(ctx, pool, []txlock.Key{key}, raise); err != nil {
		return err
	}
	scope, err := c.join(ctx, tx, options...)
	if err != nil {
		return err
	}
	if _, err := scope.Lock(ctx, key); err != nil {
		return err
	}
	if err := raise(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func number(t *testing.T, db *testdb.DB, id int64) int64 {
	t.Helper()
	n, err := rowsdb.New(db.Admin()).Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDoomedSqlc makes each kind of generated query the victim of a deadlock,
// swallows the error and writes on. On a plain pool that write survives without the
// one before the deadlock; on a guarded one it is refused, and Commit with it.
func TestDoomedSqlc(t *testing.T) {
	hides := map[string]func(ctx context.Context, q *rowsdb.Queries) error{
		"exec":           func(ctx context.Context, q *rowsdb.Queries) error { _, err := q.Touch(ctx, 20); return err },
		"one":            func(ctx context.Context, q *rowsdb.Queries) error { _, err := q.GetForUpdate(ctx, 20); return err },
		"one, LIMIT":     func(ctx context.Context, q *rowsdb.Queries) error { _, err := q.FirstForUpdate(ctx, 20); return err },
		"one, aggregate": func(ctx context.Context, q *rowsdb.Queries) error { _, err := q.SumForUpdate(ctx, 15); return err },
		"many, range": func(ctx context.Context, q *rowsdb.Queries) error {
			_, err := q.RangeForUpdate(ctx, rowsdb.RangeForUpdateParams{FromID: 15, ToID: 25})
			return err
		},
		"many, secondary index": func(ctx context.Context, q *rowsdb.Queries) error { _, err := q.KindForUpdate(ctx, 0); return err },
	}
	for _, engine := range testdb.Engines() {
		for name, hide := range hides {
			for _, prepared := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/prepared=%t", engine, name, prepared), func(t *testing.T) {
					t.Parallel()
					db := rowsDB(t, engine)
					for _, onGuarded := range []bool{false, true} {
						pool := db.Connect(t)
						if onGuarded {
							pool = guarded(t, db)
						}
						writeErr, commitErr := swallowDeadlock(t, db, pool, prepared, hide)
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
	conn, err := pool.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	id := testdb.ConnID(t, conn)
	victim, err := conn.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	queries := rowsdb.New(victim)
	if prepared {
		all, err := rowsdb.Prepare(ctx, pool)
		if err != nil {
			t.Fatal(err)
		}
		defer all.Close()
		queries = all.WithTx(victim)
	}
	other, err := db.Admin().BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback() //nolint:errcheck // it has done its part; first of all, so that the victim waits no more
	if _, err := queries.Touch(ctx, 1); err != nil {
		t.Fatal(err)
	}
	// The one that has changed more rows is not the victim.
	if _, err := other.ExecContext(ctx, "UPDATE suite_rows SET n = n + 1 WHERE id BETWEEN 20 AND 290"); err != nil {
		t.Fatal(err)
	}
	hidden := make(chan error, 1)
	go func() { hidden <- hide(ctx, queries) }()
	db.WaitForLockWait(t, id)
	if _, err := other.ExecContext(ctx, "UPDATE suite_rows SET n = n + 1 WHERE id = 1"); err != nil {
		t.Fatalf("the other transaction is the victim: %v", err)
	}
	if err := <-hidden; !txlock.Retryable(err) {
		t.Fatalf("got %v, want a deadlock", err)
	}
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
	writeErr = queries.Set(ctx, rowsdb.SetParams{N: 99, ID: 300})
	return writeErr, victim.Commit()
}
