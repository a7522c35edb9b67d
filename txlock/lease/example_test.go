package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"log/slog"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// settle stands for the work of a program.
func settle(context.Context, *sql.Tx, int64) error { return nil }

func Example() {
	ctx, db := context.Background(), (*sql.DB)(nil)

	leases, err := lease.NewManager(db, lease.TTL(30*time.Second)) // once per program
	if err != nil {
		log.Fatal(err)
	}
	err = leases.Do(ctx, txlock.Named("settlement"), func(ctx context.Context, l *lease.Lease) error {
		return locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error { // ctx ends when the lease is lost
			if err := settle(ctx, tx, 42); err != nil {
				return err
			}
			return l.Guard(ctx, tx) // last: COMMIT only while the lease is ours
		})
	})
	if err != nil {
		log.Print(err)
	}

	if err := leases.Close(ctx); err != nil { // at the end of the program
		log.Print(err)
	}
}

// A job that needs to run at one place only, where there is nothing to do for the
// others.
func ExampleManager_TryAcquire() {
	run := func(ctx context.Context, leases *lease.Manager, report func(context.Context) error) (err error) {
		l, err := leases.TryAcquire(ctx, txlock.Named("nightly-report"))
		if errors.Is(err, txlock.ErrBusy) {
			return nil // another process is at it
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.Release(ctx)) }()

		working, cancel := l.Context(ctx) // ends when the lease is lost
		defer cancel()
		return report(working)
	}
	_ = run
}

// The lease and what is written belong together: either both are there after COMMIT, or
// none.
func ExampleManager_AcquireTx() {
	claim := func(ctx context.Context, leases *lease.Manager, tx *sql.Tx, order int64) (*lease.Lease, error) {
		l, err := leases.AcquireTx(ctx, tx, txlock.NewFamily[int64]("order").Key(order))
		if err != nil {
			return nil, err
		}
		_, err = tx.ExecContext(ctx, "UPDATE orders SET claimed_by = ? WHERE id = ?", l.Token(), order)
		return l, err // to be used, and released, after COMMIT
	}
	_ = claim
}

// A system outside of the database refuses a token that is lower than one that it has
// seen.
func ExampleLease_Token() {
	var seen uint64
	put := func(token uint64) error {
		if token < seen {
			return errors.New("who asks has lost the lease")
		}
		seen = token
		return nil
	}
	upload := func(l *lease.Lease) error { return put(l.Token()) }
	_ = upload
}

func ExampleLease_ReleaseRequested() {
	run := func(ctx context.Context, leases *lease.Manager, queue <-chan int, do func(context.Context, int) error) error {
		return leases.Do(ctx, txlock.Named("imports"), func(ctx context.Context, l *lease.Lease) error {
			for work := range queue {
				select {
				case <-l.ReleaseRequested():
					return nil // which releases the lease, between two pieces of work
				default:
				}
				if err := do(ctx, work); err != nil {
					return err
				}
			}
			return nil
		})
	}
	_ = run
}

func ExampleObserve() {
	db := (*sql.DB)(nil)

	// Or lockotel.New(meter), of package txlock/lockotel, for OpenTelemetry.
	leases, err := lease.NewManager(db, lease.Observe(txlock.SlogObserver(slog.Default())))
	if err != nil {
		log.Fatal(err)
	}
	_ = leases
}
