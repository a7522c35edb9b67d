package contender

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func lockstepLease() Maker {
	return Maker{
		Name: "lockstep lease", About: "lease.Manager: Acquire, Release",
		Table: "lockstep_leases", Column: "name", Renews: true, Leaser: openManager(),
	}
}

func lockstepFair() Maker {
	return Maker{
		Name: "lockstep fair lease", About: "lease.Manager: Acquire with Fair, Release",
		Leaser: openManager(lease.Fair()),
	}
}

func openManager(options ...lease.Option) func(context.Context, Place) (Leaser, error) {
	return func(ctx context.Context, at Place) (Leaser, error) {
		db, err := OpenGuarded(ctx, at)
		if err != nil {
			return nil, err
		}
		m := &manager{db: db}
		settings := []lease.ManagerOption{lease.TTL(TTL)}
		if at.RenewEvery > 0 {
			settings = append(settings, lease.RenewEvery(at.RenewEvery), lease.Observe(func(_ context.Context, e txlock.Event) {
				if e.Kind == txlock.Renewed {
					m.renewals.Add(1)
				}
			}))
		}
		if m.Manager, err = lease.NewManager(db, settings...); err != nil {
			return nil, errors.Join(err, db.Close())
		}
		for _, o := range options {
			m.options = append(m.options, o)
		}
		return m, nil
	}
}

type manager struct {
	*lease.Manager
	db       *sql.DB
	options  []lease.AcquireOption
	renewals atomic.Int64
}

func (m *manager) Acquire(ctx context.Context, key int64) (Lease, error) {
	l, err := m.Manager.Acquire(ctx, Family.Key(key), m.options...)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (m *manager) Renewals() int64 { return m.renewals.Load() }

func (m *manager) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(m.Manager.Close(ctx), m.db.Close())
}
