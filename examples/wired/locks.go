// Package wired has the parts of lockstep for programs that inject their dependencies, and
// whose parts know only a *gorm.DB.
package wired

import (
	"context"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// NewLeases makes the program's manager of leases. It is a provider for wire.
func NewLeases(db *gorm.DB) (leases *lease.Manager, cleanup func(), err error) {
	pool, err := db.DB()
	if err != nil {
		return nil, nil, err
	}
	if err := txlock.CheckGuarded(context.Background(), pool); err != nil {
		return nil, nil, err // the program has opened db without lockgorm.Open
	}
	if leases, err = lease.NewManager(pool); err != nil {
		return nil, nil, err
	}
	return leases, func() { _ = leases.Close(context.Background()) }, nil
}

// NewJobs makes the program's jobs. It is a provider for wire.
func NewJobs(db *gorm.DB, leases *lease.Manager) (jobs *job.Jobs, cleanup func(), err error) {
	pool, err := db.DB()
	if err != nil {
		return nil, nil, err
	}
	if jobs, err = job.New(pool, leases); err != nil {
		return nil, nil, err
	}
	return jobs, func() { _ = jobs.Close(context.Background()) }, nil
}
