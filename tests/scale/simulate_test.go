package scale

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// costs are what a server takes for statements: it executes so many at once, and the others
// queue.
type costs struct {
	slots       int
	write, read time.Duration
}

// costsOf makes costs of what was measured: the time of one process that is alone, and how
// many all processes have come to.
func costsOf(alone time.Duration, writes, reads float64) costs {
	slots := max(1, int(alone.Seconds()*writes+0.5))
	each := func(rate float64) time.Duration { return time.Duration(float64(slots) / rate * float64(time.Second)) }
	return costs{slots, each(writes), each(reads)}
}

// simulated is what the processes of a simulation have come to.
type simulated struct {
	statements float64         // a second, at the end
	busy       float64         // part of the server
	done       float64         // grants a second
	took       []time.Duration // from Acquire to its grant, in order
	lost       int
}

func (s simulated) p99() time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	return s.took[len(s.took)*99/100]
}

// simulate runs so many processes, each with a manager of its own, against a server in memory
// with these costs, in the time of a bubble. The first half of the time isn't counted.
func simulate(t *testing.T, c costs, processes int, long time.Duration, work func(ctx context.Context, m *lease.Manager, i int, granted func(asked time.Time))) (s simulated) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the race detector crashes where timers of a bubble are due at once
	synctest.Test(t, func(t *testing.T) {
		server, slots := memstore.New(), make(chan struct{}, c.slots)
		var mu sync.Mutex
		var sent, grants int
		var used time.Duration
		counts := time.Now().Add(long / 2)
		fault := func(ctx context.Context, op string, _ store.Row, call func() error) error {
			cost := c.write
			switch op {
			case "Look", "Inspect", "List", "ReadClock", "ReleaseReasonOf":
				cost = c.read
			}
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			time.Sleep(cost)
			<-slots
			mu.Lock()
			if time.Now().After(counts) {
				sent++
				used += cost
			}
			mu.Unlock()
			return call()
		}
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		var all sync.WaitGroup
		for i := range processes {
			store := server.Store()
			store.SetFault(fault)
			pool := store.Pool()
			m, err := lease.NewManager(pool, lease.PurgeEvery(0, time.Hour))
			must(t, err)
			all.Go(func() {
				time.Sleep(rand.N(long / 4)) // they don't start at once
				work(ctx, m, i, func(asked time.Time) {
					mu.Lock()
					defer mu.Unlock()
					if now := time.Now(); now.After(counts) {
						grants++
						s.took = append(s.took, now.Sub(asked))
					}
				})
				<-ctx.Done()
				store.Up() // the end is not what is simulated
				_ = m.Close(context.Background())
				_ = pool.Close()
			})
		}
		<-ctx.Done()
		mu.Lock()
		half := (long / 2).Seconds()
		s.statements, s.done = float64(sent)/half, float64(grants)/half
		s.busy = used.Seconds() / half / float64(c.slots)
		mu.Unlock()
		all.Wait()
	})
	slices.Sort(s.took)
	return s
}

// own is the lease of a process.
func own(i int) txlock.Key { return txlock.NewFamily[int]("scale").Key(i + 1) }

// holding has each process hold a lease of its own all the time.
func holding(t *testing.T, c costs, processes int, long time.Duration) simulated {
	var mu sync.Mutex
	lost := 0
	s := simulate(t, c, processes, long, func(ctx context.Context, m *lease.Manager, i int, granted func(time.Time)) {
		asked := time.Now()
		l, err := m.Acquire(ctx, own(i))
		if err != nil {
			return
		}
		granted(asked)
		select {
		case <-ctx.Done():
		case <-l.Done():
			mu.Lock()
			lost++
			mu.Unlock()
		}
	})
	s.lost = lost
	return s
}

// working has each process take a lease of its own once in ten seconds, for a second.
func working(t *testing.T, c costs, processes int, long time.Duration) simulated {
	return simulate(t, c, processes, long, func(ctx context.Context, m *lease.Manager, i int, granted func(time.Time)) {
		for ctx.Err() == nil {
			asked := time.Now()
			if l, err := m.Acquire(ctx, own(i)); err == nil {
				granted(asked)
				time.Sleep(time.Second)
				_ = l.Release(ctx)
			}
			select {
			case <-time.After(time.Until(asked.Add(9*time.Second + rand.N(2*time.Second)))):
			case <-ctx.Done():
			}
		}
	})
}

// wanting has all processes want one lease, for 10 ms each time.
func wanting(t *testing.T, c costs, processes int, long time.Duration) simulated {
	return simulate(t, c, processes, long, func(ctx context.Context, m *lease.Manager, _ int, granted func(time.Time)) {
		for ctx.Err() == nil {
			asked := time.Now()
			if l, err := m.Acquire(ctx, txlock.Named("scale:hot")); err == nil {
				granted(asked)
				time.Sleep(10 * time.Millisecond)
				_ = l.Release(ctx)
			}
		}
	})
}
