package txlock

import (
	"context"
	"fmt"
	"sync"

	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/schema"
)

// singles are the databases that this process has found not to be on a cluster of
// several primaries, by their names.
var singles sync.Map

// OnePrimary makes sure that the database is not on a cluster of several primaries,
// where a lock that is never written doesn't exclude writers on other nodes, and one
// that is excludes at the commit. It asks the server once per process and database,
// and returns schema.ErrMultiPrimary or what the server says; the transaction goes on.
// RLock and locksqlc.Do call it.
func (s *Scope) OnePrimary(ctx context.Context) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.onePrimary(ctx); err != nil {
		return s.failed("look for a cluster", err)
	}
	return nil
}

// onePrimary is OnePrimary under the mutex.
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
