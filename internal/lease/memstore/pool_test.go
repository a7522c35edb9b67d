package memstore_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var must = leasetest.Must

var ctx = context.Background()

var leaseRow = store.Row{Key: "job"}

// TestPool proves that a pool leads to its store, is the same each time, takes no SQL, and loses answers.
func TestPool(t *testing.T) {
	s := memstore.New().Store()
	pool := s.Pool()
	testdb.ErrorIf(t, store.Of(pool) != store.Store(s) || s.Pool() != pool, "the pool has another store, or the store another pool")
	must(t, pool.PingContext(ctx))
	s.Down(nil)
	leasetest.Wants(t, "a ping of a server that is down", pool.PingContext(ctx), mysql.ErrInvalidConn)
	s.Up()
	_, err := pool.ExecContext(ctx, "DO 1")
	leasetest.Fails(t, "a statement", err, "no SQL")
	tx, err := pool.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	must(t, err)
	leasetest.Fails(t, "a statement in a transaction", tx.QueryRowContext(ctx, "SELECT 1").Scan(new(int)), "no SQL")
	must(t, tx.Rollback())
	for _, o := range []sql.TxOptions{{ReadOnly: true}, {Isolation: sql.LevelSerializable}} {
		if _, err := pool.BeginTx(ctx, &o); err == nil {
			t.Errorf("there is a transaction with %+v", o)
		}
	}
	must(t, s.Make(ctx, leaseRow))
	s.SetFault(func(_ context.Context, _ string, _ store.Row, call func() error) error {
		return errors.Join(call(), mysql.ErrInvalidConn)
	})
	if seen, err := s.Look(ctx, leaseRow); err == nil || seen != (store.Glance{}) {
		t.Errorf("an answer that is lost is %+v, %v", seen, err)
	}
	must(t, pool.Close())
}
