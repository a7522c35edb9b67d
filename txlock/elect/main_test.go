package elect_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var must, wants, limited = testdb.Must, testdb.Wants, leasetest.Limited

// scheduler is the key of the tests in memory, each of which has a server of its own.
var scheduler, standby = txlock.Named("scheduler"), txlock.Named("scheduler:standby")

const ttl, grace = 15 * time.Second, 5 * time.Second

// cluster is a server in memory with the processes of a test, in a bubble: time passes when everybody waits.
type cluster struct {
	*memstore.Server
	t *testing.T

	mu    sync.Mutex
	calls []time.Time // of all processes
}

// inMemory runs a test without a server.
func inMemory(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	leasetest.InBubble(t, 72*time.Hour, func(t *testing.T) { test(t, &cluster{Server: memstore.New(), t: t}) })
}

// sent returns how many calls have been sent since a moment.
func (c *cluster) sent(since time.Time) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.calls {
		if !at.Before(since) {
			n++
		}
	}
	return n
}

// process is a process of an election.
type process struct {
	*elect.Election
	t      *testing.T
	name   string
	store  *memstore.Store
	leases *lease.Manager

	mu     sync.Mutex
	events []event
	terms  []*elect.Term // of its function
	news   chan struct{}
	end    context.CancelFunc // of its Run
	ended  chan error         // what Run has returned
}

// event is what an observer was told, and when.
type event struct {
	elect.Event
	at time.Time
}

// process starts a process that doesn't stand for election yet. It is ended with the test.
func (c *cluster) process(name string, opts ...elect.Option) *process {
	c.t.Helper()
	p := &process{t: c.t, name: name, store: c.Store(), news: make(chan struct{})}
	p.up(c)
	pool := p.store.Pool()
	var err error
	p.leases, err = lease.NewManager(pool, lease.PurgeEvery(0, time.Hour))
	must(c.t, err)
	p.Election, err = elect.New(p.leases, scheduler, append([]elect.Option{elect.InstanceName(name), elect.TTL(ttl), elect.Grace(grace), elect.Observe(p.tell), elect.Log(nil)}, opts...)...)
	must(c.t, err)
	c.t.Cleanup(func() {
		p.up(c)
		if p.end != nil {
			p.end()
			for range p.ended { // until it is closed
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		must(c.t, errors.Join(p.leases.Close(ctx), pool.Close()))
	})
	return p
}

// up lets the process reach the server, and counts its calls.
func (p *process) up(c *cluster) {
	p.store.SetFault(func(_ context.Context, _ string, _ store.Row, send func() error) error {
		c.mu.Lock()
		c.calls = append(c.calls, time.Now())
		c.mu.Unlock()
		return send()
	})
}

func (p *process) tell(_ context.Context, e elect.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event{e, time.Now()})
	close(p.news)
	p.news = make(chan struct{})
}

// run stands for election by a function, until the end of the test.
func (p *process) run(fn elect.Func) {
	ctx, cancel := context.WithCancel(context.Background())
	p.end, p.ended = cancel, make(chan error, 1)
	go func() {
		err := p.Run(ctx, func(ctx context.Context, t *elect.Term) error {
			p.mu.Lock()
			p.terms = append(p.terms, t)
			p.mu.Unlock()
			return fn(ctx, t)
		})
		p.ended <- err
		close(p.ended)
	}()
}

// follow is a function that leads until it must not.
func follow(ctx context.Context, _ *elect.Term) error {
	<-ctx.Done()
	return nil
}

// told returns the events of a kind.
func (p *process) told(kind elect.Kind) (all []event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		if e.Kind == kind {
			all = append(all, e)
		}
	}
	return all
}

// await waits until so many events of a kind were told, and returns the last.
func (p *process) await(kind elect.Kind, n int) event {
	p.t.Helper()
	for limit := time.After(time.Hour); ; {
		p.mu.Lock()
		news := p.news
		p.mu.Unlock()
		if all := p.told(kind); len(all) >= n {
			return all[n-1]
		}
		select {
		case <-news:
		case <-limit:
			p.t.Fatalf("%s was not told %d times that it %s, but %v", p.name, n, kind, p.events)
		}
	}
}

// term returns the last term of the process.
func (p *process) term() *elect.Term {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.terms) == 0 {
		p.t.Fatalf("%s has never led", p.name)
	}
	return p.terms[len(p.terms)-1]
}

// cluster of so many processes, which stand for election; it returns when one leads and the others wait.
func (c *cluster) start(n int, fn elect.Func, opts ...elect.Option) (leader *process, others []*process) {
	c.t.Helper()
	var all []*process
	for i := range n {
		p := c.process(fmt.Sprint(i), opts...)
		p.run(fn)
		all = append(all, p)
	}
	time.Sleep(10 * time.Second)
	synctest.Wait()
	for _, p := range all {
		switch {
		case len(p.told(elect.Elected)) == 0:
			others = append(others, p)
		case leader != nil:
			c.t.Fatal("two lead")
		default:
			leader = p
		}
	}
	if leader == nil {
		c.t.Fatal("nobody leads")
	}
	return leader, others
}

// successor waits for the next leader among some.
func (c *cluster) successor(of []*process, tokenAbove uint64) (*process, event) {
	c.t.Helper()
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, p := range of {
			for _, e := range p.told(elect.Elected) {
				if e.Token > tokenAbove {
					return p, e
				}
			}
		}
	}
	for _, p := range of {
		c.t.Logf("%s was told %v", p.name, p.events)
	}
	c.t.Fatal("nobody follows")
	return nil, event{}
}

func is(t testing.TB, what string, got, least, most time.Duration) {
	t.Helper()
	testdb.ErrorIf(t, got < least || got > most, "%s: %v, want %v to %v", what, got, least, most)
}
