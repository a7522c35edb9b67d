package wired

import (
	"github.com/google/wire"

	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Program is what a program asks for.
type Program struct {
	Leases *lease.Manager
	Jobs   *job.Jobs
}

// Locks is the set for wire.
var Locks = wire.NewSet(NewLeases, NewJobs, wire.Struct(new(Program), "*"))
