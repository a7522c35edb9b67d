package elect_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestThousandFollowers proves that a thousand processes that stand by send at most 250
// statements in any second, also while leaders change, and when all that had a standby slot die;
// and how long it takes until one leads then.
func TestThousandFollowers(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		const followers = 1000
		var all []*process
		for i := range followers + 1 {
			p := c.process(fmt.Sprint(i))
			p.run(follow)
			all = append(all, p)
			time.Sleep(10 * time.Millisecond) // they don't start at once
		}
		watcher := c.process("watcher")
		time.Sleep(time.Minute)
		c.forget()
		begun, most, token := time.Now(), 0, uint64(0)
		var busiest map[string]int
		count := func(seconds int) {
			for range seconds {
				at := time.Now()
				time.Sleep(time.Second)
				if n := c.sent(at); n > most {
					most, busiest = n, c.operations()
				}
				c.forget()
			}
		}
		lead := func() (*process, event) { return c.successor(all, token) }
		leader, e := lead()
		for range 5 { // resignations
			token = e.Token
			at := time.Now()
			must(t, leader.Resign(t.Context()))
			leader, e = lead()
			is(t, "hand-over", e.at.Sub(at), 0, 50*time.Millisecond)
			count(3)
		}
		for range 2 { // and those that have a standby slot die at once
			token = e.Token
			at := time.Now()
			for _, p := range onStandby(t, watcher, all) {
				p.store.Down(nil)
			}
			count(40)
			_, e = lead()
			is(t, "replaced", e.at.Sub(at), 0, ttl+lookMost)
		}
		t.Logf("at most %d statements in a second, of %v: %v", most, time.Since(begun), busiest)
		if most > 250 || most < 20 {
			t.Errorf("%d statements in a second", most)
		}
	})
}

// lookMost is the longest pause of a process without a standby slot.
const lookMost = 10500 * time.Millisecond

// TestSixth proves that the only process without a standby slot leads soon after the TTL when all
// five that have one die at once, or end at once, however long ago it has looked. It tries
// that 8 times, with LOCKSTEP_LONG=1 60 times.
func TestSixth(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		for i := range testdb.Long(8, 60) {
			var all []*process
			for name := range 6 {
				p := c.process(fmt.Sprint(i, name))
				p.run(follow)
				all = append(all, p)
			}
			time.Sleep(time.Minute + rand.N(lookMost))
			_, e := c.successor(all, 0)
			five, most := onStandby(t, all[0], all), lookMost
			at := time.Now()
			for _, p := range five {
				if i%2 == 0 {
					p.end()
				} else {
					p.store.Down(nil)
					most = ttl + lookMost
				}
			}
			next, following := c.successor(all, e.Token)
			for i%2 == 0 && slices.Contains(five, next) { // it led before it was ended itself
				next, following = c.successor(all, following.Token)
			}
			is(t, "replaced", following.at.Sub(at), 0, most+50*time.Millisecond)
			if slices.Contains(five, next) {
				t.Error("a process that is cut off leads")
			}
			for _, p := range all {
				p.up(c)
				p.end()
				for range p.ended { // until it is closed
				}
			}
		}
	})
}

// forget forgets the calls that were counted.
func (c *cluster) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = nil
}

// operations counts the calls by their names.
func (c *cluster) operations() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]int)
	for _, call := range c.calls {
		all[call.op]++
	}
	return all
}

// onStandby returns the processes that lead, or wait in the queue.
func onStandby(t *testing.T, watcher *process, all []*process) (some []*process) {
	t.Helper()
	info, err := watcher.leases.Inspect(t.Context(), standby)
	must(t, err)
	for _, p := range all {
		for _, slot := range info.Others {
			if slot.Label == p.name {
				some = append(some, p)
			}
		}
	}
	if len(some) != 5 {
		t.Fatalf("%d have a standby slot", len(some))
	}
	return some
}
