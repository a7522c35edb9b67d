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
	err := s.mayShare()
	if err == nil {
		err = s.onePrimary(ctx)
	}
	if err != nil {
		return s.failed("detect a cluster", err)
	}
	return nil
}

// mayShare returns schema.ErrEngine where no row can be locked shared.
func (s *state) mayShare() error { return session.Lacks(s.server.Engine, s.server.Lacks.Shared) }

// beforeShared refuses a shared lock before it is taken. A guarded pool asks for a cluster afterwards, since
// the question would begin the transaction, until the process knows of the cluster.
func (s *state) beforeShared(ctx context.Context) error {
	err := s.mayShare()
	if one, _ := primaries.Load(s.server.Name); err == nil && (s.txState == nil || one == false) {
		err = s.onePrimary(ctx)
	}
	return err
}

// onePrimary makes sure, under the mutex, that the database has one primary.
func (s *state) onePrimary(ctx context.Context) error {
	if one, _ := primaries.Load(s.server.Name); one == true {
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
