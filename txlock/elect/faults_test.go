package elect_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestAllHang proves that leaders which hang, one after the other, are replaced as long as
// one process is left: they don't keep the standby slots.
func TestAllHang(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		const processes = 8
		hang := make(chan struct{})
		var all []*process
		for i := range processes {
			p := c.process(fmt.Sprint(i), elect.Watchdog(time.Second))
			all = append(all, p)
			p.run(func(context.Context, *elect.Term) error { <-hang; return nil })
		}
		goOn := sync.OnceFunc(func() { close(hang) })
		t.Cleanup(goOn)
		token := uint64(0)
		for range processes {
			_, e := c.successor(all, token)
			token = e.Token
		}
		goOn()
		c.successor(all, token) // they stand by again
	})
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
					defer func() {
						if got := recover(); got != kind {
							t.Errorf("recovered %v", got)
						}
					}()
					_ = p.Run(t.Context(), func(_ context.Context, term *elect.Term) error {
						term.Resign()
						return nil
					})
				}()
				p.up(c)
				list, err := p.leases.List(t.Context())
				must(t, err)
				if len(list) > 0 {
					t.Errorf("%v is held", list)
				}
				wants(t, "Run again under an ended manager", errors.Join(p.leases.Close(t.Context()), p.Run(t.Context(), follow)), lease.ErrClosed)
			})
		})
	}
}

// TestObserverBlocks proves that an observer which doesn't return keeps nobody from the
// lead for longer than the grace.
func TestObserverBlocks(t *testing.T) {
	for _, kind := range []elect.Kind{elect.Elected, elect.Ending, elect.Overdue, elect.Ended} {
		t.Run(string(kind), func(t *testing.T) {
			inMemory(t, func(t *testing.T, c *cluster) {
				block, begun := make(chan struct{}), make(chan struct{}, 1)
				p := c.process("a", elect.Observe(func(_ context.Context, e elect.Event) {
					if e.Kind == elect.Elected {
						begun <- struct{}{}
					}
					if e.Kind == kind {
						<-block
					}
				}))
				p.run(func(context.Context, *elect.Term) error { <-block; return nil })
				<-begun
				other := c.process("b")
				t.Cleanup(func() { close(block) })
				other.run(follow)
				time.Sleep(time.Second)
				p.end()
				at := time.Now()
				is(t, "replaced", other.await(elect.Elected, 1).at.Sub(at), grace, grace+50*time.Millisecond)
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
