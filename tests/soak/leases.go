package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// leaseKinds are what outlives transactions.
func leaseKinds() []kind {
	return []kind{
		{name: "lease.Do, entered again", every: often, burst: 3, run: leased},
		{name: "lease.TryDo", every: often, burst: 2, run: tryLeased, expected: []error{txlock.ErrBusy}},
		{name: "lease held and renewed", every: often, burst: 2, run: held},
		{name: "lease, new keys", every: often, burst: 2, run: leasedNew},
		{name: "lease shared", every: often, burst: 3, run: leaseShared},
		{name: "semaphore", every: often, burst: 3, run: permit},
		{name: "lease, Fair", every: seldom, burst: 3, run: fair},
		{name: "AcquireTx", every: often, burst: 2, run: acquiredTx, expected: []error{txlock.ErrBusy, lease.ErrNoConnection}},
		{name: "AcquireAll", every: often, burst: 2, run: acquiredAll},
		{name: "HoldAtLeast", every: often, burst: 1, run: heldAtLeast},
		{name: "Ask", every: seldom, burst: 1, run: asked},
		{name: "quorum.Do", every: seldom, burst: 2, run: majority},
		{name: "election", every: seldom, burst: 2, run: elected},
	}
}

// guarded is a lease or a term.
type guarded interface {
	Guard(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) error
}

// raiseUnder raises the record in a transaction that a lease guards.
func (o *op) raiseUnder(ctx context.Context, g guarded) error {
	return locksqlc.Run(ctx, o.pool, nil, func(tx *sql.Tx) error {
		o.wrote = nil
		if err := o.raise(ctx, tx); err != nil {
			return err
		}
		return g.Guard(ctx, tx)
	})
}

// leased enters the lease again under its context, and raises the record.
func leased(ctx context.Context, o *op) error {
	return o.leases.Do(ctx, o.key(), func(ctx context.Context, l *lease.Lease) error {
		o.granted()
		return o.leases.Do(ctx, o.key(), func(ctx context.Context, again *lease.Lease) error {
			if again.Token() != l.Token() {
				return fmt.Errorf("the lease was entered again with token %d instead of %d", again.Token(), l.Token())
			}
			return o.raiseUnder(ctx, again)
		})
	})
}

func tryLeased(ctx context.Context, o *op) error {
	return o.leases.TryDo(ctx, o.key(), func(ctx context.Context, l *lease.Lease) error {
		o.granted()
		return o.raiseUnder(ctx, l)
	})
}

// held holds the lease while it is renewed.
func held(ctx context.Context, o *op) error {
	l, err := o.leases.Acquire(ctx, o.key(), lease.WithLabel("soak"))
	if err != nil {
		return err
	}
	o.granted()
	if o.index == 0 { // the other one waits for it
		time.Sleep(2 * renewEvery)
	}
	return errors.Join(o.raiseUnder(ctx, l), l.Renew(ctx), l.Release(ctx))
}

// leasedNew takes a key that was never used, and will never be.
func leasedNew(ctx context.Context, o *op) error {
	return o.leases.Do(ctx, fresh.Key(o.burst), func(ctx context.Context, l *lease.Lease) error {
		o.granted()
		return o.raiseUnder(ctx, l)
	})
}

// leaseShared reads, or writes among readers.
func leaseShared(ctx context.Context, o *op) error {
	if o.index == 0 {
		return o.leases.Do(ctx, o.key(), func(ctx context.Context, l *lease.Lease) error {
			o.granted()
			return o.raiseUnder(ctx, l)
		})
	}
	return o.leases.DoShared(ctx, o.key(), func(context.Context, *lease.Lease) error {
		o.granted()
		think(20 * time.Millisecond)
		return nil
	})
}

func permit(ctx context.Context, o *op) error {
	semaphore, err := o.leases.Semaphore(o.key(), 2)
	if err != nil {
		return err
	}
	return semaphore.Do(ctx, func(context.Context, *lease.Lease) error {
		o.granted()
		think(20 * time.Millisecond)
		return nil
	})
}

func fair(ctx context.Context, o *op) error {
	return o.leases.Do(ctx, o.key(), func(ctx context.Context, l *lease.Lease) error {
		o.granted()
		think(20 * time.Millisecond)
		return o.raiseUnder(ctx, l)
	}, lease.Fair())
}

// acquiredTx takes the lease in the transaction that raises the record.
func acquiredTx(ctx context.Context, o *op) (err error) {
	var l *lease.Lease
	release := func() {
		if l != nil {
			_ = l.Release(ctx) // of a transaction that was rolled back it isn't held
		}
	}
	err = locksqlc.Run(ctx, o.pool, nil, func(tx *sql.Tx) (err error) {
		release()
		if l, err = o.leases.AcquireTx(ctx, tx, o.key()); err != nil {
			return err
		}
		o.again()
		return o.raise(ctx, tx)
	})
	if err != nil {
		release()
		return err
	}
	return l.Release(ctx)
}

func acquiredAll(ctx context.Context, o *op) error {
	all, err := o.leases.AcquireAll(ctx, []txlock.Key{txlock.Named("soak-last"), o.key(), fresh.Key(-o.burst)})
	if err != nil {
		return err
	}
	o.granted()
	return errors.Join(o.raiseUnder(ctx, all), all.Release(ctx))
}

// heldAtLeast leaves a lease that stays held for a moment.
func heldAtLeast(ctx context.Context, o *op) error {
	return o.leases.Do(ctx, o.key(), func(ctx context.Context, l *lease.Lease) error {
		o.granted()
		return o.raiseUnder(ctx, l)
	}, lease.HoldAtLeast(time.Second))
}

// asked asks a holder to give the lease up, who obeys.
func asked(ctx context.Context, o *op) error {
	l, err := o.leases.Acquire(ctx, o.key())
	if err != nil {
		return err
	}
	o.granted()
	err = o.leases.RequestRelease(ctx, o.key(), "soak")
	if err == nil {
		select {
		case <-l.ReleaseRequested():
		case <-ctx.Done():
			err = errors.New("the holder is not told that somebody asks")
		}
	}
	return errors.Join(err, l.Release(ctx))
}

// majority holds a lease of three databases.
func majority(ctx context.Context, o *op) error {
	return o.quorum.Do(ctx, o.key(), func(ctx context.Context, l *quorum.Lease) error {
		o.granted()
		if err := o.raise(ctx, o.plain); err != nil {
			return err
		}
		if o.index == 0 {
			time.Sleep(renewEvery * 3 / 2)
		}
		return l.Renew(ctx)
	})
}

// elected stands for election, and leads for a moment.
func elected(ctx context.Context, o *op) error {
	election, err := elect.New(o.leases, o.key(), elect.TTL(ttl))
	if err != nil {
		return err
	}
	return election.Run(ctx, func(ctx context.Context, term *elect.Term) error {
		o.granted()
		think(500 * time.Millisecond)
		return o.raiseUnder(ctx, term)
	})
}
