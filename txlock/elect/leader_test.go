package elect_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/txlock/elect"
)

// TestLeader proves that everybody is told who leads, and that nobody does.
func TestLeader(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		p, other := c.process("héros/1/ released: /"), c.process("b")
		_, err := other.Leader(t.Context())
		wants(t, "Leader", err, elect.ErrNoLeader)
		p.run(follow)
		at := p.await(elect.Elected, 1).at
		leader, err := other.Leader(t.Context())
		must(t, err)
		if leader.Instance != p.name || leader.Token != p.term().Token() || !leader.Since.Equal(at.Truncate(time.Microsecond)) || leader.Remaining <= 0 || leader.Remaining > ttl {
			t.Errorf("Leader = %+v at %v", leader, at)
		}
		p.end()
		wants(t, "Run", <-p.ended, context.Canceled)
		_, err = other.Leader(t.Context())
		wants(t, "Leader", err, elect.ErrNoLeader)
	})
}

// TestObserve proves that each change is told, also that nobody leads, and that the
// server can't be asked.
func TestObserve(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		p, other := c.process("a"), c.process("b")
		ctx, cancel := context.WithCancel(t.Context())
		type seen struct {
			by  string
			err error
			at  time.Time
		}
		all := make(chan seen, 100)
		at := time.Now()
		go func() {
			defer close(all)
			for leader, err := range other.Observe(ctx) {
				all <- seen{leader.Instance, err, time.Now()}
			}
		}()
		next := func(by string, err error, most time.Duration) {
			t.Helper()
			s := <-all
			if s.by != by || !errors.Is(s.err, err) {
				t.Errorf("told of %q, %v; want %q, %v", s.by, s.err, by, err)
			}
			is(t, "told", s.at.Sub(at), 0, most)
		}
		rest := func() {
			time.Sleep(time.Minute)
			at = time.Now()
		}
		next("", elect.ErrNoLeader, 0)
		rest()
		p.run(follow)
		next("a", nil, ttl/2+50*time.Millisecond)
		rest()
		p.end()
		wants(t, "Run", <-p.ended, context.Canceled)
		next("", elect.ErrNoLeader, ttl/2+50*time.Millisecond)
		rest()
		other.run(follow)
		next("b", nil, 50*time.Millisecond) // itself
		rest()
		other.term().Resign()
		next("", elect.ErrNoLeader, 50*time.Millisecond)
		next("b", nil, 2*time.Second)
		rest()
		other.store.Down(nil)
		next("", mysql.ErrInvalidConn, ttl)
		cancel()
		if s, more := <-all; more {
			t.Errorf("told of %q, %v", s.by, s.err)
		}
		for leader, err := range p.Observe(t.Context()) {
			t.Log(leader, err)
			break
		}
		for leader, err := range p.Observe(ctx) {
			t.Error("told under an ended context", leader, err)
		}
	})
}
