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
