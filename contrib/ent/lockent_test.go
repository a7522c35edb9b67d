package lockent_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/sqlgraph"
	"entgo.io/ent/schema/field"

	lockent "github.com/dca00107/lockstep/contrib/ent"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// stock is a database with a table of two rows, of five pieces each.
type stock struct {
	*sql.DB
	table string
}

func onServers(t *testing.T, test func(t *testing.T, db stock)) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		server := testdb.Open(t, engine)
		table := server.CreateTable(t, "stock", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL")
		server.Exec(t, "INSERT INTO "+table+" VALUES (1, 5), (2, 5)")
		db := testdb.Got(locksqlc.Open(server.DSN()))(t)
		t.Cleanup(func() { check(t, db.Close()) })
		test(t, stock{db, table})
	})
}

var check, wantError = testdb.Must, testdb.Wants

// set is the statement of an ent client for Stock.UpdateOneID(id).SetN(n).
func (s stock) set(ctx context.Context, drv dialect.Driver, id, n int64) error {
	spec := sqlgraph.NewUpdateSpec(s.table, []string{"id", "n"}, sqlgraph.NewFieldSpec("id", field.TypeInt64))
	spec.Node.ID.Value = id
	spec.SetField("n", field.TypeInt64, n)
	spec.ScanValues = func([]string) ([]any, error) { return []any{new(int64), new(int64)}, nil }
	spec.Assign = func([]string, []any) error { return nil }
	return sqlgraph.UpdateNode(ctx, drv, spec)
}

func (s stock) want(t *testing.T, one, two int64) {
	t.Helper()
	for i, want := range []int64{one, two} {
		id := i + 1
		var n int64
		check(t, s.QueryRowContext(t.Context(), "SELECT n FROM "+s.table+" WHERE id = ?", id).Scan(&n))
		testdb.Equal(t, fmt.Sprint("row ", id), n, want)
	}
}

var products = txlock.NewFamily[int64]("ent")

// TestInnerTransactions proves that what is rolled back in an inner transaction is undone,
// that the rest is committed with the transaction of Run, or not at all, and that options are refused.
func TestInnerTransactions(t *testing.T) {
	onServers(t, func(t *testing.T, db stock) {
		ctx, no := t.Context(), errors.New("no")
		run := func(result error) error {
			return locksqlc.Run(ctx, db.DB, products.Keys(1), func(tx *sql.Tx) error {
				drv := lockent.Driver(tx)
				check(t, db.set(ctx, drv, 1, 4)) // ent begins and commits a transaction for it
				inner := testdb.Got(drv.Tx(ctx))(t)
				check(t, db.set(ctx, txDriver{drv, inner}, 2, 3))
				check(t, inner.Rollback())
				for _, err := range []error{
					inner.Rollback(), inner.Commit(), inner.Exec(ctx, "DO 1", []any{}, nil), inner.Query(ctx, "SELECT 1", []any{}, new(entsql.Rows)),
				} {
					wantError(t, "after the end of an inner transaction", err, sql.ErrTxDone)
				}
				begins := drv.(interface {
					BeginTx(context.Context, *sql.TxOptions) (dialect.Tx, error)
				})
				_, err := begins.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
				testdb.Fails(t, "BeginTx with options", err, "takes no options")
				check(t, testdb.Got(begins.BeginTx(ctx, nil))(t).Commit())
				check(t, drv.Close())
				locks := testdb.Got(locksqlc.Join(ctx, tx))(t)
				_, held := locks.Held(products.Key(1))
				testdb.ErrorIf(t, !held, "the lock of Run is not held behind a savepoint")
				return result
			})
		}
		wantError(t, "Run", run(no), no)
		db.want(t, 5, 5)
		check(t, run(nil))
		db.want(t, 4, 5)
	})
	defer func() { testdb.ErrorIf(t, recover() == nil, "Driver(nil) returns") }()
	lockent.Driver(nil)
}

// txDriver is what ent generates for the statements of its transactions.
type txDriver struct {
	dialect.Driver
	inner dialect.Tx
}

func (d txDriver) Exec(ctx context.Context, query string, args, v any) error {
	return d.inner.Exec(ctx, query, args, v)
}

func (d txDriver) Query(ctx context.Context, query string, args, v any) error {
	return d.inner.Query(ctx, query, args, v)
}

func (d txDriver) Tx(context.Context) (dialect.Tx, error) { return dialect.NopTx(d), nil }

// TestAnErrorUndoesItsTransaction proves that nothing of a failed statement is kept where the program
// ignores its error.
func TestAnErrorUndoesItsTransaction(t *testing.T) {
	onServers(t, func(t *testing.T, db stock) {
		ctx := t.Context()
		check(t, locksqlc.Run(ctx, db.DB, products.Keys(1), func(tx *sql.Tx) error {
			drv := lockent.Driver(tx)
			cancelled, cancel := context.WithCancel(ctx)
			inner := testdb.Got(drv.Tx(cancelled))(t)
			check(t, inner.Exec(cancelled, "UPDATE "+db.table+" SET n = 0 WHERE id = 2", []any{}, nil))
			cancel()
			wantError(t, "Commit after the context's end", inner.Commit(), context.Canceled)
			testdb.Fails(t, "an update of a row that doesn't exist", db.set(ctx, drv, 3, 1))
			return db.set(ctx, drv, 1, 1)
		}))
		db.want(t, 1, 5)
	})
}
