package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/idempotency"
)

// These examples need a database, so they are compiled and not run.

// Run locks, runs the function in a transaction, and commits. After a deadlock it does so
// again.
func ExampleRun() {
	pay := func(ctx context.Context, db *sql.DB, order int64) error {
		return locksqlc.Run(ctx, db, Orders.Keys(order), func(tx *sql.Tx) error {
			return queries.WithTx(tx).PayOrder(ctx, order)
		})
	}
	_ = pay
}

func ExampleRun_isolation() {
	pay := func(ctx context.Context, db *sql.DB, order int64) error {
		level := &sql.TxOptions{Isolation: sql.LevelReadCommitted}
		return locksqlc.Run(ctx, db, Orders.Keys(order), func(tx *sql.Tx) error {
			return queries.WithTx(tx).PayOrder(ctx, order)
		}, level)
	}
	_ = pay
}

func ExampleOptimistic_isolation() {
	pay := func(ctx context.Context, db *sql.DB, order int64) error {
		level := &sql.TxOptions{Isolation: sql.LevelReadCommitted}
		return locksqlc.Optimistic(ctx, db, Orders.Key(order), func(tx *sql.Tx) error {
			return queries.WithTx(tx).PayOrder(ctx, order)
		}, level)
	}
	_ = pay
}

// Who repeats the request gets the value of the first one.
func ExampleOnceValue() {
	charge := func(ctx context.Context, db *sql.DB, message, order int64) (receipt string, err error) {
		receipt, _, err = locksqlc.OnceValue(ctx, db, Messages.Key(message), func(tx *sql.Tx) (string, error) {
			return "receipt 1", queries.WithTx(tx).PayOrder(ctx, order)
		})
		return receipt, err
	}
	_ = charge
}

func ExampleTryDo() {
	report := func(ctx context.Context, db *sql.DB, write func(context.Context) error) error {
		err := locksqlc.TryDo(ctx, db, txlock.Named("nightly-report"), write)
		if errors.Is(err, txlock.ErrBusy) {
			return nil // another process writes it
		}
		return err
	}
	_ = report
}

// For a transaction that the program has begun by BEGIN on a connection.
func ExampleJoinConn() {
	pay := func(ctx context.Context, conn *sql.Conn, order int64) error {
		if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
			return err
		}
		locks, err := locksqlc.JoinConn(ctx, conn)
		if err == nil {
			_, err = locks.Lock(ctx, Orders.Key(order))
		}
		if err == nil {
			_, err = conn.ExecContext(ctx, "UPDATE orders SET paid = 1 WHERE id = ?", order)
		}
		if err != nil {
			_, back := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
			return errors.Join(err, back)
		}
		_, err = conn.ExecContext(ctx, "COMMIT")
		return err
	}
	_ = pay
}

// A handler behind OnceHandler works in the transaction of its request.
func ExampleTxOf() {
	pay := func(w http.ResponseWriter, r *http.Request) {
		if err := queries.WithTx(locksqlc.TxOf(r.Context())).PayOrder(r.Context(), 42); err != nil {
			idempotency.Fail(r.Context(), err)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	_ = pay
}
