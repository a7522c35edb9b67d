package elect_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestStopped proves that a leader that was stopped for longer than the TTL doesn't
// believe for a moment that it leads, nor writes, also where it was stopped between Guard and COMMIT.
func TestStopped(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		leader, others := c.start(2, follow)
		term := leader.term()
		guarded := testdb.Got(leader.store.Pool().BeginTx(t.Context(), nil))(t)
		must(t, term.Guard(t.Context(), guarded))
		c.Skip(ttl + time.Second) // for the clocks, and not for the timers
		wants(t, "Err", term.Err(), txlock.ErrLost)
		c.successor(others, term.Token())
		testdb.ErrorIf(t, guarded.Commit() == nil, "what was guarded is committed after the term")
		tx := testdb.Got(leader.store.Pool().BeginTx(t.Context(), nil))(t)
		wants(t, "Guard", term.Guard(t.Context(), tx), txlock.ErrLost)
		must(t, tx.Rollback())
	})
}

// TestOverdue proves that a function which doesn't return is told to the observer when its grace is over, that
// somebody else leads then and not before, and that Resign returns with its context, and Run waits.
func TestOverdue(t *testing.T) {
	for name, how := range map[string]func(p *process){
		"resigned": func(p *process) {
			wants(t, "Resign under a context that ends", p.Resign(limited(p.t, time.Second)), context.DeadlineExceeded)
		},
		"ctx ended":   func(p *process) { p.end() },
		"not renewed": func(p *process) { p.store.Down(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, c *cluster) {
				stubborn := make(chan struct{})
				leader, others := c.start(2, func(ctx context.Context, _ *elect.Term) error {
					<-ctx.Done()
					<-stubborn
					return ctx.Err()
				})
				first := leader.term().Token()
				how(leader)
				next, e := c.successor(others, first)
				ending, overdue := leader.await(elect.Ending, 1), leader.await(elect.Overdue, 1)
				is(t, "the grace", overdue.at.Sub(ending.at), grace, grace)
				is(t, "the successor after the end", e.at.Sub(overdue.at), 0, ttl/10)
				wants(t, "Err", leader.term().Err(), map[bool]error{true: txlock.ErrLost, false: txlock.ErrNotHeld}[name == "not renewed"])
				time.Sleep(time.Minute)
				testdb.ErrorIf(t, len(leader.told(elect.Ended)) > 0 || len(leader.ended) > 0, "Run doesn't wait for its function")
				close(stubborn)
				leader.await(elect.Ended, 1)
				next.await(elect.Elected, 1)
				if name == "ctx ended" {
					wants(t, "Run", <-leader.ended, context.Canceled)
				}
			})
		})
	}
}

// TestWatchdog proves that a function that gives no sign of life loses the leadership, and one that does keeps it.
func TestWatchdog(t *testing.T) {
	const limit = 4 * time.Second
	inMemory(t, func(t *testing.T, c *cluster) {
		hang := make(chan struct{})
		leader, others := c.start(2, func(ctx context.Context, term *elect.Term) error {
			for range 20 {
				time.Sleep(limit - time.Second)
				term.Alive()
			}
			<-hang
			return ctx.Err()
		}, elect.Watchdog(limit))
		ending := leader.await(elect.Ending, 1)
		wants(t, "the reason", ending.Err, elect.ErrHung)
		is(t, "the end", ending.Took, 20*(limit-time.Second)+limit, 20*(limit-time.Second)+limit)
		_, e := c.successor(others, leader.term().Token())
		is(t, "replaced", e.at.Sub(ending.at), grace, grace+50*time.Millisecond)
		leader.await(elect.Overdue, 1)
		close(hang)
	})
}

// TestOwnerOfTheContext proves that two elections under a context which names an owner, or
// carries the lease, don't lead both.
func TestOwnerOfTheContext(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		p := c.process("a")
		second := testdb.Got(elect.New(p.leases, scheduler, elect.TTL(ttl)))(t)
		ctx, cancel := context.WithCancel(lease.WithOwner(t.Context(), "me"))
		defer cancel()
		ended := make(chan error, 2)
		begun := make(chan struct{})
		go func() {
			ended <- p.Run(ctx, func(ctx context.Context, _ *elect.Term) error {
				go func() {
					ended <- second.Run(ctx, func(context.Context, *elect.Term) error {
						t.Error("both lead")
						return nil
					})
				}()
				close(begun)
				<-ctx.Done()
				return nil
			})
		}()
		<-begun
		wants(t, "Run twice", p.Run(ctx, follow), elect.ErrRunning)
		time.Sleep(5 * ttl)
		synctest.Wait()
		cancel()
		wants(t, "Run", <-ended, context.Canceled)
		wants(t, "Run", <-ended, context.Canceled)
	})
}

// TestManagerCloses proves that the end of the manager ends the term and Run, and that nobody
// else leads before the function has returned.
func TestManagerCloses(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		var returned time.Time
		leader, others := c.start(2, func(ctx context.Context, term *elect.Term) error {
			<-ctx.Done()
			if !returned.IsZero() {
				return nil // the successor, at the end
			}
			wants(t, "the cause", context.Cause(ctx), lease.ErrClosed)
			time.Sleep(grace / 2)
			must(t, term.Err())
			returned = time.Now()
			return nil
		})
		must(t, leader.leases.Close(t.Context()))
		wants(t, "Run", <-leader.ended, lease.ErrClosed)
		wants(t, "the reason", leader.await(elect.Ending, 1).Err, lease.ErrClosed)
		is(t, "the successor after the function", others[0].await(elect.Elected, 1).at.Sub(returned), 0, time.Second)
	})
}

// TestManagerClosesAnOverdueTerm proves that Close of the manager waits no longer than the
// grace for a function that doesn't return.
func TestManagerClosesAnOverdueTerm(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		stop := make(chan struct{})
		leader, _ := c.start(1, func(context.Context, *elect.Term) error { <-stop; return nil })
		began := time.Now()
		must(t, leader.leases.Close(context.WithoutCancel(t.Context())))
		is(t, "Close", time.Since(began), grace, grace+time.Second)
		close(stop)
		wants(t, "Run", <-leader.ended, lease.ErrClosed)
	})
}

// TestObserve proves that each change is told, also that nobody leads, and that the server can't be asked; and what
// Leader says of who leads.
func TestObserve(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		const name = "héros/1/ released: /"
		p, other := c.process(name), c.process("b")
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
			testdb.ErrorIf(t, s.by != by || !errors.Is(s.err, err), "told of %q, %v; want %q, %v", s.by, s.err, by, err)
			is(t, "told", s.at.Sub(at), 0, most)
			time.Sleep(time.Minute)
			at = time.Now()
		}
		next("", elect.ErrNoLeader, 0)
		p.run(follow)
		next(name, nil, ttl/2+50*time.Millisecond)
		led, leader := p.await(elect.Elected, 1).at, testdb.Got(other.Leader(t.Context()))(t)
		if leader.Instance != name || leader.Token != p.term().Token() || !leader.Since.Equal(led.Truncate(time.Microsecond)) || leader.Remaining <= 0 || leader.Remaining > ttl {
			t.Errorf("Leader = %+v at %v", leader, led)
		}
		p.end()
		wants(t, "Run", <-p.ended, context.Canceled)
		next("", elect.ErrNoLeader, ttl/2+50*time.Millisecond)
		other.run(follow)
		next("b", nil, 50*time.Millisecond) // itself
		other.term().Resign()
		next("", elect.ErrNoLeader, 50*time.Millisecond)
		at = other.await(elect.Elected, 2).at
		next("b", nil, 50*time.Millisecond)
		other.store.Down(nil)
		next("", mysql.ErrInvalidConn, ttl)
		cancel()
		s, more := <-all
		testdb.ErrorIf(t, more, "told of %q, %v", s.by, s.err)
		for leader, err := range p.Observe(ctx) {
			t.Error("told under an ended context", leader, err)
		}
	})
}

// TestOnServers proves on every server that one of three leads, that what it writes is fenced, that the next leads
// when it resigns, and who is told to lead; on guarded pools and, where those need not be, on a plain one.
func TestOnServers(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		key := txlock.Named("test:" + rand.Text())
		table := db.CreateTable(t, "written", "id BIGINT PRIMARY KEY AUTO_INCREMENT, token BIGINT UNSIGNED")
		ctx, cancel := context.WithCancel(t.Context())
		terms := make(chan *elect.Term, 100)
		elections := make(map[string]*elect.Election)
		ended, plain := make(chan error, 3), leasetest.Pool(t, db, engine.Guarded())
		var leading atomic.Int64
		for _, name := range []string{"a", "b", "c"} {
			pool := leasetest.Pool(t, db, name != "c" || engine.Guarded())
			pool.SetMaxOpenConns(map[string]int{"a": 1, "b": 2, "c": 2}[name])
			elections[name] = stand(ctx, t, pool, key, ended, func(ctx context.Context, term *elect.Term) error {
				testdb.Equal(t, "leaders", leading.Add(1), 1)
				defer leading.Add(-1)
				wants(t, "a write", write(pool, table, term), nil)
				terms <- term
				return follow(ctx, term)
			}, elect.InstanceName(name), elect.TTL(time.Minute))
		}
		var last *elect.Term
		for range 6 {
			term := <-terms
			if last != nil {
				leasetest.Higher(t, term, last)
			}
			last = term
			leader := testdb.Got(elections["a"].Leader(t.Context()))(t)
			testdb.ErrorIf(t, leader.Token != term.Token() || elections[leader.Instance] == nil || leader.Remaining > time.Minute,
				"%+v leads, the term is %d", leader, term.Token())
			if err := elections[leader.Instance].Resign(t.Context()); !errors.Is(err, context.DeadlineExceeded) { // a busy server's answer
				must(t, err)
			}
			wants(t, "Err", term.Err(), txlock.ErrNotHeld)
			wants(t, "a write after the term", write(plain, table, term), txlock.ErrNotHeld)
		}
		cancel()
		for range 3 {
			wants(t, "Run", <-ended, context.Canceled)
		}
		var rows, higher int
		must(t, db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*), COUNT(DISTINCT token) FROM "+table).Scan(&rows, &higher))
		testdb.ErrorIf(t, rows < 6 || rows > 7 || rows != higher, "%d rows with %d tokens were written", rows, higher)
	})
}

// stand stands for election over a pool.
func stand(ctx context.Context, t *testing.T, pool *sql.DB, key txlock.Key, ended chan<- error, fn elect.Func, opts ...elect.Option) *elect.Election {
	t.Helper()
	leases := testdb.Got(lease.NewManager(pool))(t)
	e := testdb.Got(elect.New(leases, key, opts...))(t)
	go func() {
		err := e.Run(ctx, fn)
		wants(t, "Close", leases.Close(context.WithoutCancel(ctx)), nil)
		ended <- err
	}()
	return e
}

// write writes a row that is there only if the term counts.
func write(pool *sql.DB, table string, term *elect.Term) error {
	return locksqlc.Run(context.Background(), pool, nil, func(tx *sql.Tx) error {
		if _, err := tx.Exec("INSERT INTO "+table+" (token) VALUES (?)", term.Token()); err != nil {
			return err
		}
		return term.Guard(context.Background(), tx)
	})
}

// TestThousandFollowers proves that a thousand processes that stand by send at most 250 statements in any second,
// also when all that had a standby slot die, and how long it takes until one leads then.
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
			at, resigned := time.Now(), leader
			must(t, resigned.Resign(t.Context()))
			leader, e = lead()
			is(t, "hand-over", e.at.Sub(at), 0, 50*time.Millisecond)
			testdb.ErrorIf(t, leader == resigned, "%s follows itself", leader.name)
			wants(t, "Resign again", resigned.Resign(t.Context()), txlock.ErrNotHeld)
			wants(t, "Err of the one that has resigned", resigned.term().Err(), txlock.ErrNotHeld)
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
		testdb.ErrorIf(t, most > 250 || most < 20, "%d statements in a second", most)
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
	info := testdb.Got(watcher.leases.Inspect(t.Context(), standby))(t)
	for _, p := range all {
		for _, slot := range info.Others {
			if slot.Label == p.name {
				some = append(some, p)
			}
		}
	}
	testdb.Equal(t, "processes with a standby slot", len(some), 5)
	return some
}

// TestPanics proves that a panic of the function or of the observer goes on, and leaves neither the lease nor the
// standby slot behind:.
func TestPanics(t *testing.T) {
	const function = elect.Kind("function")
	for _, kind := range []elect.Kind{function, elect.Elected, elect.Ending, elect.Ended, elect.RunError} {
		t.Run(string(kind), func(t *testing.T) {
			inMemory(t, func(t *testing.T, c *cluster) {
				var last elect.Event
				p := c.process("a", elect.Observe(func(_ context.Context, e elect.Event) {
					if last = e; e.Kind == kind {
						panic(kind)
					}
				}))
				if kind == elect.RunError {
					p.store.Down(nil)
				}
				func() {
					defer func() { testdb.Equal[any](t, "recovered", recover(), kind) }()
					_ = p.Run(t.Context(), func(_ context.Context, term *elect.Term) error {
						if kind == function {
							panic(kind)
						}
						term.Resign()
						return nil
					})
				}()
				testdb.ErrorIf(t, kind == function && (last.Kind != elect.Ended || last.Err == nil), "the observer was told %+v at last", last)
				p.up(c)
				list := testdb.Got(p.leases.List(t.Context()))(t)
				testdb.Equal(t, "held", len(list), 0)
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
		info := testdb.Got(leader.leases.Inspect(t.Context(), standby))(t)
		testdb.Equal(t, "standby slots that are taken", len(info.Others), 1)
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
		if err := p.Run(t.Context(), nil); err == nil {
			t.Error("Run without a function does not fail")
		}
		for _, key := range []txlock.Key{{}, txlock.Named(""), txlock.Named("lockstep:x"), txlock.Named(strings.Repeat("x", 250))} {
			wants(t, key.String(), testdb.Err(elect.New(p.leases, key)), txlock.ErrInvalidKey)
		}
		for name, option := range map[string]elect.Option{
			"TTL(0)": elect.TTL(0), "TTL(-1)": elect.TTL(-1), "TTL too long": elect.TTL(lease.MaxTTL + 1),
			"Grace(0)": elect.Grace(0), "Grace too long": elect.Grace(7501 * time.Millisecond),
			"Watchdog(0)": elect.Watchdog(0), "InstanceName empty": elect.InstanceName(""), "InstanceName too long": elect.InstanceName(strings.Repeat("x", 256)),
			"InstanceName no UTF-8": elect.InstanceName("web-\xff"),
		} {
			wants(t, name, testdb.Err(elect.New(p.leases, scheduler, option)), txlock.ErrInvalidOption)
		}
		_, err = elect.New(p.leases, txlock.Named(strings.Repeat("x", 248)))
		testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "at most 247 bytes, this one has 248"), "a name of 248 bytes: %v", err)
		testdb.Equal(t, "calls that were sent", c.sent(at), 0)
		e := testdb.Got(elect.New(p.leases, txlock.Named(strings.Repeat("x", 247)), elect.InstanceName(strings.Repeat("y", 255))))(t)
		must(t, e.Run(t.Context(), func(_ context.Context, term *elect.Term) error { return term.Err() }))
		slow := testdb.Got(lease.NewManager(p.store.Pool(), lease.RenewEvery(10*time.Second)))(t)
		defer func() { must(t, slow.Close(context.Background())) }()
		e = testdb.Got(elect.New(slow, scheduler, elect.TTL(ttl)))(t)
		wants(t, "a manager that renews too seldom", e.Run(t.Context(), follow), txlock.ErrInvalidOption)
	})
}
