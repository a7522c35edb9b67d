package job

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// journal is what was done when.
type journal struct {
	mu      sync.Mutex
	begun   []time.Time
	done    []time.Time
	running int
	beside  int // how often one began beside another
}

// work takes a time, and fails with the context.
func (j *journal) work(takes time.Duration) Func {
	return func(ctx context.Context, at time.Time) error {
		j.mu.Lock()
		j.begun = append(j.begun, at)
		if j.running++; j.running > 1 {
			j.beside++
		}
		j.mu.Unlock()
		err := leaseutil.Pause(ctx, takes, nil)
		j.mu.Lock()
		defer j.mu.Unlock()
		j.running--
		if err == nil {
			j.done = append(j.done, at)
		}
		return err
	}
}

// finished are the ticks that were done.
func (j *journal) finished() []time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.done)
}

// runs runs a job in a process until the test ends.
func (n *node) runs(s Schedule, fn Func, opts ...RunOption) {
	n.t.Helper()
	go func() {
		if err := n.Run(context.Background(), nightly, s, fn, opts...); err != nil {
			n.t.Error(err)
		}
	}()
}

// closeAll ends processes, so that what they did can be read.
func closeAll(t *testing.T, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		must(t, n.Close(t.Context()))
	}
}

// TestServerClockIsSet proves that no tick is done twice when the server's clock is set
// back, and that a step forward leaves ticks to the policy.
func TestServerClockIsSet(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		var j journal
		nodes := []*node{c.node(), c.node(), c.node()}
		for _, n := range nodes {
			n.runs(Every(time.Minute), j.work(time.Second))
		}
		for _, by := range []time.Duration{0, -10 * time.Minute, 3 * time.Hour, -90 * time.Second, -time.Hour, 2 * time.Hour} {
			c.set(by)
			time.Sleep(30 * time.Minute)
		}
		closeAll(t, nodes...)
		testdb.ErrorIf(t, len(j.done) < 30 || j.beside > 0, "%d ticks, %d beside others", len(j.done), j.beside)
		for i := 1; i < len(j.done); i++ {
			testdb.ErrorIf(t, !j.done[i].After(j.done[i-1]), "%v after %v", j.done[i], j.done[i-1])
		}
	})
}

// TestInterruptedTick proves that the tick of a process that is closed, or whose context
// ends, is begun again by another one at once, and by CatchUpAll also after later instants.
func TestInterruptedTick(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		var j journal
		first := Every(time.Minute).Next(c.now())
		a, b := c.node(), c.node()
		ctx, interrupt := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- a.Run(ctx, nightly, Every(time.Minute), j.work(time.Hour), Missed(CatchUpAll)) }()
		time.Sleep(5 * time.Minute)
		interrupt()
		wants(t, "Run", <-ended, context.Canceled)
		s := statusOf(t, b.Jobs, nightly)
		testdb.ErrorIf(t, s.Failures != 0 || !s.Tick.Equal(first), "the table says %+v", s)
		b.runs(Every(time.Minute), j.work(time.Second), Missed(CatchUpAll))
		time.Sleep(time.Minute)
		closeAll(t, a, b)
		testdb.ErrorIf(t, len(j.done) < 5 || !j.done[0].Equal(first) || !j.done[1].Equal(first.Add(time.Minute)), "done: %v, the first was %v", j.done, first)
	})
}

// TestStatementsOfRun proves how many statements a process that waits sends: one look at
// an instant of another process, and one every 10 seconds.
func TestStatementsOfRun(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		var j journal
		n := c.node()
		n.runs(Every(24*time.Hour), j.work(time.Second))
		time.Sleep(time.Second)
		before := n.ledger.sent()
		time.Sleep(time.Hour)
		sent := n.ledger.sent() - before
		testdb.ErrorIf(t, sent > 360, "%d statements in an hour", sent)
	})
}

// TestSilentServer proves that a claim doesn't wait for a server that is silent, and that Run goes
// on when it answers again, also where the silent connection itself never does.
func TestSilentServer(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		var j journal
		n, other := c.node(), c.node()
		n.runs(Every(time.Minute), j.work(0))
		time.Sleep(90 * time.Second)
		n.ledger.down(errSilent)
		other.ledger.down(errSilent)
		began := time.Now()
		_, err := other.Claim(t.Context(), nightly, began)
		took := time.Since(began)
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrWaitTimeout) || errors.Is(err, context.DeadlineExceeded) || took != answerTime, "Claim: %v, after %v", err, took)
		time.Sleep(time.Minute)
		before := len(j.finished())
		n.ledger.down(nil)
		time.Sleep(2 * time.Minute)
		done := len(j.finished()) - before
		testdb.ErrorIf(t, done < 2, "%d ticks after the silence", done)
	})
}

// TestSilentConnection proves that a tick that is done is marked though the first try has no answer, and
// that a transaction of a tick which can't begin is interrupted, and keeps the tick from nobody.
func TestSilentConnection(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		n := c.node()
		claim := leasetest.Got(n.Claim(t.Context(), nightly, time.Now()))(t)
		n.ledger.down(errSilent)
		time.AfterFunc(time.Second, func() { n.ledger.down(nil) })
		must(t, claim.Finish(t.Context(), nil))

		at := time.Now()
		n.store.SetFault(func(ctx context.Context, op string, _ store.Row, call func() error) error {
			if op == "Begin" {
				<-ctx.Done()
				return ctx.Err()
			}
			return call()
		})
		_, err := n.TickTx(limited(t, time.Minute), nightly, at, func(context.Context, *sql.Tx, time.Time) error { return nil })
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrWaitTimeout) || len(n.events.of(Interrupted)) != 1, "TickTx: %v, %v", err, n.events.of(Interrupted))
		n.store.Up()
		again := leasetest.Got(c.node().Claim(t.Context(), nightly, at))(t)
		must(t, again.Finish(t.Context(), nil))
	})
}

// TestRunRefuses proves that what can't be run is refused at once, and that a schedule may come to its end.
func TestRunRefuses(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		n := c.node()
		for what, test := range map[string]struct {
			key      txlock.Key
			schedule Schedule
			options  []RunOption
			want     error
		}{
			"key":        {txlock.Key{}, Every(time.Second), nil, txlock.ErrInvalidKey},
			"Every(0)":   {nightly, Every(0), nil, txlock.ErrInvalidOption},
			"never":      {nightly, Cron("0 0 30 2 *"), nil, txlock.ErrInvalidOption},
			"policy":     {nightly, Every(time.Second), []RunOption{Missed(7)}, txlock.ErrInvalidOption},
			"Grace":      {nightly, Every(time.Second), []RunOption{Missed(SkipMissed), Grace(999 * time.Millisecond)}, txlock.ErrInvalidOption},
			"WarnAfter":  {nightly, Every(time.Second), []RunOption{WarnAfter(0)}, txlock.ErrInvalidOption},
			"Jitter":     {nightly, Every(time.Second), []RunOption{Jitter(-1), Grace(time.Minute)}, txlock.ErrInvalidOption},
			"RetryAfter": {nightly, Every(time.Second), []RunOption{RetryAfter(0)}, txlock.ErrInvalidOption},
		} {
			wants(t, what, n.Run(t.Context(), test.key, test.schedule, nothing, test.options...), test.want)
		}
		leasetest.Equal(t, "sent", n.ledger.sent(), 0)
		var j journal
		end := c.now().Add(3 * time.Hour)
		wants(t, "the end", n.Run(t.Context(), nightly, Of(until(end)), j.work(time.Second)), ErrPast)
		testdb.ErrorIf(t, len(j.done) == 0, "nothing was done")
		wants(t, "the context", n.Run(limited(t, time.Minute), txlock.Named("other"), Every(time.Hour), nothing), context.DeadlineExceeded)
		n.ledger.down(txlock.ErrSchema)
		wants(t, "the table", n.Run(t.Context(), txlock.Named("other"), Every(time.Hour), nothing), txlock.ErrSchema)
	})
}

// until is each hour up to a time.
type until time.Time

func (u until) Next(after time.Time) time.Time {
	if at := Every(time.Hour).Next(after); at.Before(time.Time(u)) {
		return at
	}
	return time.Time{}
}

// TestCloseWithin proves that Close, called by the function or the observer of a tick, returns an error and closes
// nothing, on its goroutine and on another one with its context.
func TestCloseWithin(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		var n *node
		observed := 0
		n = c.node(Observe(func(context.Context, Event) {
			if observed++; !n.calledWithin(context.Background()) {
				t.Error("an observer isn't known")
			}
		}))
		_, err := n.Tick(t.Context(), nightly, c.now(), func(ctx context.Context, _ time.Time) error {
			beside := make(chan bool, 2)
			go func() {
				beside <- n.calledWithin(ctx)
				beside <- n.calledWithin(context.Background())
			}()
			testdb.FatalIf(t, !n.calledWithin(context.Background()) || !<-beside || <-beside, "who has called isn't known: Close would wait for its caller")
			testdb.ErrorIf(t, n.Close(context.Background()) == nil || n.Close(ctx) == nil, "Close returns no error")
			return nil
		})
		must(t, err)
		must(t, second(n.Tick(t.Context(), txlock.Named("another"), c.now(), nothing)))
		testdb.ErrorIf(t, observed < 4 || n.calledWithin(context.Background()), "%d events, and afterwards %t", observed, n.calledWithin(context.Background()))
		must(t, n.Close(t.Context()))
		wants(t, "Tick after Close", second(n.Tick(t.Context(), nightly, c.now(), nothing)), ErrClosed)
	})
}
