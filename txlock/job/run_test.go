package job

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
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
		claim := testdb.Got(n.Claim(t.Context(), nightly, time.Now()))(t)
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
		again := testdb.Got(c.node().Claim(t.Context(), nightly, at))(t)
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
		testdb.Equal(t, "sent", n.ledger.sent(), 0)
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
			observed++
			testdb.ErrorIf(t, !n.calledWithin(context.Background()), "an observer isn't known")
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
		must(t, testdb.Err(n.Tick(t.Context(), txlock.Named("another"), c.now(), nothing)))
		testdb.ErrorIf(t, observed < 4 || n.calledWithin(context.Background()), "%d events, and afterwards %t", observed, n.calledWithin(context.Background()))
		must(t, n.Close(t.Context()))
		wants(t, "Tick after Close", testdb.Err(n.Tick(t.Context(), nightly, c.now(), nothing)), ErrClosed)
	})
}

// TestFailedTick proves that a tick that has failed, by an error or by a panic, may be
// tried again until a later one is begun, and that the table tells of it.
func TestFailedTick(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		a, b := c.node(InstanceName("a")), c.node(InstanceName("b"))
		first := c.now()
		broken := errors.New("broken")
		ran, err := a.Tick(t.Context(), nightly, first, func(context.Context, time.Time) error { return broken })
		if !ran || err != broken { //nolint:errorlint // it is returned as it is
			t.Errorf("%v, %v", ran, err)
		}
		if s := statusOf(t, b.Jobs, nightly); s.Err != "broken" || s.Failures != 1 || s.Instance != "a" || s.Running || !s.Done.IsZero() || !s.Tick.Equal(first) {
			t.Errorf("the table says %+v", s)
		}
		func() {
			defer func() { testdb.Equal[any](t, "recovered", recover(), "oh") }()
			_, _ = b.Tick(t.Context(), nightly, first, func(context.Context, time.Time) error { panic("oh") })
		}()
		s := statusOf(t, a.Jobs, nightly)
		testdb.ErrorIf(t, !strings.Contains(s.Err, "panicked") || s.Failures != 2 || s.Instance != "b", "the table says %+v", s)
		later := c.now()
		ticks(t, true, broken)(a.Tick(t.Context(), nightly, later, func(context.Context, time.Time) error { return broken }))
		ticks(t, false, ErrPast)(b.Tick(t.Context(), nightly, first, nothing))
		ticks(t, true, nil)(b.Tick(t.Context(), nightly, later, nothing))
		ticks(t, false, ErrPast)(b.Tick(t.Context(), nightly, first, nothing)) // never done, before one that was
		s = statusOf(t, a.Jobs, nightly)
		testdb.ErrorIf(t, s.Err != "" || s.Failures != 0 || !s.Done.Equal(later) || s.Took <= 0, "the table says %+v", s)
		testdb.Equal(t, "failures that b was told of", len(b.events.of(Failed)), 1)
	})
}

func nothing(context.Context, time.Time) error { return nil }

// TestBadTicks proves that instants that can't be are refused, and change nothing.
func TestBadTicks(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		n := c.node()
		for what, test := range map[string]struct {
			key  txlock.Key
			at   time.Time
			want error
		}{
			"before 1970":      {nightly, time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC), txlock.ErrInvalidOption},
			"the zero time":    {nightly, time.Time{}, txlock.ErrInvalidOption},
			"the year 10,000":  {nightly, time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), txlock.ErrInvalidOption},
			"in 100 years":     {nightly, c.now().AddDate(100, 0, 0), ErrEarly},
			"an hour ahead":    {nightly, c.now().Add(time.Hour), ErrEarly},
			"the zero key":     {txlock.Key{}, c.now(), txlock.ErrInvalidKey},
			"a key that is no": {txlock.Named("lockstep:jobs"), c.now(), txlock.ErrInvalidKey},
		} {
			t.Log(what)
			ticks(t, false, test.want)(n.Tick(t.Context(), test.key, test.at, nothing))
		}
		testdb.Equal(t, "rows", len(c.rows), 0)
		wants(t, "Status", testdb.Err(n.Status(t.Context(), nightly)), txlock.ErrNotHeld)
		_, err := n.Tick(t.Context(), nightly, c.now(), nil)
		testdb.ErrorIf(t, err == nil, "Tick takes nil")
		must(t, n.leases.Do(t.Context(), nightly, func(ctx context.Context, _ *lease.Lease) error {
			wants(t, "under its own lease", testdb.Err(n.Tick(ctx, nightly, c.now(), nothing)), txlock.ErrInvalidOption)
			return nil
		}))
		began, asked := c.now(), c.now().Add(30*time.Second)
		ran, err := n.Tick(t.Context(), nightly, asked, nothing)
		testdb.ErrorIf(t, !ran || err != nil || c.now().Before(asked), "30 s ahead: %v, %v after %v", ran, err, c.now().Sub(began))
	})
}

// TestLostMark proves that a tick that was done while the server was out of reach is marked
// when it comes back, and done again by another one, which waits for it, if it doesn't.
func TestLostMark(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		n := c.node()
		ticks(t, true, nil)(n.Tick(t.Context(), nightly, c.now(), func(context.Context, time.Time) error {
			n.ledger.down(errors.New("cut off"))
			time.AfterFunc(time.Second, func() { n.ledger.down(nil) })
			return nil
		}))
		later, other, waited := c.now(), c.node(), make(chan struct{})
		ran, err := n.Tick(t.Context(), nightly, later, func(context.Context, time.Time) error {
			go func() {
				defer close(waited)
				ticks(t, true, nil)(other.Tick(t.Context(), nightly, later, nothing))
			}()
			synctest.Wait()
			n.die()
			return nil
		})
		testdb.ErrorIf(t, !ran || err == nil, "%v, %v", ran, err)
		<-waited
	})
}

// TestClaims proves that Claim doesn't wait and says why it refuses, and who runs the tick, that Finish marks once,
// and that who has lost a tick is told so, also when another one has done it by then.
func TestClaims(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		a, b := c.node(), c.node()
		at := c.now()
		claim := testdb.Got(a.Claim(t.Context(), nightly, at))(t)
		_, err := b.Claim(t.Context(), nightly, at)
		wants(t, "a second claim", err, txlock.ErrBusy)
		var held *txlock.HeldError
		testdb.ErrorIf(t, !errors.As(err, &held) || held.Key != nightly || held.Owner != claim.Lease().Owner(), "%v names %+v", err, held)
		must(t, claim.Finish(t.Context(), nil))
		must(t, claim.Finish(t.Context(), errors.New("late")))
		wants(t, "a claim of what was done", testdb.Err(b.Claim(t.Context(), nightly, at)), ErrDone)
		wants(t, "a claim ahead", testdb.Err(b.Claim(t.Context(), nightly, c.now().Add(time.Second))), ErrEarly)

		for _, done := range []bool{false, true} {
			at := c.now()
			old := testdb.Got(a.Claim(t.Context(), nightly, at))(t)
			a.store.Down(nil) // its lease is lost
			time.Sleep(2 * ttl)
			a.store.Up()
			claim := testdb.Got(b.Claim(t.Context(), nightly, at))(t)
			testdb.ErrorIf(t, claim.Lease().Token() <= old.Lease().Token() || !claim.At().Equal(at), "token %d after %d", claim.Lease().Token(), old.Lease().Token())
			if done {
				must(t, claim.Finish(t.Context(), nil))
			}
			wants(t, "who comes late", old.Finish(t.Context(), nil), txlock.ErrLost)
			must(t, claim.Finish(t.Context(), nil))
		}
	})
}

// TestClaimNearest proves that processes whose clocks are off by less than half of an
// interval claim a tick once, whether they are early or late.
func TestClaimNearest(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		nodes := []*node{c.node(), c.node(), c.node()}
		every := 10 * time.Second
		tick := Every(every).Next(c.now())
		for range 20 {
			tick = tick.Add(every)
			claims := 0
			for i, off := range []time.Duration{-4 * time.Second, 0, 4 * time.Second} {
				time.Sleep(tick.Add(off).Sub(c.now()))
				claim, err := nodes[i].ClaimNearest(t.Context(), nightly, Every(every))
				if err != nil {
					wants(t, "refused", err, ErrDone)
					continue
				}
				claims++
				testdb.ErrorIf(t, !claim.At().Equal(tick), "claimed %v, want %v", claim.At(), tick)
				must(t, claim.Finish(t.Context(), nil))
			}
			testdb.Equal(t, "claims", claims, 1)
		}
		wants(t, "the zero schedule", testdb.Err(nodes[0].ClaimNearest(t.Context(), nightly, Schedule{})), txlock.ErrInvalidOption)
	})
}

// TestManagerCloses proves that the Close of the manager ends the context of the work, waits
// until it has returned, and that the tick is marked then, as the process begins it.
func TestManagerCloses(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		n, other := c.node(), c.node()
		began, ticked := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := n.Tick(context.Background(), nightly, c.now(), func(ctx context.Context, _ time.Time) error {
				close(began)
				<-ctx.Done()
				wants(t, "the cause", context.Cause(ctx), lease.ErrClosed)
				time.Sleep(time.Minute)
				wants(t, "the lease while the work returns", testdb.Err(other.leases.TryAcquire(context.Background(), nightly)), txlock.ErrBusy)
				return nil
			})
			ticked <- err
		}()
		<-began
		at := c.now()
		must(t, n.leases.Close(context.Background()))
		must(t, <-ticked)
		d := c.now().Sub(at)
		testdb.ErrorIf(t, d < time.Minute || d > time.Minute+time.Second, "Close takes %v", d)
	})
}

// TestClose proves that Close waits for the work, ends it when its own context ends, and
// that nothing is begun afterwards.
func TestClose(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		n := c.node()
		var cause error
		go func() {
			_, _ = n.Tick(context.Background(), nightly, c.now(), func(ctx context.Context, _ time.Time) error {
				<-ctx.Done()
				cause = context.Cause(ctx)
				return cause
			})
		}()
		go func() { must(t, n.Run(context.Background(), txlock.Named("other"), Every(time.Hour), nothing)) }()
		time.Sleep(time.Second)
		began := time.Now()
		wants(t, "Close", n.Close(limited(t, time.Minute)), context.DeadlineExceeded)
		wants(t, "the work", cause, ErrClosed)
		d := time.Since(began)
		testdb.ErrorIf(t, d < time.Minute || d > time.Minute+time.Second, "Close takes %v", d)
		must(t, n.Close(t.Context()))
		wants(t, "Tick", testdb.Err(n.Tick(t.Context(), nightly, c.now(), nothing)), ErrClosed)
		wants(t, "Claim", testdb.Err(n.Claim(t.Context(), nightly, c.now())), ErrClosed)
		must(t, n.Run(t.Context(), nightly, Every(time.Hour), nothing))
		synctest.Wait()
	})
}

// TestTickWithinItself proves that a tick that would wait for itself is refused, whichever context it has. Ticks of
// other keys run there, and this one does afterwards.
func TestTickWithinItself(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		j, key := open(t, newPool(t, db, true), Log(nil)), newKey()
		at := serverNow(t, j).Add(-time.Minute)
		inTx := func(context.Context, *sql.Tx, time.Time) error { return nil }
		calls := map[string]func(ctx context.Context, at time.Time) error{
			"Tick":   func(ctx context.Context, at time.Time) error { return testdb.Err(j.Tick(ctx, key, at, nothing)) },
			"TickTx": func(ctx context.Context, at time.Time) error { return testdb.Err(j.TickTx(ctx, key, at, inTx)) },
			"Claim":  func(ctx context.Context, at time.Time) error { return testdb.Err(j.Claim(ctx, key, at)) },
			"Run":    func(ctx context.Context, _ time.Time) error { return j.Run(ctx, key, Every(time.Hour), nothing) },
			"RunTx":  func(ctx context.Context, _ time.Time) error { return j.RunTx(ctx, key, Every(time.Hour), inTx) },
		}
		outer := limited(t, 20*time.Second) // which calls that wait for themselves need
		within := func(in context.Context) error {
			for _, ctx := range []context.Context{in, outer} {
				for name, call := range calls {
					if err := call(ctx, at.Add(time.Second)); !errors.Is(err, txlock.ErrInvalidOption) || !strings.Contains(err.Error(), "would wait for itself") {
						t.Errorf("%s within a tick of its key returns %v", name, err)
					}
				}
			}
			return testdb.Err(j.Tick(t.Context(), newKey(), at, nothing))
		}
		must(t, testdb.Err(j.Tick(t.Context(), key, at, func(ctx context.Context, _ time.Time) error { return within(ctx) })))
		at = at.Add(time.Second)
		must(t, testdb.Err(j.TickTx(t.Context(), key, at, func(ctx context.Context, _ *sql.Tx, _ time.Time) error { return within(ctx) })))
	})
}
