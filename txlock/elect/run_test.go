package elect_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestResign proves that a resignation hands over within 50 ms, again and again, that
// tokens rise, and that the one that has resigned stands by again.
func TestResign(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		leader, others := c.start(3, follow)
		all := append([]*process{leader}, others...)
		led := map[string]int{leader.name: 1}
		for range 9 {
			token, at := leader.term().Token(), time.Now()
			must(t, leader.Resign(t.Context()))
			next, e := c.successor(all, token)
			is(t, "hand-over", e.at.Sub(at), 0, 50*time.Millisecond)
			testdb.ErrorIf(t, next == leader, "%s follows itself", leader.name)
			wants(t, "Resign again", leader.Resign(t.Context()), txlock.ErrNotHeld)
			wants(t, "Err of the one that has resigned", leader.term().Err(), txlock.ErrNotHeld)
			time.Sleep(2 * time.Second)
			leader = next
			led[leader.name]++
		}
		leasetest.Equal(t, "processes that have led", len(led), 3)
	})
}

// TestResignInside proves that the function itself may resign, and that a leader without
// anybody behind it leads again.
func TestResignInside(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		p := c.process("only")
		p.run(func(ctx context.Context, term *elect.Term) error {
			term.Resign()
			term.Resign()
			wants(t, "cause", context.Cause(ctx), elect.ErrResigned)
			return nil
		})
		first, second := p.await(elect.Elected, 1), p.await(elect.Elected, 2)
		testdb.ErrorIf(t, second.Token <= first.Token, "term %d after %d", second.Token, first.Token)
		is(t, "the second term", second.at.Sub(first.at), time.Second, 2*time.Second)
	})
}

// TestCutOff proves that the context of a leader that is cut off ends a grace before
// anybody else leads, which is a TTL after its last renewal, and that it stands again.
func TestCutOff(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		leader, others := c.start(3, follow)
		first := leader.term()
		time.Sleep(7 * time.Second)
		cut := time.Now()
		leader.store.Down(nil)
		_, e := c.successor(others, first.Token())
		is(t, "replaced", e.at.Sub(cut), ttl-ttl/3-time.Second, ttl+time.Second)
		ending := leader.await(elect.Ending, 1)
		wants(t, "the reason", ending.Err, txlock.ErrLost)
		is(t, "the grace", e.at.Sub(ending.at), grace, grace+grace/10)
		if len(leader.told(elect.Overdue)) > 0 || len(leader.told(elect.Ended)) != 1 {
			t.Errorf("a leader that stops in time was told %v", leader.events)
		}
		time.Sleep(time.Minute)
		testdb.ErrorIf(t, len(leader.told(elect.RunError)) == 0, "the observer was not told that the server can't be reached")
		leader.up(c)
		time.Sleep(30 * time.Second)
		for range 2 { // whoever leads, and whoever leads then
			for _, p := range others {
				_ = p.Resign(t.Context())
			}
			time.Sleep(time.Minute)
		}
		last := leader.await(elect.Elected, 2)
		testdb.ErrorIf(t, last.Token <= e.Token, "term %d after %d", last.Token, e.Token)
	})
}

// TestReturns proves that a function which returns while it leads ends Run, with its
// error, and that another process leads at once.
func TestReturns(t *testing.T) {
	broken := errors.New("broken")
	for _, want := range []error{nil, broken} {
		t.Run("", func(t *testing.T) {
			inMemory(t, func(t *testing.T, c *cluster) {
				go1 := make(chan struct{})
				leader, others := c.start(2, func(context.Context, *elect.Term) error {
					<-go1
					return want
				})
				at, token := time.Now(), leader.term().Token()
				go1 <- struct{}{}
				wants(t, "Run", <-leader.ended, want)
				_, e := c.successor(others, token)
				is(t, "the next", e.at.Sub(at), 0, 50*time.Millisecond)
				wants(t, "what the observer was told", leader.await(elect.Ended, 1).Err, want)
				close(go1)
			})
		})
	}
}

// TestContext proves that the end of Run's context ends the term, while it leads and
// while it waits, and that its standby slot is free.
func TestContext(t *testing.T) {
	broken := errors.New("broken")
	inMemory(t, func(t *testing.T, c *cluster) {
		leader, others := c.start(3, func(ctx context.Context, _ *elect.Term) error {
			<-ctx.Done()
			return broken
		})
		at := time.Now()
		others[1].end()
		wants(t, "Run of a follower", <-others[1].ended, context.Canceled)
		leader.end()
		wants(t, "Run of the leader", <-leader.ended, context.Canceled, broken)
		is(t, "Run", time.Since(at), 0, 50*time.Millisecond)
		others[0].await(elect.Elected, 1)
		info := leasetest.Got(leader.leases.Inspect(t.Context(), standby))(t)
		leasetest.Equal(t, "standby slots that are taken", len(info.Others), 1)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wants(t, "Run under an ended context", leader.Run(ended, follow), context.Canceled)
	})
}

// TestUnreachable proves that Run begins while the server can't be reached, says so, and
// leads when it can be; and that it goes on after errors that would end it at first.
func TestUnreachable(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		p := c.process("a")
		p.store.Down(nil)
		p.run(follow)
		time.Sleep(time.Minute)
		n := len(p.told(elect.RunError))
		testdb.ErrorIf(t, n < 5 || n > 20, "%d troubles in a minute", n)
		p.up(c)
		p.await(elect.Elected, 1)
		p.store.Down(txlock.ErrReadOnly)
		p.await(elect.Ended, 1)
		time.Sleep(time.Minute)
		p.up(c)
		p.await(elect.Elected, 2)
	})
}

// TestFinal proves that what the server says at first, and can't change, ends Run.
func TestFinal(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		for _, want := range []error{txlock.ErrSchema, txlock.ErrReadOnly, txlock.ErrPrivilege, schema.ErrAutocommit, schema.ErrEngine, errors.New("sql: database is closed")} {
			p := c.process("a")
			p.store.Down(want)
			wants(t, "Run", p.Run(t.Context(), follow), want)
			testdb.ErrorIf(t, len(p.told(elect.RunError)) > 0, "%v was told", want)
		}
		p := c.process("b")
		p.run(follow)
		p.await(elect.Elected, 1)
		p2 := c.process("c")
		p2.run(follow)
		time.Sleep(time.Second)
		must(t, p2.leases.Close(t.Context()))
		wants(t, "Run of a manager that was closed", <-p2.ended, lease.ErrClosed)
	})
}

// TestLog proves that the changes of a process are logged, and an error that comes again and again once a minute.
func TestLog(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		var logged strings.Builder
		p := c.process("a", elect.Log(slog.New(slog.NewTextHandler(&logged, nil)))) // which writes one line at a time
		p.run(follow)
		p.await(elect.Elected, 1)
		p.store.Down(errors.New("cut off"))
		p.await(elect.Ended, 1)
		time.Sleep(5 * time.Minute)
		p.up(c)
		p.await(elect.Elected, 2)
		synctest.Wait()
		for text, want := range map[string][2]int{
			"level=INFO msg=\"elect: this process leads\" election=scheduler instance=a token=":  {2, 2},
			"level=WARN msg=\"elect: the term ends\" election=scheduler instance=a token=":       {1, 1},
			"level=WARN msg=\"elect: Run retries\" election=scheduler instance=a token=0 error=": {4, 8},
		} {
			n := strings.Count(logged.String(), text)
			testdb.ErrorIf(t, n < want[0] || n > want[1], "%d times %s in:\n%s", n, text, logged.String())
		}
	})
}

// TestBadInput proves that what can't be an election is refused before anything is sent.
func TestBadInput(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		p := c.process("a")
		at := time.Now()
		_, err := elect.New(nil, scheduler)
		testdb.ErrorIf(t, err == nil, "New without a manager does not fail")
		leasetest.Fails(t, "Run without a function", p.Run(t.Context(), nil))
		for _, key := range []txlock.Key{{}, txlock.Named(""), txlock.Named("lockstep:x"), txlock.Named(strings.Repeat("x", 250))} {
			wants(t, key.String(), second(elect.New(p.leases, key)), txlock.ErrInvalidKey)
		}
		for name, option := range map[string]elect.Option{
			"TTL(0)": elect.TTL(0), "TTL(-1)": elect.TTL(-1), "TTL too long": elect.TTL(lease.MaxTTL + 1),
			"Grace(0)": elect.Grace(0), "Grace too long": elect.Grace(7501 * time.Millisecond),
			"Watchdog(0)": elect.Watchdog(0), "InstanceName empty": elect.InstanceName(""), "InstanceName too long": elect.InstanceName(strings.Repeat("x", 256)),
			"InstanceName no UTF-8": elect.InstanceName("web-\xff"),
		} {
			wants(t, name, second(elect.New(p.leases, scheduler, option)), txlock.ErrInvalidOption)
		}
		_, err = elect.New(p.leases, txlock.Named(strings.Repeat("x", 248)))
		testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "at most 247 bytes, this one has 248"), "a name of 248 bytes: %v", err)
		leasetest.Equal(t, "calls that were sent", c.sent(at), 0)
		e := leasetest.Got(elect.New(p.leases, txlock.Named(strings.Repeat("x", 247)), elect.InstanceName(strings.Repeat("y", 255))))(t)
		must(t, e.Run(t.Context(), func(_ context.Context, term *elect.Term) error { return term.Err() }))
		slow := leasetest.Got(lease.NewManager(p.store.Pool(), lease.RenewEvery(10*time.Second)))(t)
		defer func() { must(t, slow.Close(context.Background())) }()
		e = leasetest.Got(elect.New(slow, scheduler, elect.TTL(ttl)))(t)
		wants(t, "a manager that renews too seldom", e.Run(t.Context(), follow), txlock.ErrInvalidOption)
	})
}
