package job

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/dca00107/lockstep/txlock"
)

// TestInstantsHaveAZone: what day it is doesn't depend on the process, nor on whether the
// tick is begun for the first time.
func TestInstantsHaveAZone(t *testing.T) {
	hourly, err := cron.ParseStandard("0 * * * *")
	must(t, err)
	for zone, schedules := range map[string][]Schedule{
		"Asia/Tokyo": {Cron("CRON_TZ=Asia/Tokyo 0 0 * * *"), Cron("CRON_TZ=Asia/Tokyo 30 * * * *")},
		"UTC":        {Cron("0 0 * * *"), Cron("30 * * * *"), Every(time.Hour), Of(hourly)},
	} {
		for _, schedule := range schedules {
			t.Run(zone, func(t *testing.T) { instantsIn(t, zone, schedule) })
		}
	}
}

func instantsIn(t *testing.T, zone string, schedule Schedule) {
	inMemory(t, func(t *testing.T, c *cluster) {
		n, saw := c.node(), make(chan time.Time, 100)
		n.runs(schedule, func(_ context.Context, at time.Time) error {
			saw <- at
			return errors.New("broken")
		}, RetryAfter(time.Minute))
		first, again := <-saw, <-saw
		if !first.Equal(again) || first.Location().String() != zone || again.Location().String() != zone {
			t.Errorf("%v, then %v, want both in %s", first, again, zone)
		}
		claim, err := n.ClaimNearest(t.Context(), txlock.Named("nearest"), schedule)
		must(t, err)
		if got := claim.At().Location().String(); got != zone {
			t.Errorf("claimed in %s, want %s", got, zone)
		}
		must(t, claim.Finish(t.Context(), nil))
	})
}

// diesAtBegin is the ledger of a process that dies before it begins a tick.
type diesAtBegin struct{ ledger }

func (diesAtBegin) begin(context.Context, beginning) (bool, error) {
	return false, errors.New("died")
}

// TestDeadBeforeBegin proves that Run doesn't begin all instants since 1970 where a process
// has died after it had made the row of its first tick.
func TestDeadBeforeBegin(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		dead, n := c.node(), c.node()
		dead.Jobs.ledger = diesAtBegin{dead.Jobs.ledger}
		at := Every(time.Hour).Next(c.now().Add(-time.Hour))
		if _, err := dead.Tick(t.Context(), nightly, at, nothing); err == nil {
			t.Fatal("the process has not died")
		}
		saw := make(chan time.Time, 1000)
		n.runs(Every(time.Hour), func(_ context.Context, at time.Time) error {
			saw <- at
			return nil
		}, Missed(CatchUpAll))
		if first := <-saw; !first.Equal(at) {
			t.Errorf("Run begins with %v, want %v", first, at)
		}
	})
}
