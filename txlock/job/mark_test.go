package job

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestLateMark proves that who has lost a tick is told so, also when another one has done the
// tick by then.
func TestLateMark(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		a, b := c.node(), c.node()
		at := c.now()
		old, err := a.Claim(t.Context(), nightly, at)
		must(t, err)
		a.store.Down(nil) // its lease is lost
		time.Sleep(2 * ttl)
		claim, err := b.Claim(t.Context(), nightly, at)
		must(t, err)
		must(t, claim.Finish(t.Context(), nil))
		wants(t, "who comes late", old.Finish(t.Context(), nil), txlock.ErrLost)
	})
}

// unanswered is a ledger that doesn't answer the first mark.
type unanswered struct {
	*memLedger
	first sync.Once
}

func (u *unanswered) done(ctx context.Context, b beginning, run jobrow.Run) (marked bool, err error) {
	marked, err = u.memLedger.done(ctx, b, run)
	u.first.Do(func() { marked, err = false, errors.New("no answer") })
	return marked, err
}

// TestUnansweredMark proves that a mark that was written, and not answered, is found.
func TestUnansweredMark(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		n := c.node()
		pool := n.store.Pool()
		leases, err := lease.NewManager(pool, lease.PurgeEvery(0, time.Hour))
		must(t, err)
		jobs, err := newJobs(pool, leases, &unanswered{memLedger: n.ledger})
		must(t, err)
		if ran, err := jobs.Tick(t.Context(), nightly, c.now(), nothing); !ran || err != nil {
			t.Errorf("%t, %v", ran, err)
		}
		must(t, jobs.Close(t.Context()))
		must(t, leases.Close(t.Context()))
		must(t, pool.Close())
	})
}
