package txlock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/schema"
)

// primaries says of the databases that this process has asked, by their names, whether there is one primary.
var primaries sync.Map

// OnePrimary makes sure that the database is not on a multi-primary cluster, where a lock that
// writes nothing doesn't exclude writers on other nodes, and one that writes excludes them at the
// commit. It asks the server once per process and database. It returns schema.ErrMultiPrimary or
// the server's error; the transaction stays open.
func (internals) OnePrimary(ctx context.Context, s *Scope) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	err := s.mayShare(ctx, true)
	if err != nil {
		return s.failed("detect a cluster", err)
	}
	return nil
}

// mayShare makes sure, under the mutex, that a shared lock excludes writers: that the server has such locks, and
// that the database has one primary. If it is not to ask, it does so only where the process knows of a cluster.
func (s *state) mayShare(ctx context.Context, asks bool) error {
	if err := session.Lacks(s.server.Engine, s.server.Lacks.Shared); err != nil {
		return err
	}
	if one, known := primaries.Load(s.server.Name); one == true || !known && !asks {
		return nil
	}
	err := schema.CheckCluster(s.own(ctx, guard.Call{}), s.tx)
	if several := errors.Is(err, schema.ErrMultiPrimary); err == nil || several {
		primaries.Store(s.server.Name, !several)
	}
	if err != nil {
		return fmt.Errorf("lock exclusively, in transactions that write: %w", err)
	}
	return nil
}
