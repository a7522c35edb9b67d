package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
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
	run := func(ctx context.Context, leases *lease.Manager, report func(context.Context, *lease.Lease) error) error {
		l, err := leases.TryAcquire(ctx, txlock.Named("nightly-report"))
		if errors.Is(err, txlock.ErrBusy) {
			return nil // another process is at it
		}
		if err != nil {
			return err
		}
		return errors.Join(report(ctx, l), l.Release(context.WithoutCancel(ctx)))
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

// These examples need a database, so they are compiled and not run. Module locktest has a
// pool without a database for tests.

// One manager for the program, over the pool that it has anyway.
func ExampleNewManager() {
	start := func(db *sql.DB) (*lease.Manager, error) {
		return lease.NewManager(db, lease.TTL(time.Minute), lease.MaxLifetime(time.Hour))
	}
	_ = start
}

func ExampleManager_Do() {
	run := func(ctx context.Context, leases *lease.Manager, work func(context.Context) error) error {
		return leases.Do(ctx, txlock.Named("import"), func(ctx context.Context, _ *lease.Lease) error {
			return work(ctx) // ctx ends when the lease is lost
		}, lease.WaitAtMost(time.Minute))
	}
	_ = run
}

func ExampleManager_TryDo() {
	run := func(ctx context.Context, leases *lease.Manager, work func(context.Context) error) error {
		err := leases.TryDo(ctx, txlock.Named("import"), func(ctx context.Context, _ *lease.Lease) error {
			return work(ctx)
		}, lease.HoldAtLeast(10*time.Second)) // a quick one isn't repeated by a process whose clock is late
		if errors.Is(err, txlock.ErrBusy) {
			return nil // another process is at it
		}
		return err
	}
	_ = run
}

// Readers hold the lease together, and keep out who holds it alone.
func ExampleManager_DoShared() {
	export := func(ctx context.Context, leases *lease.Manager, work func(context.Context) error) error {
		return leases.DoShared(ctx, txlock.Named("catalogue"), func(ctx context.Context, _ *lease.Lease) error {
			return work(ctx)
		})
	}
	_ = export
}

func ExampleManager_Acquire() {
	edit := func(ctx context.Context, leases *lease.Manager, work func(context.Context) error) (err error) {
		l, err := leases.Acquire(ctx, txlock.Named("catalogue"), lease.WithLabel("edited by Ann"))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.Release(context.WithoutCancel(ctx))) }()

		working, cancel := l.Context(ctx)
		defer cancel()
		return work(working)
	}
	_ = edit
}

// All of the leases or none, in one order, so that two of these don't deadlock.
func ExampleManager_AcquireAll() {
	merge := func(ctx context.Context, leases *lease.Manager, a, b string, work func(context.Context) error) (err error) {
		both, err := leases.AcquireAll(ctx, []txlock.Key{txlock.Named(a), txlock.Named(b)})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, both.Release(context.WithoutCancel(ctx))) }()

		working, cancel := both.Context(ctx) // ends when one of them is lost
		defer cancel()
		return work(working)
	}
	_ = merge
}

func ExampleManager_TryAcquireAll() {
	merge := func(ctx context.Context, leases *lease.Manager, keys []txlock.Key) (*lease.Leases, error) {
		all, err := leases.TryAcquireAll(ctx, keys)
		if errors.Is(err, txlock.ErrBusy) {
			return nil, nil // one of them is held, and now none is ours
		}
		return all, err
	}
	_ = merge
}

func ExampleManager_AcquireShared() {
	read := func(ctx context.Context, leases *lease.Manager, work func() error) error {
		l, err := leases.AcquireShared(ctx, txlock.Named("catalogue"))
		if err != nil {
			return err
		}
		return errors.Join(work(), l.Release(context.WithoutCancel(ctx)))
	}
	_ = read
}

func ExampleManager_TryAcquireShared() {
	read := func(ctx context.Context, leases *lease.Manager) (*lease.Lease, error) {
		l, err := leases.TryAcquireShared(ctx, txlock.Named("catalogue"))
		if errors.Is(err, txlock.ErrBusy) {
			return nil, nil // it is being edited
		}
		return l, err
	}
	_ = read
}

// The holder sees it by Lease.ReleaseRequested, and decides.
func ExampleManager_RequestRelease() {
	ask := func(ctx context.Context, leases *lease.Manager) error {
		err := leases.RequestRelease(ctx, txlock.Named("import"), "maintenance at ten")
		if errors.Is(err, txlock.ErrNotHeld) {
			return nil // it is free already
		}
		return err
	}
	_ = ask
}

// For an operator who knows that the holder is gone.
func ExampleManager_ForceRelease() {
	free := func(ctx context.Context, leases *lease.Manager, host string) error {
		key := txlock.Named("import")
		info, err := leases.Inspect(ctx, key)
		if err != nil || !info.Held || info.Owner != host {
			return err
		}
		return leases.ForceRelease(ctx, key)
	}
	_ = free
}

func ExampleManager_Inspect() {
	show := func(ctx context.Context, leases *lease.Manager) error {
		info, err := leases.Inspect(ctx, txlock.Named("import"))
		if err == nil && info.Held {
			fmt.Printf("%s holds it for %v more: %s\n", info.Owner, info.Remaining, info.Label)
		}
		return err
	}
	_ = show
}

func ExampleManager_List() {
	show := func(ctx context.Context, leases *lease.Manager) error {
		all, err := leases.List(ctx)
		for _, info := range all {
			fmt.Println(info.Key, info.Kind, info.Owner, info.Held)
		}
		return err
	}
	_ = show
}

// Managers clean by themselves; with PurgeEvery(0, ...), the program does it.
func ExampleManager_Purge() {
	nightly := func(ctx context.Context, db *sql.DB) error {
		leases, err := lease.NewManager(db, lease.PurgeEvery(0, 24*time.Hour))
		if err != nil {
			return err
		}
		removed, err := leases.Purge(ctx)
		fmt.Println("rows removed:", removed)
		return errors.Join(err, leases.Close(ctx))
	}
	_ = nightly
}

func ExampleManager_Close() {
	stop := func(leases *lease.Manager) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return leases.Close(ctx) // releases what is held
	}
	_ = stop
}

// The transaction can be committed only while the lease is held.
func ExampleLease_Guard() {
	book := func(ctx context.Context, db *sql.DB, l *lease.Lease) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET settled = 1"); err != nil {
			return err
		}
		if err := l.Guard(ctx, tx); err != nil { // last, just before COMMIT
			return err
		}
		return tx.Commit()
	}
	_ = book
}

func ExampleLease_Context() {
	work := func(ctx context.Context, l *lease.Lease, step func(context.Context) error) error {
		working, cancel := l.Context(ctx) // ends with ctx, and when the lease is lost
		defer cancel()
		return errors.Join(step(working), l.Err())
	}
	_ = work
}

// Who has written goes on reading, and lets other readers in.
func ExampleLease_Downgrade() {
	publish := func(ctx context.Context, l *lease.Lease) (*lease.Lease, error) {
		return l.Downgrade(ctx)
	}
	_ = publish
}

// The manager renews by itself. Renew is for who wants to know before a step that is long.
func ExampleLease_Renew() {
	step := func(ctx context.Context, l *lease.Lease, upload func(context.Context) error) error {
		if err := l.Renew(ctx); err != nil {
			return err // ErrLost: another process may hold it
		}
		return upload(ctx)
	}
	_ = step
}

func ExampleLease_Release() {
	finish := func(ctx context.Context, l *lease.Lease) error {
		return l.Release(context.WithoutCancel(ctx)) // also where ctx has ended
	}
	_ = finish
}

func ExampleLeases_Guard() {
	commit := func(ctx context.Context, tx *sql.Tx, all *lease.Leases) error {
		if err := all.Guard(ctx, tx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit() // while all of them are held
	}
	_ = commit
}

func ExampleLeases_Context() {
	work := func(ctx context.Context, all *lease.Leases, step func(context.Context) error) error {
		working, cancel := all.Context(ctx) // ends when one of them is lost
		defer cancel()
		return step(working)
	}
	_ = work
}

func ExampleLeases_Release() {
	finish := func(ctx context.Context, all *lease.Leases) error {
		return all.Release(context.WithoutCancel(ctx))
	}
	_ = finish
}

// At most five at a time, over all processes.
func ExampleSemaphore_Do() {
	call := func(ctx context.Context, leases *lease.Manager, request func(context.Context) error) error {
		partner, err := leases.Semaphore(txlock.Named("partner"), 5)
		if err != nil {
			return err
		}
		return partner.Do(ctx, func(ctx context.Context, _ *lease.Lease) error { return request(ctx) })
	}
	_ = call
}

func ExampleSemaphore_Acquire() {
	call := func(ctx context.Context, partner *lease.Semaphore, request func() error) error {
		permit, err := partner.Acquire(ctx)
		if err != nil {
			return err
		}
		return errors.Join(request(), permit.Release(context.WithoutCancel(ctx)))
	}
	_ = call
}

func ExampleSemaphore_TryAcquire() {
	call := func(ctx context.Context, partner *lease.Semaphore) (*lease.Lease, error) {
		permit, err := partner.TryAcquire(ctx)
		if errors.Is(err, txlock.ErrBusy) {
			return nil, nil // all five are taken
		}
		return permit, err
	}
	_ = call
}

func ExampleSemaphore_Resize() {
	narrow := func(ctx context.Context, partner *lease.Semaphore) (*lease.Semaphore, error) {
		return partner.Resize(ctx, 3) // waits until at most three are held
	}
	_ = narrow
}

// A process that was restarted takes over what it held, by a name that only one process has
// at a time.
func ExampleWithOwner() {
	work := func(ctx context.Context, leases *lease.Manager, host string) (*lease.Lease, error) {
		return leases.Acquire(lease.WithOwner(ctx, host), txlock.Named("import"))
	}
	_ = work
}
