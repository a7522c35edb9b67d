package elect_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
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
		count := func(seconds int) {
			for range seconds {
				at := time.Now()
				time.Sleep(time.Second)
				most = max(most, c.sent(at))
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
		t.Logf("at most %d statements in a second, of %v", most, time.Since(begun))
		if most > 250 || most < 20 {
			t.Errorf("%d statements in a second", most)
		}
	})
}

// lookMost is the longest pause of a process without a standby slot.
const lookMost = 10500 * time.Millisecond

// forget forgets the calls that were counted.
func (c *cluster) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = nil
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
	equal(t, "processes with a standby slot", len(some), 5)
	return some
}

// TestObserverPanics proves that a panic of the observer goes on, and leaves neither the
// lease nor the standby slot behind.
func TestObserverPanics(t *testing.T) {
	for _, kind := range []elect.Kind{elect.Elected, elect.Ending, elect.Ended, elect.RunError} {
		t.Run(string(kind), func(t *testing.T) {
			inMemory(t, func(t *testing.T, c *cluster) {
				p := c.process("a", elect.Observe(func(_ context.Context, e elect.Event) {
					if e.Kind == kind {
						panic(kind)
					}
				}))
				if kind == elect.RunError {
					p.store.Down(nil)
				}
				func() {
					defer func() { equal[any](t, "recovered", recover(), kind) }()
					_ = p.Run(t.Context(), func(_ context.Context, term *elect.Term) error {
						term.Resign()
						return nil
					})
				}()
				p.up(c)
				list, err := p.leases.List(t.Context())
				must(t, err)
				equal(t, "held", len(list), 0)
				wants(t, "Run again under an ended manager", errors.Join(p.leases.Close(t.Context()), p.Run(t.Context(), follow)), lease.ErrClosed)
			})
		})
	}
}

// TestHungServer proves that the server, or a network, which hangs up without a word is
// given up: Run and Observe say so, and go on when they get answers.
func TestHungServer(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		p := c.process("a")
		p.store.SetFault(func(ctx context.Context, _ string, _ store.Row, _ func() error) error {
			<-ctx.Done() // of a connection whose other end is gone
			return ctx.Err()
		})
		p.run(follow)
		at := time.Now()
		for _, err := range p.Observe(t.Context()) {
			wants(t, "Observe", err, context.DeadlineExceeded)
			break
		}
		wants(t, "Run", p.await(elect.RunError, 1).Err, context.DeadlineExceeded)
		is(t, "told", time.Since(at), time.Second, ttl)
		p.up(c)
		at = time.Now()
		is(t, "leads", p.await(elect.Elected, 1).at.Sub(at), 0, 2*ttl)
	})
}
