package job

import (
	"context"
	"slices"
	"testing"
	"time"
)

// TestDiedInTick proves which instants are done and which are told as left out where a
// process dies in one: between the two there is none, and none is both. Under CatchUpAll, none is
// left out.
func TestDiedInTick(t *testing.T) {
	for name, policy := range map[string]Policy{"Once": CatchUpLatest, "Skip": SkipMissed, "All": CatchUpAll} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, c *cluster) {
				a, b, begun := c.node(), c.node(), make(chan time.Time, 1)
				a.runs(Every(time.Second), func(ctx context.Context, at time.Time) error {
					begun <- at
					<-ctx.Done()
					return ctx.Err()
				}, Missed(policy))
				first := <-begun
				a.die()
				var j journal
				b.runs(Every(time.Second), j.work(time.Millisecond), Missed(policy), Grace(time.Second))
				time.Sleep(10 * time.Second)
				closeAll(t, a, b)
				left := make(map[time.Time]bool)
				for _, e := range b.events.of(Skipped) {
					for at := e.From; at.Before(e.At); at = at.Add(time.Second) {
						left[at.UTC()] = true
					}
				}
				for at, last := first, j.done[len(j.done)-1]; !at.After(last); at = at.Add(time.Second) {
					if done := slices.Contains(j.done, at); done == left[at] {
						t.Errorf("%v was done: %t, and left out: %t", at, done, left[at])
					}
				}
				if len(left) == 0 != (policy == CatchUpAll) || len(j.done) < 5 {
					t.Errorf("%d done, %d left out", len(j.done), len(left))
				}
			})
		})
	}
}
