package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/txlock"
)

// These examples need a database, so they are compiled and not run. examples/start has
// programs that can be pasted.

var (
	orderKeys   = txlock.NewFamily[int64]("order")
	productKeys = txlock.NewFamily[int64]("product", txlock.Hashed())
)

// Locks join the transaction that is open already, and end with it. With sqlc there is locksqlc.Join, with GORM lockgorm.Join.
func ExampleJoin() {
	pay := func(ctx context.Context, tx *sql.Tx, order int64) error {
		locks, err := txlock.Join(ctx, tx)
		if err != nil {
			return err
		}
		if _, err := locks.Lock(ctx, orderKeys.Key(order)); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE orders SET paid = 1 WHERE id = ?", order)
		return err // COMMIT or ROLLBACK frees the lock
	}
	_ = pay
}

// A function that is handed a DBTX, as sqlc's methods are with emit_methods_with_db_argument.
func ExampleJoinDBTX() {
	pay := func(ctx context.Context, tx gen.DBTX, order int64) error {
		locks, err := txlock.JoinDBTX(ctx, tx)
		if err != nil {
			return err // ErrNoTransaction, if it is a pool
		}
		_, err = locks.Lock(ctx, orderKeys.Key(order))
		return err
	}
	_ = pay
}

func ExampleScope_Lock() {
	ship := func(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, order int64) error {
		grant, err := locks.Lock(ctx, orderKeys.Key(order)) // waits for who holds it
		if err != nil {
			return err // Retryable tells whether to run the transaction again
		}
		_, err = tx.ExecContext(ctx, "UPDATE orders SET shipped_by = ? WHERE id = ?", grant.Token(), order)
		return err
	}
	_ = ship
}

// The keys are taken in one order, whatever the order of the arguments is, so that two of these transfers don't deadlock.
func ExampleScope_LockAll() {
	transfer := func(ctx context.Context, locks *txlock.Scope, from, to int64) error {
		accounts := txlock.NewFamily[int64]("account")
		_, err := locks.LockAll(ctx, accounts.Keys(from, to)...)
		return err
	}
	_ = transfer
}

// A product has its stock in four parts, so that four buyers don't wait for each other.
func ExampleScope_LockAny() {
	buy := func(ctx context.Context, locks *txlock.Scope, product int64) (part txlock.Key, err error) {
		grant, err := locks.LockAny(ctx, txlock.Segments(productKeys.Key(product), 4)...)
		return grant.Key(), err // ErrBusy: all four are held
	}
	_ = buy
}

func ExampleScope_TryLock() {
	tidy := func(ctx context.Context, locks *txlock.Scope, order int64) error {
		_, err := locks.TryLock(ctx, orderKeys.Key(order))
		if errors.Is(err, txlock.ErrBusy) {
			return nil // somebody works on it; the transaction goes on
		}
		return err
	}
	_ = tidy
}

// Any number of readers hold the key together, and keep writers out.
func ExampleScope_RLock() {
	sum := func(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, order int64) (total int64, err error) {
		if _, err := locks.RLock(ctx, orderKeys.Key(order)); err != nil {
			return 0, err
		}
		err = tx.QueryRowContext(ctx, "SELECT SUM(price) FROM items WHERE order_id = ?", order).Scan(&total)
		return total, err
	}
	_ = sum
}

func ExampleScope_RLockAll() {
	compare := func(ctx context.Context, locks *txlock.Scope, a, b int64) error {
		_, err := locks.RLockAll(ctx, orderKeys.Keys(a, b)...)
		return err
	}
	_ = compare
}

func ExampleScope_TryRLock() {
	preview := func(ctx context.Context, locks *txlock.Scope, order int64) (current bool, err error) {
		_, err = locks.TryRLock(ctx, orderKeys.Key(order))
		if errors.Is(err, txlock.ErrBusy) {
			return false, nil // somebody writes it just now
		}
		return err == nil, err
	}
	_ = preview
}

// What belongs to the answer goes into the same transaction: then it is done exactly once.
func ExampleScope_Once() {
	receive := func(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, id string, body []byte) error {
		messages := txlock.NewFamily[string]("message", txlock.Exact())
		first, err := locks.Once(ctx, messages.Key(id), txlock.Fingerprint(body), txlock.Keep(72*time.Hour))
		if err != nil || !first {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO payments (body) VALUES (?)", body)
		return err
	}
	_ = receive
}

// Verify tells before COMMIT whether the transaction and its locks are still there, for
// code on a plain pool. A guarded pool does so by itself.
func ExampleScope_Verify() {
	commit := func(ctx context.Context, tx *sql.Tx, locks *txlock.Scope) error {
		if err := locks.Verify(ctx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	_ = commit
}

// LockWith lets the SELECT take the lock with it, so that a sale has two round trips.
func ExampleScope_LockWith() {
	sell := func(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, product int64) error {
		var left int
		read := locks.LockWith(ctx, orderKeys.Key(product))
		if err := tx.QueryRowContext(read, "SELECT n FROM stock WHERE id = ?", product).Scan(&left); err != nil {
			return err
		}
		_, err := tx.ExecContext(locks.CommitWith(ctx, 1), "UPDATE stock SET n = ? WHERE id = ?", left-1, product)
		return err
	}
	_ = sell
}

// CommitWith sends the last statement together with COMMIT. If it changes no row, because nothing is left, nothing is committed.
func ExampleScope_CommitWith() {
	sell := func(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, product int64) error {
		if _, err := locks.Lock(ctx, orderKeys.Key(product)); err != nil {
			return err
		}
		var left int
		if err := tx.QueryRowContext(ctx, "SELECT n FROM stock WHERE id = ?", product).Scan(&left); err != nil {
			return err
		}
		_, err := tx.ExecContext(locks.CommitWith(ctx, 1), "UPDATE stock SET n = ? WHERE id = ? AND n > 0", left-1, product)
		return err // nil: it is committed; txlock.ErrRows: it is not
	}
	_ = sell
}

// AfterCommit empties a cache when the new price is committed, and not if the transaction is
// rolled back. Run calls the function before it returns.
func ExampleScope_AfterCommit() {
	price := func(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, product, price int64, forget func(product int64)) error {
		if _, err := locks.Lock(ctx, orderKeys.Key(product)); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE stock SET price = ? WHERE id = ?", price, product); err != nil {
			return err
		}
		return locks.AfterCommit(func() { forget(product) })
	}
	_ = price
}

// Version and CompareAndBump find a conflict instead of waiting for a lock.
func ExampleScope_Version() {
	edit := func(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, order int64) error {
		version, err := locks.Version(ctx, orderKeys.Key(order)) // before what is read
		if err != nil {
			return err
		}
		var note string
		if err := tx.QueryRowContext(ctx, "SELECT note FROM orders WHERE id = ?", order).Scan(&note); err != nil {
			return err
		}
		if err := locks.CompareAndBump(ctx, orderKeys.Key(order), version); err != nil {
			return err // ErrConflict: somebody was faster
		}
		_, err = tx.ExecContext(ctx, "UPDATE orders SET note = ? WHERE id = ?", note+"!", order)
		return err
	}
	_ = edit
}

// A form is shown in one request and saved in another one; it carries the version.
func ExampleScope_CompareAndBump() {
	save := func(ctx context.Context, tx *sql.Tx, locks *txlock.Scope, order int64, shown uint64, note string) error {
		err := locks.CompareAndBump(ctx, orderKeys.Key(order), shown)
		if errors.Is(err, txlock.ErrConflict) {
			return fmt.Errorf("show the form again: %w", err)
		}
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE orders SET note = ? WHERE id = ?", note, order)
		return err
	}
	_ = save
}

func ExampleReadVersion() {
	show := func(ctx context.Context, db *sql.DB, order int64) (version uint64, err error) {
		return txlock.ReadVersion(ctx, db, orderKeys.Key(order)) // before what the form shows is read
	}
	_ = show
}

// A function that relies on its caller's lock says so.
func ExampleAssertLocked() {
	ship := func(ctx context.Context, tx *sql.Tx, order int64) error {
		if err := txlock.AssertLocked(ctx, tx, orderKeys.Key(order)); err != nil {
			return err // a mistake of the program: the caller has not locked the order
		}
		_, err := tx.ExecContext(ctx, "UPDATE orders SET shipped = 1 WHERE id = ?", order)
		return err
	}
	_ = ship
}

func ExampleAssertRLocked() {
	total := func(ctx context.Context, tx *sql.Tx, order int64) (sum int64, err error) {
		if err := txlock.AssertRLocked(ctx, tx, orderKeys.Key(order)); err != nil {
			return 0, err // neither Lock nor RLock was called
		}
		err = tx.QueryRowContext(ctx, "SELECT SUM(price) FROM items WHERE order_id = ?", order).Scan(&sum)
		return sum, err
	}
	_ = total
}

// At the start of a program: is the pool guarded, and does no wrapper hide that?
func ExampleCheckGuarded() {
	start := func(ctx context.Context, db *sql.DB) error {
		if err := txlock.CheckGuarded(ctx, db); err != nil {
			return fmt.Errorf("the pool of the shop: %w", err) // ErrUnguarded, with what to do
		}
		return nil
	}
	_ = start
}

// A set of named keys that grows is cleaned once a day. Hashed families need no cleaning.
func ExamplePurge() {
	daily := func(ctx context.Context, db *sql.DB) error {
		removed, err := txlock.Purge(ctx, db, 30*24*time.Hour)
		fmt.Println("keys removed:", removed)
		return err
	}
	_ = daily
}

func ExampleEnsure() {
	start := func(ctx context.Context, db *sql.DB) error {
		return txlock.Ensure(ctx, db, txlock.Named("settlement"), txlock.Named("stock-count"))
	}
	_ = start
}

func ExamplePurgeOnce() {
	hourly := func(ctx context.Context, db *sql.DB) error {
		removed, err := txlock.PurgeOnce(ctx, db)
		fmt.Println("requests forgotten:", removed)
		return err
	}
	_ = hourly
}

func ExampleHolders() {
	who := func(ctx context.Context, db *sql.DB, order int64) error {
		holders, err := txlock.Holders(ctx, db, orderKeys.Key(order))
		for _, h := range holders {
			fmt.Printf("%v is held by %s, session %d, since %v\n", h.Key, h.Label, h.Session, h.Locked)
		}
		return err
	}
	_ = who
}

// A refusal names who holds the key. On a guarded pool it is an option of locksqlc.Open.
func ExampleNameHolders() {
	pay := func(ctx context.Context, db *sql.DB, tx *sql.Tx, order int64) error {
		locks, err := txlock.Join(ctx, tx, txlock.NameHolders(db))
		if err != nil {
			return err
		}
		_, err = locks.TryLock(ctx, orderKeys.Key(order))
		if held := (*txlock.HeldError)(nil); errors.As(err, &held) {
			fmt.Printf("%s holds it in session %d\n", held.Label, held.Session)
		}
		return err
	}
	_ = pay
}

// Holders, observers and errors show the label.
func ExampleWithLabel() {
	handle := func(ctx context.Context, locks *txlock.Scope, request string, order int64) error {
		_, err := locks.Lock(txlock.WithLabel(ctx, request), orderKeys.Key(order))
		return err
	}
	_ = handle
}
