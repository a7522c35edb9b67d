package elect

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
)

// A Leader describes the process that leads.
type Leader struct {
	Instance  string        // its InstanceName
	Token     uint64        // of its term
	Since     time.Time     // when the term began, by the server's clock
	Remaining time.Duration // until the term expires if the leader doesn't renew it
	Own       bool          // the Election that returns it leads, or is about to
}

// Leader queries the server for the leader. A leader that has crashed, was stopped or is cut off
// counts until its TTL has expired. Leader returns ErrNoLeader if no process leads, and the errors
// of lease.Manager.Inspect.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	info, err := e.leases.Inspect(ctx, e.key)
	switch {
	case err != nil:
		return Leader{}, err
	case !info.Held:
		return Leader{}, fmt.Errorf("%w: %q", ErrNoLeader, e.key)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return Leader{Instance: info.Label, Token: info.Token, Since: info.Since, Remaining: info.Remaining, Own: info.Owner == e.owner}, nil
}

// Observe yields the current leader, and then each change, until the context ends: the leader,
// ErrNoLeader while no process leads, or an error while the server can't be queried. It queries
// about three times in a TTL, so it may miss a short term. It yields changes in this process at
// once.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		if ctx == nil {
			yield(Leader{}, errors.New("elect: Observe needs a context, got nil"))
			return
		}
		var last Leader
		var lastErr error
		for first := true; ; first = false {
			e.mu.Lock()
			changed := e.changed
			e.mu.Unlock()
			asking, cancel := context.WithTimeout(ctx, patience)
			leader, err := e.Leader(asking)
			cancel()
			if ctx.Err() != nil {
				return
			}
			if first || leader.Token != last.Token || state(err) != state(lastErr) {
				if !yield(leader, err) {
					return
				}
			}
			last, lastErr = leader, err
			if leaseutil.Pause(ctx, e.ttl/6+rand.N(e.ttl/3), changed) != nil {
				return
			}
		}
	}
}

// state tells what an error of Leader means, without its text.
func state(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrNoLeader):
		return 1
	}
	return 2
}
