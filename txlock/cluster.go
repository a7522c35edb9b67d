package txlock

import (
	"context"
	"fmt"
	"sync"

	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/schema"
)

// singles are the databases that this process has found not to be on a multi-primary cluster,
// by their names.
var singles sync.Map

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

// onePrimary makes sure, under the mutex, that the database has one primary.
func (s *state) onePrimary(ctx context.Context) error {
	if _, ok := singles.Load(s.server.Name); ok {
		return nil
	}
	if err := schema.CheckCluster(s.own(ctx, guard.Call{}), s.tx); err != nil {
		return fmt.Errorf("lock exclusively, in transactions that write: %w", err)
	}
	singles.Store(s.server.Name, struct{}{})
	return nil
}
